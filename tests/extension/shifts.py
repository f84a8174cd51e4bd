"""One file outside the package: a threat and its attack, an attack on labels, a model that is a function, and
a kind of model.

An entry point registers the attacks and the kind of model: nothing else is needed for all tools to know them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rbtools.attacks.base import Attack
from rbtools.queries.base import BatchAnswers, KindOfModel
from rbtools.registry import param
from rbtools.threats.base import Threat


@dataclass(frozen=True, kw_only=True)
class Shift(Threat):
    """Translations by at most `pixels` pixels in each direction; empty places are black. A point
    is the shift (down, right) of an image."""

    name: ClassVar[str] = "shift"
    strength: ClassVar[str] = "pixels"

    pixels: int = 2

    @classmethod
    def axis(cls, word: str) -> str:
        return "shift [pixels]"

    def images(self, points: Tensor, images: Tensor) -> Tensor:
        moved = torch.zeros_like(images)
        height, width = images.shape[-2:]
        for place, (down, right) in enumerate(points.round().int().tolist()):
            to = (slice(max(down, 0), height + min(down, 0)), slice(max(right, 0), width + min(right, 0)))
            of = (slice(max(-down, 0), height - max(down, 0)), slice(max(-right, 0), width - max(right, 0)))
            moved[place][:, to[0], to[1]] = images[place][:, of[0], of[1]]
        return moved

    def distances(self, points: Tensor, images: Tensor) -> Tensor:
        return points.abs().amax(1)

    def project(self, points: Tensor, images: Tensor) -> Tensor:
        return points.round().clamp(-self.pixels, self.pixels)

    def contains(self, points: Tensor, images: Tensor) -> Tensor:
        return (points == points.round()).all(1) & (points.abs().amax(1) <= self.pixels)


@dataclass(frozen=True, kw_only=True)
class ShiftSearch(Attack):
    """Tries every shift, the shortest first. The result is exact."""

    name: ClassVar[str] = "shift"
    version: ClassVar[int] = 1
    words: ClassVar[str] = "Shift"
    within: ClassVar[type[Threat]] = Shift
    random: ClassVar[bool] = False
    minimal: ClassVar[bool] = True
    uses_gradients: ClassVar[bool] = False
    uses_logits: ClassVar[bool] = False
    precise: ClassVar[bool] = True

    pixels: int = param(2, "Largest shift in each direction, in pixels", bounds="[0, inf)")

    @property
    def most_passes(self) -> int:
        return (2 * self.pixels + 1) ** 2

    def __call__(self, model: Any, images: Tensor, labels: Tensor, draws: Any) -> Tensor:
        points = torch.zeros(len(images), 2, device=images.device)
        left = torch.arange(len(images), device=images.device)
        each = range(-self.pixels, self.pixels + 1)
        for shift in sorted(
            ((down, right) for down in each for right in each), key=lambda s: max(map(abs, s))
        ):
            tried = torch.tensor(shift, device=images.device).float().expand(len(left), 2)
            wrong = model.labels(self.threat.images(tried, images[left])) != labels[left]
            points[left[wrong]] = tried[wrong]
            left = left[~wrong]
        return points


@dataclass(frozen=True, kw_only=True)
class LabelWalk(Attack):
    """Draws points of the ball's corners and then goes back towards the image by bisection. It asks for the
    only predicted classes."""

    name: ClassVar[str] = "label-walk"
    version: ClassVar[int] = 1
    words: ClassVar[str] = "Label walk"
    uses_gradients: ClassVar[bool] = False
    uses_logits: ClassVar[bool] = False
    precise: ClassVar[bool] = True

    eps: float = 8 / 255
    starts: int = param(8, "Number of random corners of the ball.", check="positive")
    halvings: int = param(4, "Number of bisections.", check="non-negative")

    @property
    def most_passes(self) -> int:
        return self.starts + self.halvings

    def __call__(self, model: Any, images: Tensor, labels: Tensor, draws: Any) -> Tensor:
        found, far = torch.zeros_like(labels, dtype=torch.bool), images.clone()
        for start in range(self.starts):
            corner = draws.uniform(tuple(images.shape[1:]), draw=start).to(images).sub(0.5).sign()
            points = self.threat.project(images + self.eps * corner, images)
            wrong = (model.labels(points) != labels) & ~found
            far[wrong], found = points[wrong], found | wrong
        low, high = torch.zeros_like(labels).float(), torch.ones_like(labels).float()
        for _ in range(self.halvings):
            middle = (low + high) / 2
            wrong = model.labels(images + middle.view(-1, 1, 1, 1) * (far - images)) != labels
            high, low = torch.where(wrong, middle, high), torch.where(wrong, low, middle)
        return images + high.view(-1, 1, 1, 1) * (far - images)


def brightest(classes: int) -> Callable[[Tensor], Any]:
    """A model that can only be queried: the class is the brightest of `classes` parts of an image."""

    def labels(images: Tensor) -> Any:
        parts = images.flatten(1).chunk(classes, dim=1)
        return torch.stack([part.mean(1) for part in parts], 1).argmax(1).numpy()

    return labels


@dataclass(frozen=True, kw_only=True)
class Brightest(KindOfModel):
    """A kind of model: the function `brightest`, reached by its number of classes."""

    name: ClassVar[str] = "brightest"
    flag: ClassVar[str] = "--model-brightest"
    metavar: ClassVar[str] = "CLASSES"
    help: ClassVar[str] = "Evaluate the model whose class is the brightest of this many parts of the image."

    def open(self, access: Any) -> Brightest:
        return self

    def ask(self, images: Any) -> BatchAnswers:
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float()
        return BatchAnswers("label", brightest(int(self.text))(pixels))

    def close(self) -> None: ...
