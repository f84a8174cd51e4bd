"""What BatchNorm remembers: the images that a network was trained on, as each of its layers saw them.

A network keeps the mean and variance of every channel that its BatchNorm layers met in training. Which of
several normalisations, or of several networks with the same weights, those belong to is told by running
images and comparing: under the right one, the statistics come out as they are in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.models.normalize import per_image

Pair = tuple[tuple[float, ...], tuple[float, ...]]  # mean and std of each channel, or one for all
Known = Pair | str | None  # a normalisation: a pair, PER_IMAGE, or pixels as they are

# How much worse than the best a normalisation is that the images cannot tell from it: so many times its
# divergence, and so much on top; of one that is alike to four digits; and of one that crops may still favour.
# With weights by chance and statistics of 500 photographs of CIFAR-10, 64 others give the right one 0.001,
# that of CIFAR-100 0.004 more, ImageNet's 0.015, each image's own 0.02, and pixels as they are 0.9.
EQUAL, SAME, WIDELY = (1.25, 0.003), (1.01, 0.0005), (5.0, 0.05)
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


def informative(images: Tensor) -> bool:
    """Whether images (N, C, H, W) can tell anything: a stand-in for images that are not here is black."""
    return bool(images.std() > 1e-3)


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
    """The normalisations that fit, in the order of how well they do, and the divergence of all.

    `names` has one name alone where those that fit are near each other; else one of each kind.
    """

    names: list[str]
    divergences: dict[str, float]


def normalisation(
    network: nn.Module, images: Tensor, known: Mapping[str, Known], preferred: Collection[str] = ()
) -> Normalisation | None:
    """Which of the `known` normalisations (None: pixels as they are) a network was trained with.

    Told by its first BatchNorm layer, which sees little but the image: the least divergence. Among those
    that the images cannot tell apart the `preferred` ones count, then the earlier name. None where the
    network has no such memory, and where nothing fits.
    """
    if not known or not remembers(network):
        return None
    network.eval()

    def measured(x: Tensor, names: Iterable[str]) -> dict[str, float]:
        return {name: divergence(network, normalised(x, known[name]), first=True) for name in names}

    found = measured(images, known)
    crops = measured(cropped(images), _within(found, list(found), *WIDELY))
    found |= {name: min(value, found[name]) for name, value in crops.items()}
    if min(found.values()) > FAR:
        return None
    fitting = _within(found, list(found), *EQUAL)
    alike = [name for name in fitting if name in preferred] or fitting
    order = [*_within(found, alike, *SAME)[:1], *sorted(fitting, key=found.__getitem__)]
    of_kinds = kinds({name: known[name] for name in order})
    return Normalisation(of_kinds, {name: round(value, 4) for name, value in found.items()})


def kinds(known: Mapping[str, Known]) -> list[str]:
    """The first names of normalisations that are not near each other."""
    found: list[str] = []
    for name, pair in known.items():
        if not any(_near(pair, known[one]) for one in found):
            found.append(name)
    return found


def _within(found: Mapping[str, float], names: Sequence[str], times: float, besides: float) -> list[str]:
    """The names whose divergence is hardly more than the least among them, in their order."""
    least = min(found[name] for name in names)
    return [name for name in names if found[name] <= times * least + besides]


def normalised(images: Tensor, pair: Known) -> Tensor:
    """(images - mean) / std, of images (N, C, H, W) in [0, 1]; the images themselves for None."""
    if pair is None:
        return images
    if isinstance(pair, str):
        return per_image(images)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in pair)
    return (images - mean) / std


def _near(one: Known, other: Known) -> bool:
    if one is None or other is None or isinstance(one, str) or isinstance(other, str):
        return one == other
    (mean, std), (others_mean, others_std) = (map(torch.tensor, pair) for pair in (one, other))
    shift, ratio = (mean - others_mean).abs().max(), (std / others_std).log().abs().max().exp()
    return bool(shift <= NEAR_MEAN) and bool(ratio <= NEAR_STD)


def ranked(models: Sequence[nn.Module], images: Tensor) -> list[tuple[float, int]]:
    """The divergence of each network on images (N, C, H, W), and its place in `models`: the best first."""
    return sorted(
        (_nearest(images, partial(divergence, model.eval())), place) for place, model in enumerate(models)
    )
