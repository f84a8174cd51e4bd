"""The models that attacks run on: a fast copy with the same function, and a wrapper that counts passes.

The exact model, in float32, always decides whether an example is broken.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rbtools.attacks.target import Network
from rbtools.defences.defended import Defended
from rbtools.models import folding, fused
from rbtools.models.normalize import Preprocessed
from rbtools.models.programs import Program

_PROBES = 2


class FastModel(NamedTuple):
    """The model for attacks, with the names of the preparation steps as records contain them.

    `refusal` is the reason why there is no fast copy. `remark` is the reason why a step was omitted.
    """

    model: nn.Module
    steps: tuple[str, ...]
    refusal: str | None = None
    remark: str | None = None


def make_fast_model(model: nn.Module, precision: str, shape: tuple[int, int, int]) -> FastModel:
    """A copy of the model in the given precision, in channels-last format, with BatchNorm folded into the
    convolutions before it. On a GPU in bfloat16, the convolution kernels also compute ReLU (models/fused.py).

    `model` is in eval mode and maps images float32 (N, C, H, W) in [0, 1] to logits (N, K); it is not
    changed. The copy returns float32 logits. With "bf16", the normalisation still computes in float32,
    because bfloat16 cannot represent steps of 1/255. BatchNorm is not folded if the network cannot be traced,
    or if the folded copy returns other logits. If the model contains a program or its copy fails, attacks run
    on the model itself, and `refusal` is the reason. The copy of a defended network has the same defence
    stages, which compute in float32.
    """
    if isinstance(model, Defended):
        inner = make_fast_model(model.model, precision, shape)
        return inner._replace(model=model.before(inner.model) if inner.model is not model.model else model)
    network = model.network if isinstance(model, Preprocessed) else model
    if any(isinstance(module, Program) for module in model.modules()):
        return FastModel(model, ())
    bf16, folded, remark = precision == "bf16", None, None
    try:
        folded = _folded(network, shape)
    except Exception as wrong:  # tracing a network may raise anything
        remark = (
            f"BatchNorm is not folded into the convolutions: passes take longer ({folding.reason(wrong)})."
        )
    steps = [*(["folded"] if folded is not None else []), "channels-last", *(["bf16"] if bf16 else [])]
    normalization, probe = _normalization(model), _probe(network, shape)
    try:
        copied = _frozen(copy.deepcopy(network) if folded is None else folded)
        copied = copied.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        copied = copied.bfloat16() if bf16 else copied
        try:
            quicker = fused.fuse(copied, probe.to(torch.bfloat16 if bf16 else probe.dtype))
        except (RuntimeError, ValueError) as wrong:
            quicker = None
            remark = f"ReLU has kernels of its own: passes take longer ({folding.reason(wrong)})."
        if quicker is not None:
            copied, steps = quicker, [*steps, "fused"]
        fast: nn.Module = _Fast(normalization, copied, bf16)
        with torch.no_grad():
            fast(probe)
    except Exception as wrong:  # raised by the network's own code: it cannot be copied, or needs float32
        return FastModel(model, (), f"a copy of it fails ({folding.reason(wrong)})")
    return FastModel(fast, tuple(steps), remark=remark)


def is_float32(model: nn.Module) -> bool:
    return all(parameter.dtype == torch.float32 for parameter in model.parameters())


class _Fast(nn.Module):
    """Normalisation in float32, followed by the network in its own precision and memory format."""

    def __init__(self, normalization: nn.Module, network: nn.Module, bf16: bool) -> None:
        super().__init__()
        self.normalization, self.network, self.bf16 = normalization, network, bf16

    def forward(self, images: Tensor) -> Tensor:
        inputs = self.normalization(images)
        dtype = torch.bfloat16 if self.bf16 else inputs.dtype
        inputs = inputs.to(dtype, memory_format=torch.channels_last)
        logits: Tensor = self.network(inputs)
        return logits.float()


def _normalization(model: nn.Module) -> nn.Module:
    """The layers of the model before its network."""
    if not isinstance(model, Preprocessed):
        return nn.Identity()
    alone = copy.copy(model)
    alone._modules, alone._buffers = {"network": nn.Identity()}, dict(model._buffers)
    return alone


def _frozen(network: nn.Module) -> nn.Module:
    return network.eval().requires_grad_(False)


def _probe(network: nn.Module, shape: tuple[int, int, int]) -> Tensor:
    """Two random images on the network's device."""
    parameter = next(network.parameters(), None)
    device = None if parameter is None else parameter.device
    return torch.rand(_PROBES, *shape, generator=torch.Generator().manual_seed(0)).to(device)


