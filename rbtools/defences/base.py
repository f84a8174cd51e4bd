"""The base of all stages in front of a network, and of those that iterate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from rbtools.lazy import Tensor, torch
from rbtools.registry import Registered

Backward = Literal["own", "identity", "stand-in", "none"]


@dataclass(frozen=True, kw_only=True)
class Defence(Registered):
    """One stage: a transformation of images.

    `backward` is how attacks get its gradient: `own`, through its operations; `identity`, as if the stage
    changed nothing (BPDA, Athalye et al., ICML 2018); `stand-in`, the gradient of `stand_in`. The value is
    the stage's own in each case. A random stage draws with torch, one row of numbers for each image.

    Shape:
        images: float32 (N, C, H, W) in [0, 1].
        result: float32 (N * copies, C, H', W') in [0, 1], the copies of an image one after another.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    backward: ClassVar[Backward] = "own"

    @property
    def copies(self) -> int:
        """How many images the network sees in place of one; the logits are their mean."""
        return 1

    def __call__(self, images: Tensor) -> Tensor:
        raise NotImplementedError

    def stand_in(self, images: Tensor) -> Tensor:
        """A differentiable approximation of the stage, of the same shape."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class IteratedDefence(Defence):
    """A stage of `steps` equal steps. A subclass has a field `steps`, and `step`.

    With `checkpointed` the backward pass computes the iterations again, so a step must do the same twice:
    random numbers are drawn in `begin`.
    """

    steps: int

    def begin(self, images: Tensor) -> Sequence[Tensor]:
        """The first iterate, and the tensors that `step` gets besides."""
        return (images,)

    def step(self, images: Tensor, number: int, *more: Tensor) -> Tensor:
        """The next iterate after `number` steps."""
        raise NotImplementedError

    def __call__(self, images: Tensor, checkpointed: bool = False) -> Tensor:
        iterate, *more = self.begin(images)
        if checkpointed:
            return _recomputed(self.step, iterate, more, 0, self.steps)
        for number in range(self.steps):
            iterate = self.step(iterate, number, *more)
        return iterate


def _recomputed(
    step: Callable[..., Tensor], iterate: Tensor, more: Sequence[Tensor], start: int, stop: int
) -> Tensor:
    """The steps from `start` to `stop`. The backward pass computes them again, the later half first, so that
    it holds the tensors of one step, and of the others a number of iterates that grows with their logarithm.
    """
    from torch.utils.checkpoint import checkpoint

    if stop - start <= 1:
        return step(iterate, start, *more) if stop > start else iterate
    middle = (start + stop) // 2
    again = partial(_recomputed, step, more=more, start=start, stop=middle)
    iterate = checkpoint(again, iterate, use_reentrant=False, preserve_rng_state=False)
    return _recomputed(step, iterate, more, middle, stop)


def picked(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Of each image (C, H, W) its pixels in rows (N, h) and columns (N, w): (N, C, h, w)."""
    count, channels = images.shape[:2]
    number = torch.arange(count, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return images[number, channel, rows[:, None, :, None], columns[:, None, None, :]]
