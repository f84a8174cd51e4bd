"""Checks of images, labels, models and logits, which raise RbError with advice on what to do."""

from __future__ import annotations

import contextlib
import copy
import math
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError, optional
from rbtools.lazy import nn, torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.hooks import RemovableHandle

PROBED = 4  # number of images that test whether a model returns logits
_CHANNELS = 4  # maximum number of channels
COPIES = "its forward pass changes its input in place, so it receives a copy of each batch"
# Modules that compute something else in training mode.
_BY_MODE = ("BatchNorm", "Dropout", "DropPath", "StochasticDepth")


def check_images(images: Tensor) -> None:
    """Check that images (N, C, H, W) are floats in [0, 1] or uint8."""
    if not isinstance(images, torch.Tensor):
        raise RbError(
            f"The images are of type {type(images).__name__}. Expected a tensor (N, C, H, W). Use"
            " torch.as_tensor(images)."
        )
    shape = tuple(images.shape)
    if images.dim() != 4 or 0 in shape[1:]:
        raise RbError(f"The images have the shape {shape}. Expected (N, C, H, W).{_dimensions(shape)}")
    if shape[3] <= _CHANNELS < shape[1]:
        raise RbError(
            f"The images have the shape {shape}, with channels last. Expected (N, C, H, W). Use"
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
        raise RbError("The images contain NaN or infinite values. Expected values in [0, 1].")
    if low >= 0 and 1 < high <= 255:
        advice = "Divide them by 255."
    else:
        advice = "Undo the normalisation, and make it the first layer of the model instead."
    raise RbError(f"The images have values from {low:.4g} to {high:.4g}. Expected values in [0, 1]. {advice}")


def _dimensions(shape: tuple[int, ...]) -> str:
    if len(shape) == 3 and shape[2] <= _CHANNELS < shape[0]:
        return " For one image (H, W, C), use images.permute(2, 0, 1)[None]."
    if len(shape) == 3:
        one = " For one image (C, H, W), use images[None]." if shape[0] <= _CHANNELS else ""
        return f" For greyscale images (N, H, W), use images[:, None].{one}"
    if len(shape) == 2:
        return " For one greyscale image, use images[None, None]; for flat images, images.view(-1, C, H, W)."
    return ""


def floats(images: Tensor) -> Tensor:
    """Return the images as float32 in [0, 1], detached from the graph. Raises RbError like `check_images`."""
    check_images(images)
    images = images.clone() if images.is_inference() else images
    return images.detach().float().div(255) if images.dtype == torch.uint8 else images.detach().float()


def check_labels(labels: Tensor, n: int, classes: int | None = None) -> None:
    """Check that class numbers (n,) are from 0 to `classes` - 1."""
    if not isinstance(labels, torch.Tensor):
        raise RbError(f"The labels are of type {type(labels).__name__}. Expected a tensor ({n},).")
    shape = tuple(labels.shape)
    if labels.dim() == 2 and shape[0] == n and shape[1] > 1:
        raise RbError(
            f"The labels have the shape {shape}, as if they were one-hot. Expected class numbers ({n},)."
            " Use labels.argmax(1)."
        )
    if shape != (n,):
        raise RbError(f"The labels have the shape {shape}. Expected ({n},), one label for each image.")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise RbError(f"The labels are of type {labels.dtype}. Expected class numbers. Use labels.long().")
    if not n:
        return
    low, high = int(labels.long().min()), int(labels.long().max())
    if low < 0 or (classes is not None and high >= classes):
        expected = "0 or more" if classes is None else f"0 to {classes - 1}, the classes of the model"
        advice = " If they start at 1, pass labels - 1." if low == 1 and high == classes else ""
        raise RbError(f"The labels range from {low} to {high}. Expected {expected}.{advice}")


def check_model(model: Any) -> None:
    """Check that the model is callable and that no layer in train mode depends on the batch or is random."""
    if not callable(model):
        raise RbError(
            f"The model is of type {type(model).__name__}. Expected a module or a function from images in"
            " [0, 1] to logits."
        )
    if (layer := layer_in_train_mode(model)) is not None:
        raise RbError(
            f"The model is in training mode, in which its {layer} depends on the batch or is random. Call"
            " model.eval() first."
        )


def layer_in_train_mode(model: Any) -> str | None:
    """Return the type and name of a layer that is in train mode and behaves differently then, or None."""
    for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
        kind = type(module).__name__
        if module.training and any(word in kind for word in _BY_MODE):
            return f"{kind} ({name})"
    return None


def check_device(model: Any, device: torch.device, whose: str = "The images are") -> None:
    """Check that the parameters of a module are on this device."""
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    if first is not None and first.device != device:
        raise RbError(
            f"{whose} on {device}, but the model is on {first.device}. Move it with model.to('{device}')."
        )


def checked(
    model: Any, images: Tensor, labels: Tensor, *, every: Tensor | None = None, probabilities: bool = False
) -> tuple[Any, Tensor, Tensor]:
    """Returns the model from `look`, images as floats (N, C, H, W) in [0, 1] and labels int64 (N,). Raises
    RbError if images or labels do not fit the model. `every` contains all labels of the data if the images
    are only a part.
    """
    images = floats(images)
    check_device(model, images.device)
    check_labels(labels, len(images))
    labels = labels.to(images.device)
    model, classes = look(model, images[:PROBED], probabilities=probabilities)
    every = labels if every is None else every
    check_labels(every, len(every), classes)
    return model, images, labels.long()


def look(model: Any, images: Tensor, *, probabilities: bool = False) -> tuple[Any, int]:
    """Run the model on a few images and on one image. Returns the model and the number of classes.

    If the model changes its images in place, the returned model receives copies. Raises RbError if the model
    does not return logits; with `probabilities`, probabilities are allowed.
    """
    images = floats(images)
    given = images.clone()
    version = given._version
    try:
        with torch.no_grad():
            logits = model(given)
    except RuntimeError as wrong:
        first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        if first is None or first.dtype == torch.float32 or not first.is_floating_point():
            raise
        raise RbError(
            f"The model has weights of type {first.dtype} and fails on images of type torch.float32"
            f" ({str(wrong)[:100]}). Convert it to float32 with model.float()."
        ) from wrong
    check_logits(logits, len(images), probabilities)
    if _changed(given, version, images):
        warnings.warn(f"The model: {COPIES}.", stacklevel=3)
        model = _with_copies(model)
    if len(images) > 1:
        with optional(), _same_numbers(images.device), torch.no_grad():
            check_shape(model(images[:1]), 1, int(logits.shape[1]))
    return model, int(logits.shape[1])


def give_copies(model: Any, images: tuple[Any, ...]) -> tuple[Any, ...]:
    """The hook for a network that changes its input in place. It replaces the images with a copy."""
    return images[0].clone(), *images[1:]


def keep_images(network: nn.Module, shape: tuple[int, int, int]) -> RemovableHandle | None:
    """If a network changes its images (N, C, H, W) in place, in eval or train mode, let it receive copies
    from now on. Returns None if the network does not change two random images."""
    first = next(network.parameters(), None)
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    images = images if first is None else images.to(first.device)
    for training in (False, True):
        given = images.clone()
        version = given._version
        with optional(), _same_numbers(images.device), torch.no_grad():
            alone = copy.deepcopy(network)  # a pass in train mode changes the statistics of BatchNorm
            (alone if alone.training == training else alone.train(training))(given)
        if _changed(given, version, images):
            if isinstance(network, torch.jit.ScriptModule):
                raise RbError(
                    "The network is a TorchScript program that changes its input in place, and it"
                    " cannot receive copies. Use the module from which it was created, or a module"
                    " that calls it with images.clone()."
                )
            return network.register_forward_pre_hook(give_copies, prepend=True)
    return None


def check_outputs(network: nn.Module, shape: tuple[int, int, int], classes: int) -> None:
    """Check that a network returns logits (N, classes) for one and for two images (C, H, W), in eval and
    train mode. A pass that fails inside the network's code is ignored."""
    images = torch.zeros(2, *shape, device=next(network.parameters()).device)
    for mode in ("eval", "train"):
        for n in (2, 1):
            with optional(), _same_numbers(images.device), torch.no_grad():
                alone = copy.deepcopy(network).train(mode == "train")
                check_shape(alone(images[:n]), n, classes, f" in {mode} mode")


def gets_copies(network: nn.Module) -> bool:
    """True if a network or a part of it changes its input in place and therefore receives copies."""
    return any(give_copies in module._forward_pre_hooks.values() for module in network.modules())


def _changed(given: Tensor, version: int, images: Tensor) -> bool:
    """True if a pass wrote into its images. The counter of torch includes writes that change no value."""
    return given._version != version or not torch.equal(given, images)


def _with_copies(model: Any) -> Any:
    if not isinstance(model, nn.Module):
        return lambda images: model(images.clone())
    if isinstance(model, torch.jit.ScriptModule):  # hooks are not supported
        same: nn.Module = nn.Sequential(model).train(model.training)
    else:
        same = copy.copy(model)
        same._forward_pre_hooks = model._forward_pre_hooks.copy()
    same.register_forward_pre_hook(give_copies, prepend=True)
    return same


def _same_numbers(device: torch.device) -> Any:
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


@contextlib.contextmanager
def outside_inference() -> Iterator[None]:
    """A context, or decorator, in which gradients are computed even within torch.inference_mode()."""
    if "torch" not in sys.modules or not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False):
        yield


