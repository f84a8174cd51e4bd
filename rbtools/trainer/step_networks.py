"""The networks that training steps use: the network with CUDA graphs, and a fast copy for inner attacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rbtools import graphs
from rbtools.models import cuda_graphs, folding
from rbtools.models.normalize import Preprocessed
from rbtools.trainer.metrics import Passes
from rbtools.training.base import mode

if TYPE_CHECKING:
    from rbtools.execution.report import Report
    from rbtools.trainer.train_model import TrainingTask
    from rbtools.training.base import Method


class EvalCopy(nn.Module):
    """A copy, in eval mode, of the network that is trained. BatchNorm is folded into the convolution before
    it, and the copy is channels last, in float32 or bfloat16. Call `update` after each training step.

    Maps images float32 (N, C, H, W) in [0, 1] to logits (N, K). Normalisation stays in float32, because
    bfloat16 cannot represent steps of 1/255.
    """

    def __init__(self, model: nn.Module, network: nn.Module, folded: dict[str, str], *, bf16: bool) -> None:
        super().__init__()
        own = model.network if isinstance(model, Preprocessed) else model
        # In a dict and a tuple, so that they do not become submodules of this module.
        self._live = dict(own.named_modules())
        self._outer = (model,)
        self._folded, self.folds = folded, bool(folded)
        self.dtype = torch.bfloat16 if bf16 else None
        self.network = network
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        (norm,) = self._outer
        inputs = norm.inputs(images) if isinstance(norm, Preprocessed) else images
        inputs = inputs.to(self.dtype or inputs.dtype, memory_format=torch.channels_last)
        logits: Tensor = self.network(inputs)
        return logits.float()

    @torch.no_grad()
    def update(self) -> None:
        for name, module in self.network.named_modules():
            source = self._live.get(name)
            if source is None:
                continue
            if name in self._folded:
                norm = self._live[self._folded[name]]
                weight, bias = folding.merged(source, norm, scale_first=True)
                module.weight.copy_(weight)
                module.bias.copy_(bias)
                continue
            own = {**module._parameters, **module._buffers}
            for key, value in own.items():
                source_value = getattr(source, key, None)
                if value is not None and source_value is not None:
                    value.copy_(source_value)


def eval_copy(model: nn.Module, shape: tuple[int, int, int], *, bf16: bool) -> EvalCopy | None:
    """Return the evaluation copy of a model, or None if the model has no parameters. Raises ValueError if the
    logits of the copy differ, and any error that tracing the network raises."""
    own = model.network if isinstance(model, Preprocessed) else model
    parameter = next(own.parameters(), None)
    if parameter is None:
        return None
    random = torch.Generator().manual_seed(0)
    probe = torch.rand(2, *shape, generator=random).to(parameter.device)
    with torch.no_grad(), mode(model, train=False):
        wanted = model(probe)
        network, folded = folding.fold(own)
        plain = EvalCopy(model, network, folded, bf16=False)
        plain.update()
        folding.check_same(wanted, plain(probe))
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return EvalCopy(model, network.bfloat16() if bf16 else network, folded, bf16=bf16)


@dataclass(frozen=True, eq=False)
class StepNetworks:
    """The networks of training steps. `model` is trained. `inner` is called by inner attacks: the copy, its
    CUDA graphs, or `model`. `copy` is the copy of the network in eval mode, which is updated before each
    attack. `passes` counts the passes of `model` and `inner`. `half` is true for bfloat16 autocast."""

    device: torch.device
    model: nn.Module
    inner: nn.Module
    copy: EvalCopy | None
    passes: Passes
    half: bool

    def precision(self) -> Any:
        """Autocast to bfloat16 if requested. Weights, losses and the optimiser stay in float32."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.half)

    def shortcuts(self) -> list[str]:
        """Return the optimisations of the network for inner attacks, as the record lists them."""
        if self.copy is None:
            return []
        names = [*(["folded"] if self.copy.folds else []), "channels-last"]
        names += ["bf16"] if self.half else []
        recorded = isinstance(self.inner, cuda_graphs.GraphedNetwork) and bool(self.inner.recordings)
        return [*names, *(["cuda-graphs"] if recorded else [])]


def of(
    model: nn.Module, task: TrainingTask, method: Method[Any], report: Report, device: torch.device
) -> StepNetworks:
    """Build the networks that training steps use. `method` includes the filter (--filter)."""
    passes, half = Passes(model), task.precision == "bf16"
    if half:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    copy = None
    if task.prepare and method.inner is not None and method.solves_in_eval:
        try:
            copy = eval_copy(model, task.data.about.shape, bf16=half)
        except Exception as wrong:  # tracing a network may raise anything
            report.notify(
                f"{task.name}: inner attacks run on the network itself and take longer"
                f" ({folding.reason(wrong)})."
            )
    if copy is None:
        return StepNetworks(device, model, model, None, passes, half)
    inner: nn.Module = copy
    # A CUDA graph sums in another order than deterministic kernels.
    if graphs.usable(device) and not task.recipe.deterministic:
        count = task.recipe.micro_batch or task.recipe.batch_size
        inner = cuda_graphs.GraphedNetwork(copy, count, report.notify)
    passes.watch(inner)
    return StepNetworks(device, model, inner, copy, passes, half)
