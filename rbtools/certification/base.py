"""Checks of the inputs of a certification method."""

from __future__ import annotations

from collections.abc import Callable

from rbtools import check_input
from rbtools.errors import RbError
from rbtools.lazy import Tensor, torch

Model = Callable[[Tensor], Tensor]

# The default of `batch`, how many images go through the model at once, by device type.
TOGETHER = {"cpu": 64, "cuda": 512}


def together(images: Tensor) -> int:
    """The default number of images that go through a model at once."""
    return TOGETHER.get(images.device.type, TOGETHER["cpu"])


def checked(model: Model, images: Tensor, labels: Tensor, batch: int | None) -> tuple[Model, Tensor, Tensor]:
    """The model, the images as floats in [0, 1] and the labels as int64, after the checks in check_input.
    Raises RbError for invalid arguments."""
    check_input.check_model(model)
    if not len(images):
        raise RbError("There are no images. Expected 1 or more.")
    if batch is not None and batch < 1:
        raise RbError(f"batch is {batch}. Expected 1 or more.")
    return check_input.checked(model, images, labels)


def finite_logits(model: Model, images: Tensor, batch: int) -> Tensor:
    """Logits (N, K) in float32, computed for at most `batch` images at a time. Raises RbError if the output
    is not finite or has another shape."""
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
