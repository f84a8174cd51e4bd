"""Chooses the network and the normalisation of a weights file by accuracies on images."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rbtools.errors import RbError, optional

Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]  # images (N, C, H, W) in [0, 1] and labels (N)
BEYOND = 3  # a difference in accuracy of more standard deviations than this is not chance
SHOWN = 12  # the most candidates that an error message names


def beats(one: Tensor, other: Tensor, deviations: float = BEYOND) -> bool:
    """True if `one` is correct on more images than `other` by more than `deviations` standard deviations.

    The standard deviation assumes that, on each image where the two differ, each of them is right with
    probability 1/2. Both arguments are boolean (N,), for the same images.
    """
    return int(one.sum()) - int(other.sum()) > deviations * math.sqrt(int(one.ne(other).sum()))


def unbeaten(right: Mapping[str, Tensor]) -> list[str]:
    """Returns the candidates that are not significantly worse than the best one, the best one first."""
    most = max(map(len, right.values()))
    order = sorted(right, key=lambda name: -int(right[name].sum()))
    order = [name for name in order if len(right[name]) == most]  # the others were excluded earlier
    return [name for name in order if not beats(right[order[0]], right[name])]


@torch.no_grad()
def tried(models: Mapping[str, nn.Module], batches: Batches) -> dict[str, Tensor]:
    """Maps the name of each model to booleans (N,), True for each correct image.

    A model that is significantly worse than the best one is not evaluated on further images.
    """
    right = {name: torch.zeros(0, dtype=torch.bool) for name in models}
    for images, labels in batches():
        alive = unbeaten(right)
        if len(alive) == 1:
            break
        for name in alive:
            correct = torch.zeros(len(labels), dtype=torch.bool)
            with optional():  # a network may refuse values outside the range that it expects
                correct = models[name].eval()(images).argmax(1).eq(labels)
            right[name] = torch.cat([right[name], correct])
    return right


def decided(
    path: Path, models: Mapping[str, nn.Module], batches: Batches, preferred: Collection[str]
) -> tuple[str, dict[str, Any]]:
    """Returns the options of the best model, and the number of `images` and the accuracies (`acc`) as a dict.

    If several models are not significantly worse than the best one, the only `preferred` one among them is
    returned. Raises RbError with all accuracies if not exactly one model remains.
    """
    right = tried(models, batches)
    best = unbeaten(right)
    preferable = [name for name in best if name in preferred]
    best = preferable if len(preferable) == 1 else best
    images = max(map(len, right.values()))
    shares = {name: float(f"{correct.float().mean():.4f}") for name, correct in right.items()}
    if len(best) == 1:
        return best[0], {"images": images, "acc": shares}
    order = sorted(shares, key=lambda name: -shares[name])
    listed = ", ".join(f"{name}: {shares[name]:.4f}" for name in order[:SHOWN])
    rest = f", and {len(order) - SHOWN} more" if len(order) > SHOWN else ""
    raise RbError(
        f"The weights in {path} fit {len(models)} networks or normalisations, and their accuracies on"
        f" {images} images of the data set are too similar to choose one. Add the options of the right one"
        " to --checkpoint, or to rb-arch --from-checkpoint, which creates a record for other tools:"
        f" {listed}{rest}."
    )
