"""BatchNorm's running statistics, used to choose a normalisation or a network.

BatchNorm layers store the mean and variance of every channel in training. Of several normalisations, or of
several networks with the same weights, the right one is that whose statistics on images are nearest to the
stored ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.models import Shape
from rbtools.models.normalize import per_image

Pair = tuple[tuple[float, ...], tuple[float, ...]]  # mean and std of each channel, or one for all
Known = Pair | str | None  # a normalisation: a pair, PER_IMAGE, or pixels as they are
Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]  # images (N, C, H, W) in [0, 1] and labels (N)

# A normalisation is as good as the best one if its divergence is at most (factor times the best, plus a
# constant); EQUAL: indistinguishable on these images, SAME: equal to about four digits, WIDELY: cropped
# images may change the order. Example: random weights with the statistics of 500 photographs of CIFAR-10. On
# 64 other photographs the right normalisation has a divergence of 0.001; CIFAR-100's has 0.004 more,
# ImageNet's 0.015, per-image standardisation 0.02, and unchanged pixels 0.9.
EQUAL, SAME, WIDELY = (1.25, 0.003), (1.01, 0.0005), (5.0, 0.05)
NEAR_STD, NEAR_MEAN = 1.3, 0.1  # confusing normalisations this similar does no harm
CLOSE_STD, CLOSE_MEAN = 1.05, 0.02  # images distinguish these only by chance: CIFAR-10's and CINIC-10's
DIGITS_STD, DIGITS_MEAN = 1.01, 0.002  # these are the same constants with other digits
LEAST = 0.0005  # least value of EQUAL's constant, which falls with the number of images
FAR = 0.5  # above this least divergence the images do not resemble those of the training
MANY = 64  # images that give statistics to within a few per cent
MOST = 1024  # images on which normalisations that fit alike on MANY are compared again
CROP = 4  # pixels of zeros around an image that is cropped at random, as in most trainings


# A network of more parameters is compared on FEW images: 64 of WRN-70-16's take a minute on two cores.
LARGE, FEW = 100_000_000, 16


class _Seen(Exception):
    """Raised to stop the forward pass after the first BatchNorm layer."""


def synthetic(shape: Shape, count: int = MANY) -> Tensor:
    """Synthetic images (count, C, H, W) with the power spectrum of photographs (1/f)."""
    channels, height, width = shape
    generator = torch.Generator().manual_seed(0)
    frequency = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1 / max(height, width)
    # Most of a photograph's contrast is common to its channels.
    noise = torch.randn(count, 1, height, width, generator=generator)
    noise = noise + 0.35 * torch.randn(count, channels, height, width, generator=generator)
    images = torch.fft.irfft2(torch.fft.rfft2(noise) / frequency**1.3, s=(height, width))
    return (0.47 + 0.25 * images / images.std()).clamp(0, 1)


def cropped(images: Tensor) -> Tensor:
    """The images (N, C, H, W) after a random crop with zero padding, which most trainings apply."""
    generator = torch.Generator().manual_seed(0)
    padded = F.pad(images, (CROP,) * 4)
    height, width = images.shape[2:]
    places = torch.randint(0, 2 * CROP + 1, (len(images), 2), generator=generator).tolist()
    crops = [one[:, y : y + height, x : x + width] for one, (y, x) in zip(padded, places, strict=True)]
    return torch.stack(crops)


def affordable(network: nn.Module) -> int:
    """How many images a network is compared on."""
    return FEW if sum(value.numel() for value in network.parameters()) > LARGE else MANY


def _norms(model: nn.Module) -> list[tuple[nn.Module, Tensor, Tensor]]:
    """The BatchNorm layers with their running mean and variance."""
    return [
        (module, module.running_mean, module.running_var)
        for module in model.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        and module.running_mean is not None
        and module.running_var is not None
    ]


def has_statistics(model: nn.Module) -> bool:
    """Whether the network has BatchNorm layers with running statistics, even initial ones."""
    return bool(_norms(model))


def remembers(model: nn.Module) -> bool:
    """Whether the network has BatchNorm layers whose statistics differ from the initial ones."""
    return any(bool(mean.any()) or bool((variance - 1).any()) for _, mean, variance in _norms(model))


def informative(images: Tensor) -> bool:
    """Whether images (N, C, H, W) have contrast: placeholders for missing images are black."""
    return bool(images.std() > 1e-3)


def divergence(model: nn.Module, images: Tensor | Iterable[Tensor], *, first: bool = False) -> float:
    """The divergence of BatchNorm statistics on images (N, C, H, W) in [0, 1] from the stored ones.

    The mean over channels of the Kullback-Leibler divergence between two normal distributions, that of the
    channel on these images and the stored one, clamped to 10 each; infinite where the network raises an
    error. With `first`, of the first layer only. Of several batches of images only one is in memory.
    """
    stored, batches = _norms(model), [images] if isinstance(images, Tensor) else images
    every = [(len(batch), _moments(model, batch, first=first)) for batch in batches]
    count = sum(n for n, _ in every)
    shares = [n / count for n, _ in every]
    zero = torch.zeros(())
    divergences: list[Tensor] = []
    for of_layer in zip(*(layers for _, layers in every), strict=False):
        _, known, spread = stored[of_layer[0].place]
        parts = list(zip(shares, of_layer, strict=True))
        mean = sum((share * one.mean for share, one in parts), zero)
        variance = sum((share * (one.variance + (one.mean - mean) ** 2) for share, one in parts), zero)
        spread = spread + 1e-5
        ratio = (variance + 1e-5) / spread
        divergences.append((0.5 * ((mean - known) ** 2 / spread + ratio - 1 - ratio.log())).clamp(0, 10))
    return torch.cat(divergences).mean().item() if divergences else float("inf")


class _Moments(NamedTuple):
    """The input of a BatchNorm layer: the layer's index in `_norms`, mean and variance of each channel."""

    place: int
    mean: Tensor
    variance: Tensor


