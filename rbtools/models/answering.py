"""Models that only answer: functions from images to labels, or to scores without gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rbtools.errors import RbError


class AnsweringModel(nn.Module):
    """A function from images float32 (N, C, H, W) in [0, 1] to labels (N,) or scores (N, K).

    `answers` is "labels", or "logits" for scores, which have no gradient; attacks that need more are refused
    (`attacking.check_answers`). The module returns float32 (N, K); a label is 1 for its class and -1 for the
    others. The function may return arrays of NumPy. Raises RbError if it returns anything else.
    """

    def __init__(self, function: Callable[[Tensor], Any], answers: str, classes: int) -> None:
        super().__init__()
        self.function, self.answers, self.classes = function, answers, classes

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            found = answer(self.function, images)
        if self.answers == "labels":
            if found.dim() != 1 or (
                len(found) and not 0 <= int(found.min()) <= int(found.max()) < self.classes
            ):
                raise RbError(
                    f"The model answered with {_shown(found)} for {len(images)} images. Expected one label an"
                    f" image, from 0 to {self.classes - 1}."
                )
            found = 2 * torch.nn.functional.one_hot(found.long(), self.classes) - 1
        elif tuple(found.shape) != (len(images), self.classes):
            raise RbError(
                f"The model answered with {_shown(found)} for {len(images)} images. Expected scores"
                f" ({len(images)}, {self.classes})."
            )
        return found.to(images.device, torch.float32)


def answer(function: Callable[[Tensor], Any], images: Tensor) -> Tensor:
    """What the function returns for images, as a tensor."""
    found = function(images.detach().clone())
    try:
        return torch.as_tensor(found).detach()
    except (TypeError, ValueError, RuntimeError) as wrong:
        raise RbError(
            f"The model answered with a {type(found).__name__}. Expected an array of labels (N,) or scores"
            f" (N, K): {wrong}"
        ) from None


def answering(function: Callable[[Tensor], Any], images: Tensor, classes: int) -> AnsweringModel | None:
    """The model of a function that answers with labels, or with scores without gradients, on a few images;
    None if its outputs are logits of a graph of torch. `classes` is the number of classes at least."""
    with contextlib.suppress(RuntimeError):  # .numpy() of a tensor that requires a gradient
        leaf = images.detach().clone().requires_grad_(True)
        found = function(leaf.clone())  # it may change its images in place
        if isinstance(found, torch.Tensor) and found.requires_grad:
            return None
    found = answer(function, images)
    if found.dim() == 1 and not found.is_floating_point() and found.dtype != torch.bool:
        return AnsweringModel(function, "labels", max(classes, int(found.max()) + 1))
    if found.dim() == 2 and len(found) == len(images) and found.is_floating_point():
        return AnsweringModel(function, "logits", found.shape[1])
    raise RbError(
        f"The model answered with {_shown(found)} for {len(images)} images. Expected labels as whole numbers"
        " (N,), or scores (N, classes)."
    )


def _shown(found: Tensor) -> str:
    return f"an array of {found.dtype} with the shape {tuple(found.shape)}"
