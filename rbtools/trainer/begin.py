"""Prepares a training run before its first epoch: its inputs, which do not change, and its state."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rbtools import check_input
from rbtools.datasets import streaming
from rbtools.errors import RbError
from rbtools.inputs import resolve
from rbtools.lazy import torch
from rbtools.models import RUNS_CODE, folding
from rbtools.trainer import (
    distributed,
    init,
    optim,
    regularize,
    step_networks,
    tracking,
    validation,
)
from rbtools.trainer.optim import batches, schedule
from rbtools.trainer.recipe import Recipe
from rbtools.trainer.state import TrainState, allocate_carried
from rbtools.training.chen_lee import ChenLee

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rbtools.datasets.base import Description
    from rbtools.datasets.streaming import Streamed
    from rbtools.execution.report import Report
    from rbtools.execution.run import Run
    from rbtools.execution.settings import Settings
    from rbtools.trainer.train_model import TrainingTask
    from rbtools.training.base import Method


@dataclass(frozen=True, eq=False)
class TrainExamples:
    """Images and labels on the device, and on the CPU the indices of the training and held-out examples."""

    images: Tensor | Streamed
    labels: Tensor
    ids: Tensor
    held: Tensor
    about: Description

    @classmethod
    def of(cls, data: Any, recipe: Recipe, device: torch.device) -> TrainExamples:
        """Return the examples of a split. Raises RbError if all belong to one class."""
        dataset = data.load()
        ids, held = validation.split(dataset.labels, recipe)
        labels = dataset.labels[ids]
        if len(labels) and bool((labels == labels[0]).all()):
            raise RbError(
                f"All {len(labels)} training images of {data.name} belong to one class, so there is nothing"
                " to learn. Expected images of at least two classes."
            )
        images = dataset.images
        in_bytes = images.dtype == torch.uint8  # float images are the user's own tensors, in memory
        images = streaming.placed(images, device) if in_bytes else images.to(device)
        return cls(images, dataset.labels.to(device), ids, held, data.about)


@dataclass(frozen=True, eq=False)
class TrainSetup:
    """The inputs of a training run. `arch` is the architecture in the record. `method` does not include the
    filter of --filter. `recipe` contains the learning rate of theorem 1 if that rule is used. `checks` are
    made after each epoch. `tracker` is None without --track."""

    arch: dict[str, Any]
    method: Method[Any]
    recipe: Recipe
    settings: Settings
    report: Report
    device: torch.device
    examples: TrainExamples
    networks: step_networks.StepNetworks
    checks: validation.Checks
    tracker: tracking.Tracker | None

    @property
    def name(self) -> str:
        return str(self.arch.get("name", "The network"))

    @cached_property
    def batches(self) -> int:
        """The number of steps in an epoch."""
        return len(batches(self.examples.ids, self.recipe.batch_size))

    @property
    def steps(self) -> int:
        """The number of steps in the training run if it is not stopped early."""
        return self.recipe.epochs * self.batches

    @cached_property
    def drawn(self) -> int | None:
        """With --output random, the random step before which the returned weights are copied."""
        if self.recipe.output != "random" or not self.steps:
            return None
        numbers = torch.Generator().manual_seed(init.mixed_seed(self.settings.seed, "output"))
        return int(torch.randint(self.steps, (), generator=numbers))

    def tell(self, message: str) -> None:
        self.report.notify(f"{self.name} {self.method.name}: {message}")


def stepping(method: Any, recipe: Recipe, kept: dict[str, Tensor]) -> Method[Any]:
    """Return the method that training steps use: with the filter of --filter, or with its tensors `kept`."""
    if recipe.filter is not None:
        return ChenLee(method, recipe.warm_steps, recipe.filter_rule)
    carrying: Method[Any] = method.carrying(kept)
    return carrying


def begin(
    task: TrainingTask, model: nn.Module, settings: Settings, report: Report, device: torch.device
) -> tuple[TrainSetup, TrainState]:
    """Set up a training run of `model`, which is moved to the device. Raises RbError."""
    method, recipe = task.method, task.recipe
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # must be set before cuBLAS is first used
    examples = TrainExamples.of(task.data, recipe, device)
    checks = validation.Checks(examples, method, settings.seed)
    model = _network(model, task, examples, device)
    averaged = None if recipe.ema is None else regularize.averaged(model, recipe.ema)
    kept = allocate_carried(method, len(examples.labels), examples.about.shape, device)
    steps = stepping(method, recipe, kept)
    networks = step_networks.of(model, task, steps, report, device)
    if recipe.lr_rule == "theorem1":
        factor = optim.theorem_rate(task.arch, method, model, examples, settings.seed)
        recipe = dataclasses.replace(recipe, lr=recipe.lr * factor)
    weights = regularize.decayed(model, recipe.l2) if "l2" in recipe.regularize else model.parameters()
    optimizer = optim.of(recipe, weights, fused=device.type == "cuda")
    sizes = len(batches(examples.ids, recipe.batch_size))
    state = TrainState(model, optimizer, schedule(optimizer, recipe, sizes), averaged, kept)
    state.passes = networks.passes.totals
    tracker = None
    if task.track is not None and distributed.rank() == 0:  # only process 0 measures
        tracker = tracking.Tracker(task.track, examples, method, settings.seed, report)
    for notice in distributed.notices(recipe, steps, model, task.name, device):
        report.notify(notice)
    given = (task.arch, method, recipe, settings, report, device, examples, networks)
    return TrainSetup(*given, checks, tracker), state


def _network(
    model: nn.Module, task: TrainingTask, examples: TrainExamples, device: torch.device
) -> nn.Module:
    """The model on the device, with synchronised BatchNorm if several GPUs share a batch. Raises RbError if
    the method cannot train the model."""
    model = model.to(device)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise RbError(
            f"{task.name} has no trainable weights. Expected weights with requires_grad=True. Remove"
            " requires_grad_(False) from its code, or evaluate the network without training it."
        )
    if task.record["arch"].get("space") in (None, *RUNS_CODE):
        check_input.check_outputs(model, examples.about.shape, examples.about.classes)
    if distributed.count() > 1 and device.type == "cuda" and distributed.has_batchnorm(model):
        sizes = [len(part) for part in batches(examples.ids, task.recipe.batch_size)]
        distributed.check_pieces(sizes, task.recipe.micro_batch, distributed.count())
        synchronised: nn.Module = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return synchronised
    return model


def start(
    task: TrainingTask, run: Run, device: torch.device, stored: bytes | None
) -> tuple[TrainSetup, TrainState]:
    """Set up a training run from its stored state or, if there is no suitable state, from the beginning."""

    def anew() -> tuple[TrainSetup, TrainState]:
        network = init.network(task, run)
        resolve.tell_of_copies(task.record, network, f"training {task.name}", run)
        return begin(task, network, run.settings, run.report, device)

    setup, state = anew()
    if stored is None:
        return setup, state
    try:
        state.load(stored)
        run.report.notify(
            f"{task.name}: training continues after epoch {state.epoch} of {setup.recipe.epochs}."
        )
    except Exception as wrong:  # torch raises many errors for damaged files; starting again is correct
        why = f"its stored state does not fit ({folding.reason(wrong)})"
        run.report.notify(f"{task.name}: training starts again, because {why}.")
        return anew()  # the failed load may have changed the first state
    return setup, state
