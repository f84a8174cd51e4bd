"""Models without gradients: functions that return a label or scores for each image."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rbtools.errors import RbError

LEAST = 1e-12  # the least probability whose logarithm is taken
_PROBED = 32  # images whose answers identify a model


class AnsweringModel(nn.Module):
    """A function that maps images float32 (N, C, H, W) in [0, 1] to labels (N,) or scores (N, K).
    Probabilities (`probabilities`) are returned as logarithms, which are logits up to a constant.

    `answers` is "labels", or "logits" for scores, which have no gradient; attacks that need more are refused
    (`attacking.check_answers`). The module returns float32 (N, K); a label is 1 for its class and -1 for the
    others. The function may return NumPy arrays. Raises RbError if it returns anything else.
    """

    def __init__(
        self, function: Callable[[Tensor], Any], answers: str, classes: int, probabilities: bool = False
    ) -> None:
        super().__init__()
        self.function, self.answers, self.classes = function, answers, classes
        self.probabilities = probabilities

    def __deepcopy__(self, memo: object) -> AnsweringModel:
        return self  # it has no weights, and its function may be a process or a connection

    def forward(self, images: Tensor) -> Tensor:
        if not len(images):  # a function of the user need not accept this
            return torch.zeros(0, self.classes, device=images.device)
        with torch.no_grad():
            found = answer(self.function, images)
        if self.answers == "labels":
            if tuple(found.shape) != (len(images),):
                raise RbError(
                    f"The model returned {_shown(found)} for {len(images)} images. Expected one"
                    " label for each image."
                )
            if (wrong := found[(found < 0) | (found >= self.classes)]).numel():
                raise RbError(
                    f"The model returned the label {int(wrong[0])}. Labels go from 0 to {self.classes - 1}."
                )
            found = 2 * torch.nn.functional.one_hot(found.long(), self.classes) - 1
        elif tuple(found.shape) != (len(images), self.classes):
            raise RbError(
                f"The model returned {_shown(found)} for {len(images)} images. Expected scores of shape"
                f" ({len(images)}, {self.classes})."
            )
        found = found.to(images.device, torch.float32)
        return found.clamp_min(LEAST).log() if self.probabilities else found


class TwinGradients(nn.Module):
    """Returns the logits of a network, but the gradients of its twin (a second network) for the images."""

    answers = "logits with gradients"  # also if the network within has none

    def __init__(self, network: nn.Module, twin: nn.Module) -> None:
        super().__init__()
        self.network, self.twin = network, twin

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            logits = self.network(images)
        if not (torch.is_grad_enabled() and images.requires_grad):
            return logits
        of_twin = self.twin(images)
        return logits + (of_twin - of_twin.detach())


def fingerprint(model: AnsweringModel, shape: tuple[int, int, int]) -> str:
    """A digest of what the model returns for 32 fixed images (C, H, W). It distinguishes models that have the
    same code but use different files or services."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (_PROBED, *shape), generator=generator).float().div(255)
    answers = model(images).double().mul(1e4).round().to(torch.int64)
    return hashlib.sha256(answers.numpy().tobytes()).hexdigest()[:16]


def answer(function: Callable[[Tensor], Any], images: Tensor) -> Tensor:
    """Call the function and return its result as a tensor."""
    found = function(images.detach().clone())
    try:
        return torch.as_tensor(found).detach()
    except (TypeError, ValueError, RuntimeError) as wrong:
        raise RbError(
            f"The model returned a {type(found).__name__}. Expected an array of labels (N,) or scores"
            f" (N, K): {wrong}"
        ) from None


def answering(function: Callable[[Tensor], Any], images: Tensor, classes: int) -> AnsweringModel | None:
    """Call a function with a few images, and return its model if it returns labels, or scores without
    gradients. Returns None if it returns logits that have gradients. `classes` is a lower bound of the number
    of classes."""
    with contextlib.suppress(Exception):  # a function of arrays may raise anything
        leaf = images.detach().clone().requires_grad_(True)
        found = function(leaf.clone())  # it may change its images in place
        if isinstance(found, torch.Tensor) and found.requires_grad:
            return None
    try:
        found = answer(function, images)
    except Exception:
        function = _OfArrays(function)
        found = answer(function, images)
    if found.dim() == 1 and not found.is_floating_point() and found.dtype != torch.bool:
        return AnsweringModel(function, "labels", max(classes, int(found.max()) + 1))
    if found.dim() == 2 and len(found) == len(images) and found.is_floating_point():
        whole = bool((found.double().sum(1) - 1).abs().max() < 1e-3) and bool(found.min() >= 0)
        return AnsweringModel(function, "logits", found.shape[1], probabilities=whole and found.shape[1] > 1)
    raise RbError(
        f"The model returned {_shown(found)} for {len(images)} images. Expected labels as whole numbers of"
        " shape (N,), or scores of shape (N, classes)."
    )


class _OfArrays:
    """Wraps a function that takes NumPy arrays, so that it can be called with tensors."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, images: Tensor) -> Any:
        return self.function(images.detach().cpu().numpy().copy())


def _shown(found: Tensor) -> str:
    return f"an array of {found.dtype} of shape {tuple(found.shape)}"
