"""The network of a training as its steps use it: recorded passes, and a fast copy for inner attacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools.lazy import torch
from rbtools.models import cuda_graphs, folding
from rbtools.trainer import distributed, eval_copy
from rbtools.trainer.metrics import Passes

if TYPE_CHECKING:
    from torch import nn

    from rbtools.report import Report
    from rbtools.trainer.recipe import Recipe
    from rbtools.trainer.train_model import TrainingTask
    from rbtools.training.base import Method


@dataclass(frozen=True, eq=False)
class StepNetworks:
    """model: the network in training. step: what the loss calls, the network or a recording of its passes.
    inner: what inner attacks call: the copy or a recording of it, or `step`. copy: of the network in eval
    mode, updated before each attack. passes: counts those of `step` and `inner`. half: autocast to bfloat16.
    """

    device: torch.device
    model: nn.Module
    step: nn.Module
    inner: nn.Module
    copy: eval_copy.EvalCopy | None
    passes: Passes
    half: bool

    def begin(self) -> None:
        """Before the passes of a backward pass: recordings of earlier ones may be replayed."""
        if isinstance(self.step, cuda_graphs.GraphedTraining):
            self.step.begin()

    def precision(self) -> Any:
        """Autocast to bfloat16 if requested: weights, losses and the optimiser stay float32."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.half)

    def shortcuts(self) -> list[str]:
        """The shortcuts of the inner attack's network, and whether passes were recorded."""
        names = []
        if self.copy is not None:
            names = [*(["folded"] if self.copy.folds else []), "channels-last"]
            names += ["bf16"] if self.half else []
        recorded = cuda_graphs.in_use(self.inner) or cuda_graphs.in_use(self.step)
        return [*names, *(["cuda-graphs"] if recorded else [])]


def of(
    model: nn.Module,
    task: TrainingTask,
    method: Method[Any],
    report: Report,
    device: torch.device,
    *,
    stacked: bool,
) -> StepNetworks:
    """The networks of the steps of a model on a device. `method`: with its filter. `stacked`: several seeds
    go through their networks together, so no pass of one is recorded.
    """
    step = model if stacked or not task.prepare else _recorded(model, task, report, device)
    passes, half = Passes(step), task.precision == "bf16"
    if half:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if not (task.prepare and method.inner is not None and method.solves_in_eval):
        return StepNetworks(device, model, step, step, None, passes, half)
    copy = None
    try:
        copy = eval_copy.of(model, task.data.about.shape, bf16=half)
    except Exception as wrong:  # tracing a network may raise anything
        report.notify(
            f"{task.name}: inner attacks run on the network itself and take longer ({folding.reason(wrong)})."
        )
    if copy is None:
        return StepNetworks(device, model, step, step, None, passes, half)
    inner: nn.Module = copy
    if not (task.recipe.deterministic or stacked):
        probe = torch.rand(2, *task.data.about.shape, generator=torch.Generator().manual_seed(0))
        inner = cuda_graphs.frozen(copy, probe.to(device), report.notify)
    passes.watch(inner)
    return StepNetworks(device, model, step, inner, copy, passes, half)


def _recorded(model: nn.Module, task: TrainingTask, report: Report, device: torch.device) -> nn.Module:
    """The network with recorded passes where they can be, else the network itself."""
    obstacle = obstacle_to_graphs(task.recipe, task.method)
    if obstacle is None:
        return cuda_graphs.training(model, device, report.notify) or model
    if device.type == "cuda":
        report.notify(cuda_graphs.not_used(cuda_graphs.NotRecorded(obstacle)))
    return model


def obstacle_to_graphs(recipe: Recipe, method: Method[Any]) -> str | None:
    """Why passes of a step are not recorded, if that is so."""
    if distributed.count() > 1:
        return "the sums over processes are not recorded"
    if recipe.deterministic:
        return "with --deterministic sums have one order, and a recording has another"
    if method.follows_operations:
        return f"{method.name} follows the operations of the network"
    return None
