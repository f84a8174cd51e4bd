"""A module and its images in memory, in the place of a record and its data set."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from rbtools import check_input, datasets
from rbtools.datasets import given
from rbtools.errors import RbError
from rbtools.inputs.data import InMemory, MemoryData
from rbtools.lazy import nn, torch
from rbtools.records import SCHEMA
from rbtools.store import digest

if TYPE_CHECKING:
    from torch import Tensor

NAME = "images in memory"


def record_of(model: nn.Module, data: Any) -> InMemory:
    """The record of a module and its images, for every function that takes a record.

    model: images in [0, 1] -> logits, in eval mode. data: (images, labels), a Dataset or a DataLoader. Raises
    RbError for data in another form, and for a model without weights.
    """
    weights = weights_hash(model)
    images, labels = given.pair(data, in_order=True)
    check_input.check_model(model)
    parameter = next(model.parameters(), None)
    place = images.device if parameter is None else parameter.device
    classes = check_input.classes_of(model, images[: check_input.PROBED].to(place))
    check_input.check_labels(labels, len(images), classes)
    channels, height, width = images.shape[1:]
    names, size = [str(number) for number in range(classes)], len(images)
    about = datasets.Description(
        name=NAME,
        shape=(channels, height, width),
        classes=classes,
        class_names=names,
        sizes={"test": size, "train": size},
    )
    dataset = datasets.Dataset(
        name=NAME,
        split="test",
        classes=classes,
        class_names=names,
        images=images.cpu(),
        labels=labels.cpu(),
    )
    fingerprint = images_hash(images, labels)
    arch = {"space": "memory", "name": weights["class"].rpartition(".")[2]}
    fields = {"schema": SCHEMA, "arch": arch, "checkpoint": f"sha256:{digest(weights)}"}
    split = MemoryData(NAME, "test", about, fingerprint, size, None, None, None, dataset)
    return InMemory(fields, model, split)


def weights_hash(model: Any) -> dict[str, str]:
    """What results of a module are kept by: its class, and the hash of its layers and weights. Raises RbError
    for a function, which has none."""
    if not isinstance(model, nn.Module):
        raise RbError(
            f"The model is of type {type(model).__name__}, without weights that its results could be kept by."
            " Give an nn.Module, or leave out store."
        )
    kind, content = type(model), hashlib.sha256(repr(model).encode())
    for name, value in model.state_dict().items():
        content.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        content.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return {"class": f"{kind.__module__}.{kind.__qualname__}", "weights": content.hexdigest()}


def images_hash(images: Any, labels: Tensor) -> str:
    """A hash of images and labels."""
    content = hashlib.sha256(f"{images.dtype} {tuple(images.shape)}".encode())
    for part in images.split(1024):
        content.update(part.cpu().contiguous().numpy().tobytes())
    content.update(labels.cpu().numpy().tobytes())
    return content.hexdigest()
