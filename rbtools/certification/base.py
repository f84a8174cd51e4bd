"""The base class of the certification methods that bound margins, and checks of what methods are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from rbtools import check_input
from rbtools.errors import RbError
from rbtools.lazy import Tensor, torch
from rbtools.registry import Registered, param

if TYPE_CHECKING:
    from rbtools.certification.ball import Ball
    from rbtools.certification.network import TracedNetwork

Model = Callable[[Tensor], Tensor]

# The default of `batch`, how many images go through the model at once, by device type.
TOGETHER = {"cpu": 64, "cuda": 512}


@dataclass(frozen=True, kw_only=True)
class Certifier(Registered):
    """The base of the methods that bound margins; a subclass defines `least_margins`.

    `eps` is the radius of the ball of `norm` ("linf" or "l2"), in pixel units of [0, 1].
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    default_eps: ClassVar[str] = "8"  # in units of 1/255, as on the command line

    eps: float = 8 / 255
    norm: str = param("linf", "The norm of the ball.", choices=("linf", "l2"))

    @property
    def alone(self) -> bool:
        """Whether the bounds of an image do not depend on the other images of its batch."""
        return False

    def __call__(
        self,
        model: Model,
        images: Tensor,
        labels: Tensor,
        *,
        eps: float | None = None,
        batch: int | None = None,
    ) -> Tensor:
        """Which images are certified, bool (N,): `CROWN()(model, images, labels, eps=2 / 255)`.

        An image is certified if the model classifies it correctly, and no image in [0, 1] within `eps` of it
        loses its label, as `rb-certify` decides it: the bounds hold for the model in float32.

        Shape:
            images: floating point (N, C, H, W) in [0, 1]; labels: int64 (N,), on the device of the images.
            model: maps images to logits (N, K), in eval mode.
            eps: radius of the ball of `norm`, in pixel units of [0, 1]; without it that of the method.
            batch: images that are bounded together at most, 64 on a CPU.

        Raises RbError for images, labels, a radius or a batch that are none of this kind, a model in train
        mode or whose logits are not finite, and a network that has an operation without bounds.
        """
        model, images, labels = checked(model, images, labels, batch)
        method = self if eps is None else replace(self, eps=eps)
        size = batch or together(images)
        correct = classified(model, images, labels, size)
        return method.margins(model, images, labels, correct, size) > 0

    def margins(self, model: Model, images: Tensor, labels: Tensor, correct: Tensor, batch: int) -> Tensor:
        """The lower bound of each image's smallest margin, float32 (N,), in pieces of `batch` images; minus
        infinity where `correct`, bool (N,), is false. Shapes and errors are those of `bounds`.
        """
        rows = torch.full((len(images),), -torch.inf, device=images.device)
        with torch.no_grad():
            for part in correct.nonzero()[:, 0].split(batch) if correct.any() else ():
                rows[part] = self.bounds(model, images[part], labels[part]).float()
        return rows

    def bounds(self, model: Model, images: Tensor, labels: Tensor, *, outward: bool = True) -> Tensor:
        """Lower bounds (N,) in float64 of each image's smallest margin, logit of the label minus another.

        Shape: images float32 (N, C, H, W) in [0, 1]; labels int64 (N,). `model` maps images to logits (N, K);
        the bounds are of all images in [0, 1] at a distance of eps or less. `outward`: they hold for the
        model in float32, and not only for real numbers (`rbtools.certification.rounding`). Raises RbError for
        a network that has an operation without bounds.
        """
        from rbtools.certification import network
        from rbtools.certification.ball import Ball

        traced = network.trace(model, images.shape[1:], images.device)
        ball = Ball(images, self.eps, self.norm, outward=outward)
        return self.least_margins(traced, ball, labels).amin(1)

    def least_margins(self, traced: TracedNetwork, ball: Ball, labels: Tensor) -> Tensor:
        """Lower bounds (N, K - 1) in float64 of the margins over the images of a ball, for labels (N,)."""
        raise NotImplementedError


def together(images: Tensor) -> int:
    """How many of these images go through a model at once by default."""
    return TOGETHER.get(images.device.type, TOGETHER["cpu"])


def checked(
    model: Model, images: Tensor, labels: Tensor, batch: int | None
) -> tuple[Model, Tensor, Tensor]:
    """The model, images as floats in [0, 1] and labels int64, as check_input does. Raises RbError for invalid
    ones, and for an invalid model or batch."""
    check_input.check_model(model)
    if not len(images):
        raise RbError("There are no images. Expected 1 or more.")
    if batch is not None and batch < 1:
        raise RbError(f"batch is {batch}. Expected 1 or more.")
    return check_input.checked(model, images, labels)


def finite_logits(model: Model, images: Tensor, batch: int) -> Tensor:
    """Logits (N, K) in float32, at most `batch` images at a time. Raises RbError for an output that is not
    finite or has another shape."""
    with torch.no_grad():
        logits = torch.cat([model(part).float() for part in images.split(batch)])
    if logits.dim() != 2 or len(logits) != len(images):
        raise RbError(
            f"The model gives {tuple(logits.shape)} for {len(images)} images. Expected logits (N, classes)."
        )
    if not torch.isfinite(logits).all():
        raise RbError(
            "The model's output is not finite (NaN or infinity). Check its weights and its normalisation."
        )
    return logits


def classified(model: Model, images: Tensor, labels: Tensor, batch: int) -> Tensor:
    """Which images the model classifies correctly: bool (N,). Raises RbError for a label that is no class."""
    logits = finite_logits(model, images, batch)
    correct: Tensor = logits.argmax(1).eq(labels)
    return correct
