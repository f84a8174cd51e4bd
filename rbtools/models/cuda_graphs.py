"""Passes of a network on a GPU as CUDA graphs: recorded once for a batch size, then replayed by one launch.

A pass of a small network is hundreds of kernels, each shorter than its launch, so the GPU waits for Python.
A replay computes with the same kernels on the same memory: images are copied in, logits and gradients out.
Weights may change in place between replays. A recording is compared with the network before it is used.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rbtools.models import folding

CALLS = 3
"""Passes of one batch size before it is recorded: a recording costs about five passes."""
SMALLEST = 16
"""No batch is padded to fewer images."""
SLOTS = 4
"""Forward passes of one training step that are recorded: the clean and the adversarial images, twice."""
_WARM_UPS = 3  # cuDNN chooses its algorithms in the first
_TOLERANCE = 0.02  # of the largest value: bfloat16 and sums in any order stay below, other images do not


class NotRecorded(ValueError):
    """A network cannot be recorded, and why."""


def padded(count: int) -> int:
    """The batch size that `count` images are padded to: 16, 24, 32, 48, 64, 96 ...

    A batch that examples leave one by one thus has few sizes, and at most a third of a pass is for padding.
    """
    size = SMALLEST
    while size < count:
        size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
    return size


class _Pool:
    """Memory that recordings share. `ticket` counts forward replays: each may overwrite what an earlier one
    kept for its backward pass."""

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self.ticket = 0


class _Recording:
    """A forward and a backward pass for batches of one shape.

    images: (N, C, H, W) on the GPU, used to warm up. weights: the parameters that get a gradient.
    """

    def __init__(
        self, network: Callable[[Tensor], Tensor], images: Tensor, weights: Sequence[Tensor], pool: _Pool
    ) -> None:
        self.network, self.weights, self.pool = network, tuple(weights), pool
        self.of_images = images.requires_grad
        self.images = images.detach().clone().requires_grad_(self.of_images)
        self.backward_graph = None
        self._warm_up()
        self.forward_graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.forward_graph, pool=pool.handle):
            self.logits = network(self.images)
        if not torch.is_grad_enabled() or not self.logits.requires_grad:
            return
        self.incoming = torch.zeros_like(self.logits)
        self.backward_graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.backward_graph, pool=pool.handle):
            self.gradients = self._gradients(self.images, self.logits, self.incoming)

    def _inputs(self, images: Tensor) -> list[Tensor]:
        return [*([images] if self.of_images else []), *self.weights]

    def _gradients(self, images: Tensor, logits: Tensor, incoming: Tensor) -> list[Tensor | None]:
        # What the forward pass keeps must stay: the backward pass is replayed more than once.
        found = torch.autograd.grad(
            logits, self._inputs(images), incoming, retain_graph=True, allow_unused=True
        )
        return ([] if self.of_images else [None]) + list(found)

    def _warm_up(self) -> None:
        current = torch.cuda.current_stream()
        side = torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                logits = self.network(self.images)
                if logits.requires_grad:
                    self._gradients(self.images, logits, torch.zeros_like(logits))
        current.wait_stream(side)

    def forward(self, images: Tensor) -> Tensor:
        """The logits of at most as many images as were recorded."""
        with torch.no_grad():
            self.images[: len(images)].copy_(images)
        self.pool.ticket += 1
        self.forward_graph.replay()
        return self.logits[: len(images)].detach().clone()

    def backward(self, gradient: Tensor) -> list[Tensor | None]:
        """The gradients with respect to the images and the weights, from that of the latest logits."""
        assert self.backward_graph is not None
        count = len(gradient)
        self.incoming[:count].copy_(gradient)
        self.incoming[count:].zero_()
        self.backward_graph.replay()
        first, *others = (None if g is None else g.detach().clone() for g in self.gradients)
        return [None if first is None else first[:count], *others]

    def backward_anew(self, images: Tensor, gradient: Tensor) -> list[Tensor | None]:
        """The same after another forward pass has overwritten what this one kept."""
        with torch.enable_grad():
            images = images.detach().requires_grad_(self.of_images)
            return self._gradients(images, self.network(images), gradient)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, images, recording, *weights):  # type: ignore[no-untyped-def]
        logits = recording.forward(images)
        ctx.recording, ctx.ticket = recording, recording.pool.ticket
        ctx.save_for_backward(images)
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if ctx.ticket == ctx.recording.pool.ticket:
            images, *weights = ctx.recording.backward(gradient)
        else:
            images, *weights = ctx.recording.backward_anew(*ctx.saved_tensors, gradient)
        return images, None, *weights


class GraphedNetwork(nn.Module):
    """A frozen network in eval mode: images (N, C, H, W) in [0, 1] -> logits (N, K).

    Batches are padded (`padded`), so each example must be computed on its own. `notify` is called with a
    sentence when recording fails later, after which the network runs as it is.
    """

    def __init__(self, network: nn.Module, notify: Callable[[str], None]) -> None:
        super().__init__()
        self.network, self.notify = network, notify
        self.pool: _Pool | None = None
        self.calls: Counter[tuple[int, bool]] = Counter()
        self.recordings: dict[tuple[int, bool], _Recording] = {}
        self.stopped = False

    def forward(self, images: Tensor) -> Tensor:
        if self.stopped or not len(images):
            logits: Tensor = self.network(images)
            return logits
        differentiable = images.requires_grad and torch.is_grad_enabled()
        key = (padded(len(images)), differentiable)
        if key not in self.recordings:
            self.calls[key] += 1
            if self.calls[key] < CALLS or not self._record(key, images):
                logits = self.network(images)
                return logits
        recording = self.recordings[key]
        if not differentiable:
            return recording.forward(images)
        logits = _Replay.apply(images, recording)
        return logits

    def _record(self, key: tuple[int, bool], images: Tensor) -> bool:
        try:
            self.record(key, images)
        except (RuntimeError, NotRecorded) as wrong:
            self.stopped = True
            self.recordings.clear()
            self.notify(not_used(wrong))
        return not self.stopped

    def record(self, key: tuple[int, bool], images: Tensor) -> None:
        """Record passes of key = (batch size, with a gradient), and compare them with the network.

        Raises NotRecorded or RuntimeError if the network cannot be recorded.
        """
        size, differentiable = key
        self.pool = self.pool or _Pool()
        batch = images.detach().repeat(-(-size // len(images)), 1, 1, 1)[:size]
        with torch.set_grad_enabled(differentiable):
            recording = _Recording(self.network, batch.requires_grad_(differentiable), (), self.pool)
            _compare(recording, batch)
            _compare(recording, 1 - batch)
        self.recordings[key] = recording


class GraphedTraining(nn.Module):
    """A network in training: its k-th forward pass of a step, and the backward pass, are recorded.

    Call `begin` before each step. Passes without gradients, in eval mode, or of another batch size than the
    first run as they are.
    """

    def __init__(self, network: nn.Module, notify: Callable[[str], None]) -> None:
        super().__init__()
        self.network, self.notify = network, notify
        self.slots: list[_Recording] = []
        self.shape: torch.Size | None = None
        self.steps = self.next = 0
        self.stopped = False

    def begin(self) -> None:
        """Start a step: nothing of the step before is differentiated any more."""
        self.steps += 1
        self.next = 0

    def forward(self, images: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and self.training) or self.stopped or self.steps < CALLS:
            logits: Tensor = self.network(images)
            return logits
        self.shape = self.shape or images.shape
        if images.shape != self.shape or images.requires_grad or self.next == SLOTS:
            logits = self.network(images)
            return logits
        if self.next == len(self.slots) and not self._record(images):
            logits = self.network(images)
            return logits
        recording = self.slots[self.next]
        self.next += 1
        logits = _Replay.apply(images, recording, *recording.weights)
        return logits

    def _record(self, images: Tensor) -> bool:
        buffers = [(buffer, buffer.clone()) for buffer in self.network.buffers()]
        weights = [value for value in self.network.parameters() if value.requires_grad]
        try:
            with _without_cast_cache():
                recording = _Recording(self._whole, images, weights, _Pool())
                _compare(recording, images)
                _compare(recording, 1 - images)
            self.slots.append(recording)
        except (RuntimeError, NotRecorded) as wrong:
            self.stopped = True
            self.notify(not_used(wrong))
        finally:
            with torch.no_grad():  # passes above changed BatchNorm's statistics
                for buffer, before in buffers:
                    buffer.copy_(before)
        return not self.stopped

    def _whole(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images)
        return logits


@contextlib.contextmanager
def _without_cast_cache() -> Iterator[None]:
    """Autocast as it is, but weights are cast in every pass: a recording would keep the first cast."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _compare(recording: _Recording, images: Tensor) -> None:
    """Raise NotRecorded where a replay differs from the network itself, beyond rounding."""
    own = images.detach().requires_grad_(recording.of_images)
    logits = recording.network(own)
    pairs = [(logits, recording.forward(images))]
    if recording.backward_graph is not None:
        incoming = torch.softmax(logits.detach(), dim=1)
        replayed = recording.backward(incoming)
        pairs += [
            (wanted, got)
            for wanted, got in zip(recording._gradients(own, logits, incoming), replayed, strict=True)
            if wanted is not None and got is not None
        ]
    for wanted, got in pairs:
        if not bool((wanted - got).abs().max() <= _TOLERANCE * wanted.abs().max()):  # NaN as well
            raise NotRecorded("a replay differs from the network")


def not_used(wrong: Exception) -> str:
    """The sentence that says why a network is not recorded."""
    return f"CUDA graphs are not used ({folding.reason(wrong)}): passes of a small network take longer."


def frozen(network: nn.Module, probe: Tensor, notify: Callable[[str], None]) -> nn.Module:
    """The network with recorded passes if `probe`, images (N, C, H, W), is on a GPU; else the network.

    A network that cannot be recorded is returned as it is, and `notify` is called with the reason.
    """
    if not usable(probe.device):
        return network
    graphed = GraphedNetwork(network, notify)
    return graphed if graphed._record((padded(len(probe)), True), probe) else network


def training(
    network: nn.Module, device: torch.device, notify: Callable[[str], None]
) -> GraphedTraining | None:
    """The network with recorded training passes; None where it draws random numbers, or not on a GPU.

    A replay of dropout draws other numbers than the network itself, so the same seed would train another
    network.
    """
    if not usable(device):
        return None
    if any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p for module in network.modules()):
        notify(not_used(NotRecorded("the network has dropout")))
        return None
    return GraphedTraining(network, notify)


def usable(device: torch.device) -> bool:
    """Whether a device records graphs."""
    return device.type == "cuda"