def _moments(model: nn.Module, images: Tensor, *, first: bool) -> list[_Moments]:
    """The moments of each BatchNorm layer's input, in the order of the calls; with `first`, of one layer."""
    seen: list[_Moments] = []

    def look(place: int, values: Tensor) -> None:
        # One row per channel: reducing over the original dimensions takes torch several times as long.
        variance, mean = torch.var_mean(values.transpose(0, 1).flatten(1), 1)
        seen.append(_Moments(place, mean, variance))
        if first:
            raise _Seen

    hooks = [
        module.register_forward_pre_hook(lambda _, inputs, place=place: look(place, inputs[0]))
        for place, (module, _, _) in enumerate(_norms(model))
    ]
    try:
        with torch.no_grad():
            model(images)
    except _Seen:
        pass
    except Exception:  # the network's own code, which may refuse values outside the range that it expects
        seen.clear()
    finally:
        for hook in hooks:
            hook.remove()
    return seen


class Tie(NamedTuple):
    """Normalisations that fit equally well, the chosen one first, with their divergences on `images`
    images."""

    divergences: dict[str, float]
    images: int


class Normalisation(NamedTuple):
    """The normalisations that fit, the best first, and the divergence of all.

    `names` has one name if those that fit are near each other, else one of each kind.
    """

    names: list[str]
    divergences: dict[str, float]
    tie: Tie | None = None


