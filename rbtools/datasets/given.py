"""Converts images and labels that a caller passes as arrays, a Dataset or a DataLoader."""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING, Any

from rbtools import check_input
from rbtools.errors import RbError, shown
from rbtools.lazy import np, torch

if TYPE_CHECKING:
    from torch import Tensor


def pair(data: Any, *, in_order: bool = False) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W), uint8 or floats in [0, 1], and labels int64 (N,) of `data`.

    `data` is a pair (images, labels) of tensors or arrays, or a torch Dataset or DataLoader of such pairs. If
    `in_order` is true, stored results depend on the order of the images, and a DataLoader must not shuffle.
    Raises RbError if `data` is anything else.
    """
    images, labels = (value.clone() if value.is_inference() else value for value in _tensors(data, in_order))
    check_input.check_images(images)
    check_input.check_labels(labels, len(images))
    return images.detach(), labels.detach().to(images.device).long()


def _tensors(data: Any, in_order: bool) -> tuple[Tensor, Tensor]:
    if isinstance(data, tuple | list) and len(data) == 2:
        return _tensor(data[0]), _tensor(data[1])
    loads = isinstance(data, torch.utils.data.DataLoader)
    if loads and in_order and not isinstance(data.sampler, torch.utils.data.SequentialSampler):
        raise RbError(
            "The loader shuffles its images, but results in a store depend on the order of the images."
            " Pass a loader with shuffle=False, or leave out store."
        )
    if loads or (isinstance(data, Sized) and hasattr(data, "__getitem__") and not isinstance(data, dict)):
        entries = list(data) if loads else [data[number] for number in range(len(data))]
        if entries and all(isinstance(entry, tuple | list) and len(entry) == 2 for entry in entries):
            both = zip(*([_tensor(value) for value in entry] for entry in entries), strict=True)
            try:
                images, labels = (torch.cat(values) if loads else torch.stack(values) for values in both)
            except RuntimeError as wrong:
                raise RbError(
                    f"The images of the {type(data).__name__} do not all have the same size"
                    f" ({shown(str(wrong), 100)}). Resize or crop them to one size."
                ) from wrong
            return images, labels
    length = f" of length {len(data)}" if isinstance(data, Sized) else ""
    raise RbError(
        f"The data are of type {type(data).__name__}{length}. Expected a pair (images, labels) of tensors"
        " or arrays, a torch Dataset or DataLoader of such pairs, or the name of a data set such as 'digits'."
    )


def _tensor(values: Any) -> Tensor:
    try:
        return values if isinstance(values, torch.Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError) as wrong:
        raise RbError(
            f"The data contain a {type(values).__name__}, which is not an array of numbers"
            f" ({shown(str(wrong), 100)}). Expected tensors: create a torchvision data set with"
            " transform=transforms.ToTensor()."
        ) from wrong
