"""Normalisation as the first layer of a model, whose inputs are then pixels in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rbtools.errors import RbError

PER_IMAGE = "per-image"  # the normalisation of each image by its own mean and standard deviation
Pair = tuple[tuple[float, ...], tuple[float, ...]]  # mean and std of each channel, or one for all
Known = Pair | str | None  # a normalisation: a pair, PER_IMAGE, or None for unchanged pixels
NEAR_STD, NEAR_MEAN = 1.3, 0.1  # accuracies cannot distinguish normalisations that are this similar


class Preprocessed(nn.Module):
    """A network after preprocessing that has no weights. The input is images (N, C, H, W) in [0, 1]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def inputs(self, images: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        return self.network(self.inputs(images))


class Normalized(Preprocessed):
    """Applies `network` to (images - mean) / std, for images (N, C, H, W) in [0, 1].

    `mean` and `std` have one number per channel or one for all channels. Raises RbError if a standard
    deviation is not positive or a value is not finite.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, network: nn.Module, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor
    ) -> None:
        super().__init__(network)
        mean, std = per_channel(mean), per_channel(std)
        if len(mean) != len(std):
            raise RbError(
                f"The normalisation has {len(mean)} means and {len(std)} standard deviations."
                " Give one of each per channel."
            )
        for values, low in ((mean, -math.inf), (std, 0.0)):
            if not (torch.isfinite(values).all() and (values > low).all()):
                raise RbError(
                    f"Images cannot be normalised with mean {mean.tolist()} and std {std.tolist()}."
                    " Expected finite numbers, and standard deviations above 0."
                )
        self.register_buffer("mean", mean.view(-1, 1, 1))
        self.register_buffer("std", std.view(-1, 1, 1))

    def inputs(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


class PerImageStandardization(Preprocessed):
    """Applies `network` after standardising each image by itself (Ding et al., ICLR 2020, MMA training).

    The input of the network is (x - mean) / max(std, 1/sqrt(CHW)), with mean and standard deviation over all
    pixels of one image (C, H, W). The standard deviation is the unbiased estimate, as in advertorch.
    """

    def inputs(self, images: Tensor) -> Tensor:
        spread, mean = torch.std_mean(images, dim=(1, 2, 3), keepdim=True)
        return (images - mean) / spread.clamp_min(images[0].numel() ** -0.5)


def behind(network: nn.Module, normalize: str | Sequence[Sequence[float]] | None) -> nn.Module:
    """Returns the network after a normalisation: [mean, std], PER_IMAGE, or None for no normalisation."""
    if normalize is None:
        return network
    return PerImageStandardization(network) if normalize == PER_IMAGE else Normalized(network, *normalize)


def per_channel(values: Sequence[float] | Tensor) -> Tensor:
    """Returns a float32 copy of shape (C,) of numbers or of a tensor such as (1, C, 1, 1)."""
    return torch.as_tensor(values, dtype=torch.float32).detach().clone().reshape(-1)


def kinds(known: Mapping[str, Known]) -> list[str]:
    """Returns the first name of each group of similar normalisations."""
    names: list[str] = []
    for name, pair in known.items():
        if not any(_near(pair, known[one]) for one in names):
            names.append(name)
    return names


def _near(one: Known, other: Known) -> bool:
    if one is None or other is None or isinstance(one, str) or isinstance(other, str):
        return one == other
    (mean, std), (others_mean, others_std) = (map(torch.tensor, pair) for pair in (one, other))
    shift, ratio = (mean - others_mean).abs().max(), (std / others_std).log().abs().max().exp()
    return bool(shift <= NEAR_MEAN) and bool(ratio <= NEAR_STD)
