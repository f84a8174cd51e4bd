"""Check a caller's objects in memory: images, labels, a model and its logits. Each function raises RbError,
whose message says what was found, what was expected and what to do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError
from rbtools.lazy import nn, torch

if TYPE_CHECKING:
    from torch import Tensor

PROBED = 4  # the number of images that test whether a model gives logits
_CHANNELS = 4  # at most
# Modules that compute another function in training mode.
_BY_MODE = ("BatchNorm", "Dropout", "DropPath", "StochasticDepth")


def check_images(images: Tensor) -> None:
    """Images (N, C, H, W): floats in [0, 1], or uint8."""
    if not isinstance(images, torch.Tensor):
        raise RbError(
            f"The images are of type {type(images).__name__}. Expected a tensor (N, C, H, W):"
            " torch.as_tensor(images)."
        )
    shape = tuple(images.shape)
    if images.dim() != 4 or 0 in shape[1:]:
        raise RbError(f"The images have the shape {shape}. Expected (N, C, H, W){_dimensions(shape)}.")
    if shape[3] <= _CHANNELS < shape[1]:
        raise RbError(
            f"The images have the shape {shape}, with channels last. Expected (N, C, H, W):"
            " images.permute(0, 3, 1, 2)."
        )
    if images.dtype == torch.uint8:
        return
    if not images.is_floating_point():
        raise RbError(
            f"The images are of type {images.dtype}. Expected floats in [0, 1], or torch.uint8 from 0 to 255."
        )
    if not len(images):
        return
    low, high = float(images.min()), float(images.max())
    if low >= 0 and high <= 1:
        return
    if not math.isfinite(low + high):
        raise RbError("The images have values that are no numbers (NaN) or infinite. Expected [0, 1].")
    if low >= 0 and 1 < high <= 255:
        advice = "Divide them by 255."
    else:
        advice = "Undo the normalisation: it belongs into the model, as its first layer."
    raise RbError(f"The images have values from {low:.4g} to {high:.4g}. Expected [0, 1]. {advice}")


def _dimensions(shape: tuple[int, ...]) -> str:
    """How images of this shape get four dimensions."""
    if len(shape) == 3 and shape[2] <= _CHANNELS < shape[0]:
        return ": of one image (H, W, C) images.permute(2, 0, 1)[None]"
    if len(shape) == 3:
        one = ", of one image (C, H, W) images[None]" if shape[0] <= _CHANNELS else ""
        return f": of greyscale images (N, H, W) images[:, None]{one}"
    if len(shape) == 2:
        return ": of one greyscale image images[None, None], of rows of pixels images.view(-1, C, H, W)"
    return ""


def floats(images: Tensor) -> Tensor:
    """Images as float32 in [0, 1], without a graph. Raises RbError as `check_images` does."""
    check_images(images)
    return images.detach().float().div(255) if images.dtype == torch.uint8 else images.detach().float()


def check_labels(labels: Tensor, n: int, classes: int | None = None) -> None:
    """Class numbers (n,) from 0 to `classes` - 1."""
    if not isinstance(labels, torch.Tensor):
        raise RbError(f"The labels are of type {type(labels).__name__}. Expected a tensor ({n},).")
    shape = tuple(labels.shape)
    if labels.dim() == 2 and shape[0] == n and shape[1] > 1:
        raise RbError(
            f"The labels have the shape {shape}, as if they were one-hot. Expected class numbers ({n},):"
            " labels.argmax(1)."
        )
    if shape != (n,):
        raise RbError(f"The labels have the shape {shape}. Expected ({n},), one for each image.")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise RbError(f"The labels are of type {labels.dtype}. Expected class numbers: labels.long().")
    if not n:
        return
    low, high = int(labels.long().min()), int(labels.long().max())
    if low < 0 or (classes is not None and high >= classes):
        expected = "0 or more" if classes is None else f"0 to {classes - 1}, the classes of the model"
        advice = " Where they start at 1, give labels - 1." if low == 1 and high == classes else ""
        raise RbError(f"The labels are from {low} to {high}. Expected {expected}.{advice}")


def check_model(model: Any) -> None:
    """A callable; a module whose layers compute the same for every batch (eval mode)."""
    if not callable(model):
        raise RbError(
            f"The model is of type {type(model).__name__}. Expected a module or a function from images in"
            " [0, 1] to logits."
        )
    if (layer := layer_in_train_mode(model)) is not None:
        raise RbError(
            f"The model is in training mode, in which its {layer} depends on the batch or on chance. Call"
            " model.eval() first."
        )


def layer_in_train_mode(model: Any) -> str | None:
    """The kind and name of a layer in train mode that computes another function there; None without one."""
    for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
        kind = type(module).__name__
        if module.training and any(word in kind for word in _BY_MODE):
            return f"{kind} ({name})"
    return None


def check_device(model: Any, device: torch.device, whose: str = "The images are") -> None:
    """A module whose parameters are on this device."""
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    if first is not None and first.device != device:
        raise RbError(
            f"{whose} on {device}, the model is on {first.device}. Expected one device: model.to('{device}')."
        )


def checked(
    model: Any, images: Tensor, labels: Tensor, *, every: Tensor | None = None, probabilities: bool = False
) -> tuple[Tensor, Tensor]:
    """Images as floats (N, C, H, W) in [0, 1] and labels int64 (N,), both right for the model. every: all
    labels of data of which these images are the first; probabilities: see `classes_of`."""
    images = floats(images)
    check_device(model, images.device)
    check_labels(labels, len(images))
    labels = labels.to(images.device)
    every = labels if every is None else every
    check_labels(every, len(every), classes_of(model, images[:PROBED], probabilities=probabilities))
    return images, labels.long()


def classes_of(model: Any, images: Tensor, *, probabilities: bool = False) -> int:
    """The number of classes of a model that gives logits for these images, or with `probabilities` those.
    Raises RbError for others."""
    with torch.no_grad():
        logits = model(floats(images))
    check_logits(logits, len(images), probabilities)
    return int(logits.shape[1])


def check_logits(logits: Any, n: int, probabilities: bool = False) -> None:
    """Logits (n, K) of n images: floats, and not the probabilities of a softmax, unless these may be."""
    if not isinstance(logits, torch.Tensor) or logits.dim() != 2 or len(logits) != n or logits.shape[1] < 2:
        found = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise RbError(
            f"The model gives {found} for {n} images. Expected logits ({n}, classes): wrap it in a module"
            " that returns them."
        )
    if not logits.is_floating_point():
        raise RbError(
            f"The model gives values of type {logits.dtype}. Expected logits as floats, not predictions."
        )
    if not bool(logits.isfinite().all()):
        raise RbError("The model gives NaN or infinite logits. Check its weights and its normalisation.")
    if n and not probabilities and bool(((logits >= 0).all(1) & ((logits.sum(1) - 1).abs() < 1e-4)).all()):
        raise RbError(
            "The model gives probabilities: each row is not negative and sums to 1. Expected logits: leave"
            " out the softmax, whose gradient vanishes, so that attacks look weak."
        )
