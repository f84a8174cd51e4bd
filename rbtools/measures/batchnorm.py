"""Selects the statistics that a network's BatchNorm layers use. This module imports torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.errors import RbError

NORMS = nn.modules.batchnorm._BatchNorm


def use(model: nn.Module, statistics: str) -> bool:
    """Change the statistics of the model's BatchNorm layers permanently. Returns whether the logits of an
    image then depend on its batch.

    With "running", nothing is changed. With "batch", a layer uses the mean and variance of its input batch.
    With "image", a layer uses the mean and variance of each image, as if the image were a separate batch.
    Both compute the same as training mode, except that running statistics and dropout do not change.
    """
    norms = [module for module in model.modules() if isinstance(module, NORMS)]
    if statistics == "running" or not norms:
        return False
    for norm in norms:
        # Without running statistics torch uses those of the batch, also in eval mode.
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
        each = statistics == "image"
        norm.forward = partial(_forward, partial(_of_images, norm) if each else norm.forward, each)  # type: ignore[method-assign]
    return statistics == "batch"


def _forward(forward: Callable[[Tensor], Tensor], each: bool, x: Tensor) -> Tensor:
    """The output of a layer with the statistics of its batch or, if `each` is true, of each image. Raises
    RbError for a single value."""
    if x.numel() // x.shape[1] // (len(x) if each else 1) <= 1:
        raise RbError(
            f"A BatchNorm layer receives a single value per channel (shape {tuple(x.shape)}), which has no"
            " variance. Use more images (--batch-size) with --batchnorm batch, or use --batchnorm running."
        )
    return forward(x)


def _of_images(norm: nn.modules.batchnorm._BatchNorm, x: Tensor) -> Tensor:
    return F.instance_norm(x, weight=norm.weight, bias=norm.bias, eps=norm.eps)
