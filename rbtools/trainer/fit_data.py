"""The images and labels of `rbtools.fit`, in the forms that users of torch have, and their checks."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools import datasets
from rbtools.errors import RbError, shown
from rbtools.lazy import np, torch
from rbtools.trainer.augment import pixels
from rbtools.training.base import mode

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rbtools.datasets.streaming import Streamed


@dataclass(frozen=True, eq=False)
class FitData:
    """A training split in memory: images uint8, or float32 in [0, 1], (N, C, H, W); labels int64 (N,)."""

    name: str
    about: datasets.Description
    images: Tensor | Streamed
    labels: Tensor

    def load(self) -> FitData:
        """The split itself: see inputs.data.Data, in whose place it stands."""
        return self


def read(data: Any) -> FitData:
    """The training split of a data set's name, a pair (images, labels) of tensors or arrays, or a torch
    Dataset or DataLoader of such pairs, which is read once. Raises RbError for anything else.
    """
    if isinstance(data, str):
        about, split = datasets.describe(data), datasets.load(data, "train")
        return FitData(data, about, split.images, split.labels)
    images, labels = _pair(data)
    check_images(images)
    check_labels(labels, len(images))
    images = images if images.dtype == torch.uint8 else images.float()
    channels, height, width = images.shape[1:]
    classes = int(labels.max()) + 1
    about = datasets.Description(
        name="images in memory",
        shape=(channels, height, width),
        classes=classes,
        class_names=[str(number) for number in range(classes)],
        sizes={"train": len(images)},
        augment=("crop", "flip") if channels == 3 else (),  # as of an .npz file
    )
    return FitData(about.name, about, images.detach().cpu(), labels.detach().cpu().long())


def _pair(data: Any) -> tuple[Tensor, Tensor]:
    """The images and labels of data in any form but a name."""
    if isinstance(data, tuple | list) and len(data) == 2:
        return _tensor(data[0]), _tensor(data[1])
    in_batches = isinstance(data, torch.utils.data.DataLoader)
    in_order = isinstance(data, Sized) and hasattr(data, "__getitem__") and not isinstance(data, dict)
    if in_batches or in_order:
        entries = list(data) if in_batches else [data[number] for number in range(len(data))]
        if entries and all(isinstance(entry, tuple | list) and len(entry) == 2 for entry in entries):
            both = zip(*([_tensor(value) for value in entry] for entry in entries), strict=True)
            try:
                images, labels = (torch.cat(one) if in_batches else torch.stack(one) for one in both)
            except RuntimeError as wrong:
                raise RbError(
                    f"The images of the {type(data).__name__} do not have one size"
                    f" ({shown(str(wrong), 100)}). Resize or crop them to one."
                ) from wrong
            return images, labels
    raise RbError(
        f"The data are {_described(data)}. Expected a pair (images, labels) of tensors or arrays, a torch"
        " Dataset or DataLoader of such pairs, or the name of a data set such as 'digits'."
    )


def _described(data: Any) -> str:
    length = f" of length {len(data)}" if isinstance(data, Sized) else ""
    return f"of the type {type(data).__name__}{length}"


def _tensor(values: Any) -> Tensor:
    """Values as a tensor. Raises RbError where they are no numbers."""
    try:
        return values if isinstance(values, torch.Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError) as wrong:
        raise RbError(
            f"The data hold {type(values).__name__}, which is no array of numbers ({shown(str(wrong), 100)})."
            " Expected tensors: of a torchvision data set, give it transform=transforms.ToTensor()."
        ) from wrong


def check_images(images: Tensor) -> None:
    """Raise RbError unless images are uint8, or float in [0, 1], of the shape (N, C, H, W)."""
    shape = tuple(images.shape)
    if len(shape) != 4 or 0 in shape:
        raise RbError(f"The images have the shape {shape}. Expected (N, C, H, W).")
    if shape[1] > 4 >= shape[3]:
        raise RbError(
            f"The images have the shape {shape}, which looks like (N, H, W, C). Expected (N, C, H, W): use"
            " images.permute(0, 3, 1, 2)."
        )
    if images.dtype == torch.uint8:
        return
    if not images.is_floating_point():
        raise RbError(f"The images are {images.dtype}. Expected uint8, or float from 0 to 1.")
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):
        raise RbError(
            f"The images have values from {low:.4g} to {high:.4g}. Expected 0 to 1. Do not normalise them:"
            " the normalisation belongs into the model, as its first layer."
        )


def check_labels(labels: Tensor, n: int, classes: int | None = None) -> None:
    """Raise RbError unless labels are whole numbers (n,), from 0 to `classes` - 1."""
    if labels.ndim == 2 and len(labels) == n:
        raise RbError(
            f"The labels have the shape {tuple(labels.shape)}, as one-hot labels have. Expected class numbers"
            f" ({n},): use labels.argmax(1)."
        )
    if labels.shape != (n,):
        raise RbError(f"The labels have the shape {tuple(labels.shape)} for {n} images. Expected ({n},).")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise RbError(f"The labels are {labels.dtype}. Expected class numbers: use labels.long().")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (classes is not None and high >= classes):
        most = "" if classes is None else f" to {classes - 1}, as the model has {classes} outputs"
        raise RbError(f"The labels are from {low} to {high}. Expected class numbers from 0{most}.")


def check_logits(logits: Any, n: int) -> None:
    """Raise RbError unless a model's outputs for n images are logits (n, classes)."""
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != n:
        shape = f" of the shape {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else ""
        raise RbError(
            f"The model returns a {type(logits).__name__}{shape} for {n} images. Expected logits"
            f" ({n}, classes)."
        )
    if not bool(logits.isfinite().all()):
        raise RbError("The model returns NaN or infinite logits. Check its weights.")
    total, one = logits.sum(1), torch.ones(n).to(logits)
    if logits.shape[1] > 1 and bool((logits >= 0).all()) and torch.allclose(total, one, atol=1e-3):
        raise RbError(
            "The model returns probabilities that sum to 1. Expected logits: leave out the final softmax."
        )


def check_model(model: nn.Module, data: FitData, device: torch.device) -> int:
    """The number of outputs of a model on the device. Raises RbError unless they are logits of the images."""
    images = pixels(data.images[:2].to(device))
    try:
        with torch.no_grad(), mode(model, train=False):
            logits = model(images)
    except Exception as wrong:  # a module of the user's may raise anything
        raise RbError(
            f"The model raises {type(wrong).__name__}: {shown(str(wrong).strip(), 300)} It is given float32"
            f" images {tuple(images.shape)} on {device.type}, and logits are expected."
        ) from wrong
    check_logits(logits, len(images))
    classes = int(logits.shape[1])
    check_labels(data.labels, len(data.labels), classes)
    return classes