def check_shape(logits: Any, n: int, classes: int, mode: str = "") -> None:
    """Check logits (n, classes) of n images. `mode` is the model's mode, for the message."""
    if not isinstance(logits, torch.Tensor) or tuple(logits.shape) != (n, classes):
        found = f"shape {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise RbError(
            f"The model returns {found} for {n} images of {classes} classes{mode}. Expected"
            f" only logits of shape ({n}, {classes})."
        )


def check_logits(logits: Any, n: int, probabilities: bool = False) -> None:
    """Check that logits (n, K) of n images are floats and not a softmax (unless `probabilities`)."""
    if not isinstance(logits, torch.Tensor) or logits.dim() != 2 or len(logits) != n or logits.shape[1] < 2:
        found = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise RbError(
            f"The model returns {found} for {n} images. Expected logits ({n}, classes). Wrap the model in a"
            " module that returns only the logits."
        )
    if not logits.is_floating_point():
        raise RbError(f"The model returns values of type {logits.dtype}. Expected floating-point logits.")
    if not bool(logits.isfinite().all()):
        raise RbError("The model returns NaN or infinite logits. Check its weights and its normalisation.")
    if n and not probabilities and bool(((logits >= 0).all(1) & ((logits.sum(1) - 1).abs() < 1e-4)).all()):
        raise RbError(
            "The model returns probabilities: no value is negative, and each row sums to 1. Expected logits."
            " Remove the softmax, because its vanishing gradient makes attacks look weak."
        )
