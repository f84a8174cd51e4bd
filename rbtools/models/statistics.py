"""What BatchNorm remembers: the images that a network was trained on, as each of its layers saw them.

A network keeps the mean and variance of every channel that its BatchNorm layers met in training. Which of
several normalisations, or of several networks with the same weights, those belong to is told by running
images and comparing: under the right one, the statistics come out as they are in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Pair = tuple[tuple[float, ...], tuple[float, ...]]  # mean and std of each channel

# How much worse than the best a candidate still counts as equally good: `WITHIN` times its divergence,
# and on top the divergence that images of another source (JPEG files, a test split) have by themselves.
WITHIN, BESIDES = 2.0, 0.01
WIDELY = 5.0  # what is further off than this, by the same measure, is not looked at with crops
NEAR_STD, NEAR_MEAN = 1.3, 0.1  # normalisations this near to each other do no harm if confused
FAR = 0.5  # a best divergence above this: the images are nothing like those of the training
MANY = 64  # images: enough for statistics that are the same to within a few per cent
CROP = 4  # pixels of zeros around an image that is cropped at random, as in most trainings


class _Seen(Exception):
    """The first BatchNorm layer has been met: no need to go on."""


def synthetic(shape: tuple[int, int, int], count: int = MANY) -> Tensor:
    """Images with the power spectrum of photographs (1/f), for when there are none: (count, C, H, W)."""
    channels, height, width = shape
    generator = torch.Generator().manual_seed(0)
    frequency = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1 / max(height, width)
    # Most of a photograph's contrast is common to its channels.
    noise = torch.randn(count, 1, height, width, generator=generator)
    noise = noise + 0.35 * torch.randn(count, channels, height, width, generator=generator)
    images = torch.fft.irfft2(torch.fft.rfft2(noise) / frequency**1.3, s=(height, width))
    scaled: Tensor = (0.47 + 0.25 * images / images.std()).clamp(0, 1)
    return scaled


def cropped(images: Tensor) -> Tensor:
    """The images (N, C, H, W) after a random crop with zero padding, which most trainings apply."""
    generator = torch.Generator().manual_seed(0)
    padded = F.pad(images, (CROP,) * 4)
    height, width = images.shape[2:]
    places = torch.randint(0, 2 * CROP + 1, (len(images), 2), generator=generator).tolist()
    crops = [one[:, y : y + height, x : x + width] for one, (y, x) in zip(padded, places, strict=True)]
    return torch.stack(crops)


def _norms(model: nn.Module) -> list[tuple[nn.Module, Tensor, Tensor]]:
    """The BatchNorm layers with the mean and the variance that they remember."""
    return [
        (module, module.running_mean, module.running_var)
        for module in model.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        and module.running_mean is not None
        and module.running_var is not None
    ]


def remembers(model: nn.Module) -> bool:
    """Whether the network has BatchNorm layers that have met images."""
    return any(bool(mean.any()) or bool((variance - 1).any()) for _, mean, variance in _norms(model))


def divergence(model: nn.Module, images: Tensor, *, first: bool = False) -> float:
    """How far what the BatchNorm layers meet is from what they remember; of the `first` one alone, or all.

    The mean over channels of the Kullback-Leibler divergence between two normal distributions, of the
    channel on these images (N, C, H, W), in [0, 1], and of the channel in training, at most 10 each.
    """
    found: list[Tensor] = []

    def compare(known: Tensor, spread: Tensor, values: Tensor) -> None:
        # One row a channel: torch takes several times as long over the dimensions as they are.
        variance, mean = torch.var_mean(values.transpose(0, 1).flatten(1), 1)
        ratio = (variance + 1e-5) / spread
        found.append((0.5 * ((mean - known) ** 2 / spread + ratio - 1 - ratio.log())).clamp(0, 10))
        if first:
            raise _Seen

    hooks = [
        module.register_forward_pre_hook(
            lambda _, inputs, known=known, spread=spread: compare(known, spread + 1e-5, inputs[0])
        )
        for module, known, spread in _norms(model)
    ]
    try:
        with torch.no_grad():
            model(images)
    except _Seen:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat(found).mean().item() if found else float("inf")


def _nearest(images: Tensor, measure: Callable[[Tensor], float]) -> float:
    """The smaller divergence of the images as they are and cropped: trainings differ in that."""
    return min(measure(images), measure(cropped(images)))


class Normalisation(NamedTuple):
    """The normalisation that fits; its name among the known ones, and the divergence of each of them."""

    name: str
    divergences: dict[str, float]


def normalisation(
    network: nn.Module, images: Tensor, known: Mapping[str, Pair | None]
) -> Normalisation | None:
    """Which of the `known` normalisations (None: pixels as they are) a network was trained with.

    Told by its first BatchNorm layer, which sees little but the image. Names come in order of
    preference, for those that fit equally well. None where the network has no such memory, where
    nothing fits, and where quite different ones fit.
    """
    if not remembers(network):
        return None
    network.eval()

    def measured(x: Tensor, names: Iterable[str]) -> dict[str, float]:
        return {name: divergence(network, normalised(x, known[name]), first=True) for name in names}

    found = measured(images, known)
    near = WIDELY * min(found.values(), default=0.0) + WIDELY * BESIDES
    crops = measured(cropped(images), [name for name, value in found.items() if value <= near])
    found |= {name: min(value, found[name]) for name, value in crops.items()}
    best = min(found.values(), default=float("inf"))
    fitting = [name for name, value in found.items() if value <= WITHIN * best + BESIDES]
    if best > FAR or not all(_near(known[fitting[0]], known[name]) for name in fitting):
        return None
    return Normalisation(fitting[0], {name: round(value, 4) for name, value in found.items()})


def normalised(images: Tensor, pair: Pair | None) -> Tensor:
    """(images - mean) / std, of images (N, C, H, W) in [0, 1]; the images themselves for None."""
    if pair is None:
        return images
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in pair)
    return (images - mean) / std


def _near(one: Pair | None, other: Pair | None) -> bool:
    if one is None or other is None:
        return one == other
    shifts = [abs(a - b) for a, b in zip(one[0], other[0], strict=True)]
    ratios = [max(a / b, b / a) for a, b in zip(one[1], other[1], strict=True)]
    return max(shifts) <= NEAR_MEAN and max(ratios) <= NEAR_STD


def ranked(models: Sequence[nn.Module], images: Tensor) -> list[tuple[float, int]]:
    """The divergence of each network on images (N, C, H, W), and its place in `models`: the best first."""
    return sorted(
        (_nearest(images, partial(divergence, model.eval())), place) for place, model in enumerate(models)
    )
