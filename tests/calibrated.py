"""Networks with random weights and the images that they label: each label is what the network says."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rbtools.datasets.normalization import CLASSES, NORMALIZATIONS
from rbtools.inputs.named_networks import named_arch
from rbtools.models import build
from rbtools.models.checkpoint import NormalizationHints
from rbtools.models.normalize import Known, behind

SIDE, COUNT = 16, 128
KNOWN: dict[str, Known] = {
    "none": None,
    **{name: (pair.mean, pair.std) for name, pair in NORMALIZATIONS.items() if len(pair.mean) == 3},
    "half": ((0.5,), (0.5,)),
    "per-image": "per-image",
}


def images() -> Tensor:
    """Random images (COUNT, 3, SIDE, SIDE) in [0, 1] of different brightness and contrast."""
    chance = torch.Generator().manual_seed(0)
    low, high = torch.rand(2, COUNT, 3, 1, 1, generator=chance).sort(0).values
    return low + (high - low) * torch.rand(COUNT, 3, SIDE, SIDE, generator=chance)


@torch.no_grad()
def made(name: str, normalize: Known = None, classes: int = 10) -> tuple[nn.Module, Tensor]:
    """A network of that name, and its labels (COUNT,) of the images; BatchNorm has their statistics, so that
    the network tells them apart.
    """
    torch.manual_seed(0)
    network = build(named_arch(name), classes=classes, shape=(3, SIDE, SIDE))
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    model = behind(network, normalize)
    model.train()(images())
    return network.eval(), model.eval()(images()).argmax(1)


def hints(labels: Tensor, known: dict[str, Known] | None = None) -> NormalizationHints:
    """The known normalisations, and the images with these labels."""
    batches = images().split(32), labels.split(32)
    return NormalizationHints(KNOWN if known is None else known, CLASSES, lambda: zip(*batches, strict=True))


def waves(side: int = 32) -> Tensor:
    """Two images (2, 3, side, side) by formula."""
    sizes = (torch.arange(size, dtype=torch.float64) for size in (2, 3, side, side))
    n, c, h, w = torch.meshgrid(*sizes, indexing="ij")
    return (0.5 + 0.3 * torch.sin(n + 2 * c + 0.4 * h) + 0.2 * torch.cos(0.9 * w * (n + 1) + c)).float()
