"""The images and labels of `rbtools.fit`, in the forms that users of torch have, and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools import check_input, datasets
from rbtools.datasets import given
from rbtools.errors import RbError, shown
from rbtools.lazy import torch
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
    images, labels = given.pair(data)
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
    return FitData(about.name, about, images.cpu(), labels.cpu())


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
    check_input.check_logits(logits, len(images))
    classes = int(logits.shape[1])
    check_input.check_labels(data.labels, len(data.labels), classes)
    return classes
