"""Batches, optimiser and learning rate of a recipe.

The optimisers are those of torch, without the compiler guards around their methods. When a guard is first
called, it imports torch's compiler (800 modules, including sympy), which takes 1.3 s even if nothing is
compiled. The arithmetic and the stored state are the same as in torch.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rbtools.errors import RbError
from rbtools.measures import MEASURES
from rbtools.measures.base import MeasureBatch
from rbtools.rng.draws import Draws
from rbtools.trainer.augment import pixels
from rbtools.trainer.recipe import CYCLED_MOMENTUM, Recipe

if TYPE_CHECKING:
    from rbtools.trainer.begin import TrainExamples
    from rbtools.training.mixed import Mixed

Schedule = torch.optim.lr_scheduler.LRScheduler
PER_STEP = ("onecycle", "piecewise")
"""Schedules that change the rate after every step; the others change it after every epoch."""
KERNEL_IMAGES = 50
"""The number of training images for the kernels of --lr-rule theorem1."""

_GUARDED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def _unguarded(kind: type[torch.optim.Optimizer]) -> Any:
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in _GUARDED}
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))  # the guard of `step` disabled gradients
    return type(kind.__name__, (kind,), methods)


SGD: type[torch.optim.SGD] = _unguarded(torch.optim.SGD)
Adam: type[torch.optim.Adam] = _unguarded(torch.optim.Adam)


def of(recipe: Recipe, weights: Any, *, fused: bool) -> torch.optim.Optimizer:
    """Return the optimiser of a recipe. With `fused`, one kernel updates all weights or groups of weights."""
    options: dict[str, Any] = {"weight_decay": recipe.weight_decay, "fused": fused or None}
    if recipe.optimizer == "adam":
        return Adam(weights, lr=recipe.lr, betas=(recipe.momentum, 0.999), **options)
    return SGD(weights, lr=recipe.lr, momentum=recipe.momentum, nesterov=recipe.nesterov, **options)


def schedule(optimizer: torch.optim.Optimizer, recipe: Recipe, batches: int) -> Schedule:
    """Return the learning rate schedule of a recipe, for `batches` batches per epoch."""
    schedulers = torch.optim.lr_scheduler
    epochs = max(recipe.epochs, 1)
    if recipe.schedule == "onecycle":
        highest, lowest, _ = CYCLED_MOMENTUM
        return schedulers.OneCycleLR(
            optimizer,
            max_lr=recipe.lr,
            total_steps=epochs * batches,
            base_momentum=lowest,
            max_momentum=highest,
        )
    if recipe.schedule == "step":
        return schedulers.MultiStepLR(optimizer, list(recipe.milestones), gamma=recipe.decay)
    if recipe.schedule == "piecewise":
        return schedulers.LambdaLR(
            optimizer,
            lambda step: recipe.decay ** sum((step + 1) / batches >= epoch for epoch in recipe.milestones),
        )
    if recipe.schedule == "cosine":
        return schedulers.CosineAnnealingLR(optimizer, T_max=epochs)
    return schedulers.ConstantLR(optimizer, factor=1.0)


@contextlib.contextmanager
def deterministic(wanted: bool) -> Any:
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]


def batches(order: Tensor, batch_size: int) -> list[Tensor]:
    """Return the batches of an epoch. If the last batch is a single image and others are not, it joins the
    batch before it, because BatchNorm needs more than one image for a variance."""
    pieces = list(order.split(batch_size))
    if len(pieces) > 1 and len(pieces[-1]) == 1 < batch_size:
        pieces[-2:] = [torch.cat(pieces[-2:])]
    return pieces


def step_size(
    arch: dict[str, Any], method: Mixed, model: nn.Module, images: Tensor, labels: Tensor, seed: int
) -> float:
    """Return the step size of NAS-RobBench-201's theorem 1: sqrt(min(y' K_all^-1 y, y' K~_all^-1 y)) / (m
    sqrt(N)), without its factor nu / (sqrt(C) e^C).

    m is the width of the network. For rescnn, the result is the step size of corollary 1, min(...) / (sqrt(p
    kappa) m sqrt(N)), without its factor nu / (sqrt(C) e^(C sqrt(kappa))), where p is the number of pixels of
    an image and kappa is that of the largest filter, k^2 for k x k: the weights of appendix E.1 have the size
    m x kappa m. The kernels are those of the initial network on N training images, and y' K^-1 y is a mean
    over the classes. The adversarial images are computed with the attack of the training method. The theorem
    is from Wu et al. (ICLR 2024), after Cao and Gu (2019).

    Shape: images float32 (N, C, H, W) in [0, 1], labels (N,). Raises RbError if the theorem does not apply to
    the network or if a kernel is singular.
    """
    if arch.get("space") not in ("fcnn", "rescnn"):
        raise RbError(
            f"--lr-rule theorem1 needs the width of a network from the space fcnn or rescnn, but"
            f" {arch.get('name')} belongs to {arch.get('space')}. Leave out --lr-rule, and set --lr."
        )
    draws = Draws(seed, "theorem1", torch.arange(len(labels), device=images.device))
    once = method.perturb(model, images, labels, draws)
    twice = method.perturb(model, once, labels, draws.child("twice"))
    with torch.no_grad():
        logits = "difference" if model(images[:1]).shape[1] == 2 else "sum"  # as in rb-measure bound
    kernel = MEASURES.build("ntk", kernel="joint", beta=method.beta, logits=logits)
    bounds = kernel(model, MeasureBatch(images, labels, draws, draws, once, twice))
    energies = [bounds[f"{name}.bound"] for name in ("all", "all_robust")]
    if None in energies or not all(map(math.isfinite, energies)):
        raise RbError(
            f"--lr-rule theorem1 needs the inverse of the kernel of {len(labels)} training images, but it is"
            " singular: two images have the same gradient, or none has one. Leave out --lr-rule; set --lr."
        )
    over = int(arch["width"]) * math.sqrt(len(labels))
    if arch["space"] == "fcnn":
        return math.sqrt(min(energies)) / over
    kappa = max(map(int, re.findall("[0-9]+", str(arch["str"]))), default=1) ** 2
    return float(min(energies)) / (math.sqrt(images[0, 0].numel() * kappa) * over)


def theorem_rate(
    arch: dict[str, Any], method: Mixed, model: nn.Module, examples: TrainExamples, seed: int
) -> float:
    """The step size of theorem 1 without its constants, on at most 50 evenly spaced training images."""
    ids = examples.ids
    few = ids[torch.linspace(0, len(ids) - 1, min(KERNEL_IMAGES, len(ids))).round().long()]
    few = few.to(examples.labels.device)
    model.eval()
    return step_size(arch, method, model, pixels(examples.images[few]), examples.labels[few], seed)
