"""Networks with the BatchNorm statistics of some images, and hints with other images of the same kind."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from rbtools.datasets.normalization import CLASSES, NORMALIZATIONS
from rbtools.inputs.checkpoints import named_arch
from rbtools.models import build, statistics
from rbtools.models.checkpoint import NormalizationHints
from rbtools.models.normalising import behind

SIDE, HALF = 16, 48
KNOWN = {
    "none": None,
    **{name: (pair.mean, pair.std) for name, pair in NORMALIZATIONS.items() if len(pair.mean) == 3},
    "half": ((0.5,), (0.5,)),
    "per-image": "per-image",
}


@cache
def photographs() -> Tensor:
    """Photographs in their spectrum: the first half is trained on, the second evaluated."""
    fine = torch.rand(2 * HALF, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    return 0.75 * statistics.synthetic((3, SIDE, SIDE), 2 * HALF) + 0.25 * fine


def hints(images: Tensor | None = None) -> NormalizationHints:
    """The known normalisations, and these images or those of the evaluation."""
    seen = photographs()[HALF:] if images is None else images
    return NormalizationHints(lambda: seen, KNOWN, CLASSES)


@torch.no_grad()
def calibrated(network: nn.Module, normalize: object = None) -> nn.Module:
    """The network, whose BatchNorm statistics are those of the training photographs."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the plain mean over the batches
    behind(network, normalize).train()(photographs()[:HALF])
    return network.eval()


def made(name: str, normalize: object = None, classes: int = 10) -> nn.Module:
    """A network of that name with random weights, calibrated."""
    torch.manual_seed(0)
    return calibrated(build(named_arch(name), classes=classes, shape=(3, SIDE, SIDE)), normalize)


def waves(side: int = 32) -> Tensor:
    """Two images (2, 3, side, side) by formula."""
    sizes = (torch.arange(size, dtype=torch.float64) for size in (2, 3, side, side))
    n, c, h, w = torch.meshgrid(*sizes, indexing="ij")
    return (0.5 + 0.3 * torch.sin(n + 2 * c + 0.4 * h) + 0.2 * torch.cos(0.9 * w * (n + 1) + c)).float()
