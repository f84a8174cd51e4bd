"""MI-FGSM, a transfer attack by gradient steps with momentum."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks import steps
from rbtools.attacks.base import norm_param, relative_step_param, step_size_param
from rbtools.attacks.drive import Iterate, SteppedAttack
from rbtools.errors import RbError
from rbtools.lazy import torch
from rbtools.registry import param

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch
    from rbtools.attacks.oracle import Evaluated
    from rbtools.rng.draws import Draws

_SMALLEST = 0.9  # side of the smallest copy of --diversity, as a share of the image's side


@dataclass(frozen=True, kw_only=True)
class MIFGSM(SteppedAttack):
    """Momentum iterative FGSM on the cross-entropy (Dong et al. 2018, arXiv:1710.06081), for transfer.

    Each gradient is divided by its mean absolute value and added to a running sum. A step follows the sign of
    the running sum in L-infinity, and its direction in L2. The attack starts at the image, and only the last
    iterate counts as a success. By default, the number of steps, the step size and the momentum are those of
    the paper.

    `diversity=0.5` is the paper's probability of input diversity (DI, Xie et al. 2019, arXiv:1803.06978).
    With probability `diversity`, the gradient is computed on a reduced copy of the image, at a random
    position on a black image of the original size. The side of the reduced copy is .9 to 1 of the image's
    side, as in torchattacks, because many networks accept only one image size. The paper instead enlarges the
    image by up to a tenth.

    `kernel=15` selects the translation-invariant attack (TI, Dong et al. 2019, arXiv:1904.02884), with the
    paper's kernel for images of 299x299 pixels. A Gaussian kernel smooths each gradient before the gradient
    is divided. Half the width of the kernel is three standard deviations, as in the authors' code. A kernel
    of 3 pixels is suitable for small images.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,). Raises RbError for
    an even kernel, and if both step_size and relative_step are given.
    """

    name: ClassVar[str] = "mi-fgsm"
    version: ClassVar[int] = 1
    mean_of: ClassVar[str] = "loss"
    loss: ClassVar[str] = "ce"
    iterate: ClassVar[str] = "last"  # type: ignore[misc]  # no option here
    clean_pass: ClassVar[bool] = False

    eps: float = 8 / 255
    norm: str = norm_param()
    steps: int = param(10, "Number of gradient steps.", check="positive")
    step_size: float | None = step_size_param("eps/steps")
    relative_step: float | None = relative_step_param()
    momentum: float = param(
        1.0, "Weight of the earlier gradients in each step; 0 uses only the newest one.", check="non-negative"
    )
    diversity: float = param(
        0.0, "Probability that a gradient is computed on a reduced copy of the image.", check="fraction"
    )
    kernel: int = param(
        0, "Side in pixels of the Gaussian that smooths gradients; 0 for no smoothing.", check="non-negative"
    )

    def __post_init__(self) -> None:
        if self.kernel and self.kernel % 2 == 0:
            raise RbError(f"kernel of attack 'mi-fgsm' is {self.kernel}. Expected an odd number, or 0.")
        self.check_step_size()

    @property
    def effective_step_size(self) -> float:
        if self.step_size is not None:
            return self.step_size
        return self.eps * (1 / self.steps if self.relative_step is None else self.relative_step)

    @property
    def reach(self) -> float:
        """The sum of all step lengths, in pixel units of [0, 1]."""
        return self.steps * self.effective_step_size

    @property
    def random(self) -> bool:
        return self.diversity > 0

    @property
    def stem(self) -> str:
        return f"{self.name}{self.steps}{self.threat_suffix}"

    def begin(self, batch: AttackBatch, restart: int) -> _Momentum:
        return _Momentum(
            batch.images, batch.images, self.goal(batch), torch.zeros_like(batch.images), batch.draws
        )

    def ask(self, state: _Momentum, step: int) -> Tensor:
        if not self.diversity:
            return state.points
        state.rows, state.columns = copies(state.points, state.draws, step, self.diversity)
        return state.rows @ state.points @ state.columns.mT

    def tell(self, state: _Momentum, seen: Evaluated, step: int) -> None:
        gradient = seen.gradient
        if self.diversity:
            gradient = state.rows.mT @ gradient @ state.columns
        if self.kernel > 1:
            height, width = (gaussian(side, self.kernel).to(gradient) for side in gradient.shape[2:])
            gradient = height @ gradient @ width
        size = gradient.abs().mean((1, 2, 3), keepdim=True).clamp_min(torch.finfo(gradient.dtype).tiny)
        state.direction = self.momentum * state.direction + gradient / size
        state.points = steps.step(
            state.points,
            state.direction,
            state.images,
            eps=self.eps,
            step_size=self.effective_step_size,
            norm=self.norm,
        )


@dataclass
class _Momentum(Iterate):
    """`direction` (N, C, H, W) is the sum of the gradients. `copies` computes `rows` and `columns`."""

    direction: Tensor
    draws: Draws
    rows: Tensor = field(init=False)
    columns: Tensor = field(init=False)


def copies(images: Tensor, draws: Draws, draw: int, probability: float) -> tuple[Tensor, Tensor]:
    """Matrices A (N, 1, H, H) and B (N, 1, W, W): A x B^T is the reduced copy of an image x, or x itself."""
    height, width = images.shape[2:]
    chance, size, *places = draws.bits(4, draw).unbind(1)
    least = max(int(_SMALLEST * height), 1)
    smaller = least + _below(size, max(height - least, 1))
    smaller = torch.where(chance < probability * 2**32, smaller, height)
    sides = smaller, (2 * smaller * width + height) // (2 * height)
    rows, columns = (
        shrinking(side, length, _below(place, side - length + 1)).to(images)[:, None]
        for side, length, place in zip((height, width), sides, places, strict=True)
    )
    return rows, columns


def _below(words: Tensor, count: int | Tensor) -> Tensor:
    """Random integers (N,) in [0, count), each computed from 32 random bits."""
    return (words * count) >> 32


def shrinking(size: int, length: Tensor, start: Tensor) -> Tensor:
    """Matrices (N, size, size) that shrink a line of pixels to `length` (N,) by linear interpolation and
    place it at pixel `start` (N,) of a black line."""
    pixel = torch.arange(size, device=length.device)
    place = pixel - start[:, None]
    inside = (place >= 0) & (place < length[:, None])
    source = ((place + 0.5) * size / length[:, None] - 0.5).clamp(0, size - 1)
    return (1 - (source[:, :, None] - pixel).abs()).clamp_min(0) * inside[:, :, None]


def gaussian(size: int, kernel: int) -> Tensor:
    """The matrix (size, size) that smooths a line of pixels, surrounded by black pixels, with a Gaussian of
    side `kernel`, which is odd and at least 3."""
    half = kernel // 2
    # `half` is three standard deviations.
    weights = torch.exp(-4.5 * (torch.arange(-half, half + 1) / half) ** 2)
    pixel = torch.arange(size)
    offset = pixel - pixel[:, None] + half
    inside = (offset >= 0) & (offset < kernel)
    return torch.where(inside, (weights / weights.sum())[offset.clamp(0, kernel - 1)], 0.0)