def _folded(network: nn.Module, shape: tuple[int, int, int]) -> nn.Module | None:
    """The network with BatchNorm folded into its convolutions, or None if it has no BatchNorm. Raises
    ValueError if folding changes the logits, and any error that tracing the network raises."""
    if not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules()):
        return None
    probe = _probe(network, shape)
    with torch.no_grad():
        folded, pairs = folding.fold(network)
        live, copied = dict(network.named_modules()), dict(folded.named_modules())
        for convolution, norm in pairs.items():
            weight, bias = folding.merged(live[convolution], live[norm], scale_first=False)
            copied[convolution].weight.copy_(weight)
            copied[convolution].bias.copy_(bias)
        folding.check_same(network(probe), _frozen(folded)(probe))
    return folded


class CountingModel(nn.Module, Network):
    """A model that counts forward passes, backward passes and zero gradients, in images.

    Zero gradients are counted in the first backward pass of each example (`begin`). An example whose gradient
    is zero at the start does not move, which looks like robustness. `chunk_size` is the number of images that
    go through the model at once; attacks split larger batches, and this class splits them if no gradients are
    needed. If `model` is a fast copy, the exact model is given as `decides`, and a point counts as
    misclassified only if both models misclassify it.
    """

    def __init__(
        self, model: nn.Module, chunk_size: int | None = None, decides: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.model, self.chunk_size, self.decides = model, chunk_size, decides
        self.forwards = self.backwards = 0
        self.watch: Callable[[str], None] | None = None  # called with the progress, as text
        self._stage = ""
        self._left = 0
        self._zeros: list[Tensor] = []  # on the device, because reading them makes the host wait

    def begin(self, count: int) -> None:
        """Start counting a new batch of `count` examples, in which an example may occur several times."""
        self._left = count

    def stage(self, words: str) -> None:
        self._stage = f"{words} · "

    def forward(self, images: Tensor) -> Tensor:
        self.count(len(images), 0)
        if not (images.requires_grad and torch.is_grad_enabled()):
            return self._in_pieces(self.model, images)
        inputs = images.view_as(images)
        inputs.register_hook(self._seen)
        return self.model(inputs)

    def still_correct(self, points: Tensor, labels: Tensor, logits: Tensor | None = None) -> Tensor:
        """Whether each point is classified correctly by the copy or by the exact model: bool (N,)."""
        correct = super().still_correct(points, labels, logits)
        if self.decides is not None and not correct.all():
            wrong = ~correct
            correct[wrong] = self.verdict(points[wrong].detach(), labels[wrong])
        return correct

    def verdict(self, points: Tensor, labels: Tensor) -> Tensor:
        if self.decides is None:
            return super().verdict(points, labels)
        self.forwards += len(points)
        with torch.no_grad():
            return self._in_pieces(self.decides, points).argmax(1).eq(labels)

    def _in_pieces(self, model: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        return torch.cat([model(piece) for piece in images.split(self.chunk_size or max(len(images), 1))])

    def undecided(self) -> Network | None:
        return None if self.decides is None else Network(self, self.chunk_size)

    @property
    def counted(self) -> tuple[int, int]:
        return self.forwards, self.backwards

    def count(self, forwards: int, backwards: int) -> None:
        self.forwards += forwards
        self.backwards += backwards
        if self.watch is not None:
            self.watch(f"{self._stage}{self.forwards:,} passes")

    def _seen(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)
        if self._left > 0 and not (gradient.is_cuda and torch.cuda.is_current_stream_capturing()):
            first = gradient[: self._left]  # an attack may try several points of an image at once
            self._left -= len(first)
            self._zeros.append((first == 0).flatten(1).all(1).sum())

    @property
    def zero_gradients(self) -> int:
        return int(torch.stack(self._zeros).sum()) if self._zeros else 0