def normalisation(
    network: nn.Module,
    images: Tensor,
    known: Mapping[str, Known],
    preferred: Collection[str] = (),
    more: Batches | None = None,
) -> Normalisation | None:
    """Which of the `known` normalisations (None: pixels as they are) a network was trained with.

    It is the one with the least divergence at the first BatchNorm layer, which depends on little but the
    image. Among indistinguishable ones the `preferred` come first. If near ones remain, they are compared
    again on `more` images, if given; then the first in `known` is taken, whose order is by the number of
    publications. None where the network has no stored statistics, and where nothing fits.
    """
    if not known or not remembers(network):
        return None
    network.eval()

    def measured(x: Tensor, names: Iterable[str]) -> dict[str, float]:
        return {name: divergence(network, normalised(x, known[name]), first=True) for name in names}

    divergences = measured(images, known)
    crops = measured(cropped(images), _within(divergences, list(divergences), *WIDELY))
    divergences |= {name: min(value, divergences[name]) for name, value in crops.items()}
    if min(divergences.values()) > FAR:
        return None
    fitting = _within(divergences, list(divergences), *EQUAL)
    alike = [name for name in fitting if name in preferred] or fitting
    (best,) = _within(divergences, alike, *SAME)[:1]
    rivals = {name: known[name] for name in alike if _near(known[name], known[best])}
    near = kinds(rivals, DIGITS_MEAN, DIGITS_STD)
    tie = None
    if more is not None and len(near) > 1:
        tie = _tied(network, {name: known[name] for name in near}, more)
        best = next(iter(tie.divergences))
    else:
        close = (CLOSE_MEAN, CLOSE_STD)
        best = next(name for name in alike if name == best or _near(known[name], known[best], *close))
    order = [best, *sorted(fitting, key=divergences.__getitem__)]
    of_kinds = kinds({name: known[name] for name in order})
    rounded = {name: round(value, 4) for name, value in divergences.items() if math.isfinite(value)}
    return Normalisation(of_kinds, rounded, tie)


def _tied(network: nn.Module, known: Mapping[str, Known], more: Batches) -> Tie:
    """The known normalisations compared on more images: the earliest that is as good as the best, then the
    others by their divergence.
    """

    def batches(pair: Known, change: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        return (normalised(change(images), pair) for images, _ in more())

    divergences = {
        name: min(divergence(network, batches(pair, change), first=True) for change in (lambda x: x, cropped))
        for name, pair in known.items()
    }
    count = sum(len(images) for images, _ in more())
    factor, plus = EQUAL
    best = _within(divergences, list(known), factor, max(LEAST, plus * MANY / count))[0]
    order = dict.fromkeys([best, *sorted(divergences, key=divergences.__getitem__)])
    return Tie({name: round(divergences[name], 4) for name in order}, count)


def kinds(known: Mapping[str, Known], most: float = NEAR_MEAN, most_ratio: float = NEAR_STD) -> list[str]:
    """The first name of each group of near normalisations, given the tolerances of mean and std."""
    names: list[str] = []
    for name, pair in known.items():
        if not any(_near(pair, known[one], most, most_ratio) for one in names):
            names.append(name)
    return names


def _within(divergences: Mapping[str, float], names: Sequence[str], factor: float, plus: float) -> list[str]:
    """The names whose divergence is at most `factor` times the least of them plus `plus`, in their order."""
    least = min(divergences[name] for name in names)
    return [name for name in names if divergences[name] <= factor * least + plus]


def normalised(images: Tensor, pair: Known) -> Tensor:
    """(images - mean) / std, of images (N, C, H, W) in [0, 1]; the images themselves for None."""
    if pair is None:
        return images
    if isinstance(pair, str):
        return per_image(images)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in pair)
    return (images - mean) / std


def _near(one: Known, other: Known, most: float = NEAR_MEAN, most_ratio: float = NEAR_STD) -> bool:
    if one is None or other is None or isinstance(one, str) or isinstance(other, str):
        return one == other
    (mean, std), (others_mean, others_std) = (map(torch.tensor, pair) for pair in (one, other))
    shift, ratio = (mean - others_mean).abs().max(), (std / others_std).log().abs().max().exp()
    return bool(shift <= most) and bool(ratio <= most_ratio)


def ranked(models: Sequence[nn.Module], images: Tensor) -> list[tuple[float, int]]:
    """The divergence of each network on images (N, C, H, W), and its index in `models`: the best first.

    It is the smaller one of the images as they are and cropped: not every training crops.
    """
    both = (images, cropped(images))
    return sorted((min(divergence(m.eval(), x) for x in both), place) for place, m in enumerate(models))
