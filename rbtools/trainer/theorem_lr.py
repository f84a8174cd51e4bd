"""The step size of theorem 1 of NAS-RobBench-201, from the kernels of the initial network."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError
from rbtools.lazy import nn, torch
from rbtools.measures import MEASURES
from rbtools.measures.base import MeasureBatch
from rbtools.rng.draws import Draws
from rbtools.trainer.augment import pixels

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.trainer.begin import TrainExamples
    from rbtools.training.mixed import Mixed


IMAGES = 50
SPACES = ("fcnn", "rescnn")


def step_size(
    arch: dict[str, Any], method: Mixed, model: nn.Module, images: Tensor, labels: Tensor, seed: int
) -> float:
    """sqrt(min(y' K_all^-1 y, y' K~_all^-1 y)) / (m sqrt(N)), without its factor nu / (sqrt(C) e^C).

    m is the width. The kernels are those of the initial network on N of its training images, each y' K^-1 y
    a mean over the classes; the adversary is the method's own. Wu et al. (ICLR 2024), theorem 1, after Cao
    and Gu (2019).

    Shape: images float32 (N, C, H, W) in [0, 1], labels (N,). Raises RbError for a network outside the
    theorem, and for a singular kernel.
    """
    if arch.get("space") not in SPACES:
        raise RbError(
            f"--lr theorem1 divides by the width of a network of {' or '.join(SPACES)}, and"
            f" {arch.get('name')} is of the space {arch.get('space')}. Use a number for --lr."
        )
    draws = Draws(seed, "theorem1", torch.arange(len(labels), device=images.device))
    once = method.perturb(model, images, labels, draws)
    twice = method.perturb(model, once, labels, draws.child("twice"))
    kernel = MEASURES.build("ntk", kernel="joint", beta=method.beta)
    bounds = kernel(model, MeasureBatch(images, labels, draws, draws, once, twice))
    energies = [bounds[f"{name}.bound"] for name in ("all", "all_robust")]
    if None in energies or not all(map(math.isfinite, energies)):
        raise RbError(
            f"--lr theorem1 needs the inverse of the kernel of {len(labels)} training images, and it is"
            " singular: two of them have the same gradient, or all have none. Use a number for --lr."
        )
    return math.sqrt(min(energies)) / (int(arch["width"]) * math.sqrt(len(labels)))


def factor(
    arch: dict[str, Any], method: Mixed, model: nn.Module, examples: TrainExamples, seed: int
) -> float:
    """The step size for a constant of 1, on at most `IMAGES` training images, evenly spaced in order."""
    ids = examples.ids
    few = ids[torch.linspace(0, len(ids) - 1, min(IMAGES, len(ids))).round().long()]
    few = few.to(examples.labels.device)
    model.eval()
    return step_size(arch, method, model, pixels(examples.images[few]), examples.labels[few], seed)
