"""Passes of a network on a GPU as CUDA graphs: recorded once for a batch size, then replayed by one launch.

A pass of a small network is hundreds of kernels, each shorter than its launch, so the GPU waits for Python.
A replay computes with the same kernels on the same memory: images are copied in, logits and gradients out.
Weights may change in place between replays. A recording is compared with the network before it is used.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

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
_TOLERANCE_OF_PARTS = 0.1  # where the network has another batch size, so other kernels
_SINCE = (2, 12)  # of torch: before, a capture that failed left its memory and random numbers in disorder


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

    images: (N, C, H, W) on the GPU, used to warm up. weights: the parameters that get a gradient. Raises
    NotRecorded or RuntimeError where the network makes Python wait, or does what a graph cannot hold.
    """

    def __init__(
        self, network: Callable[[Tensor], Tensor], images: Tensor, weights: Sequence[Tensor], pool: _Pool
    ) -> None:
        self.network, self.weights, self.pool = network, tuple(weights), pool
        self.of_images = images.requires_grad
        self.images = images.detach().clone().requires_grad_(self.of_images)
        self.backward_graph = None
        with torch.cuda.device(images.device), _same_stream():
            self._warm_up()
            self._capture(_capture_stream(images.device))

    def _capture(self, stream: torch.cuda.Stream) -> None:
        # thread_local: another thread may read and copy the next batch meanwhile.
        how: Any = {"pool": self.pool.handle, "stream": stream, "capture_error_mode": "thread_local"}
        self.forward_graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.forward_graph, **how):
            logits = self.network(self.images)
        # Without its autograd graph, so that the next recording in the pool may use the memory between.
        self.logits = logits.detach()
        if not torch.is_grad_enabled() or not logits.requires_grad:
            return
        self.incoming = torch.zeros_like(self.logits)
        self.backward_graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.backward_graph, **how):
            self.gradients = self._gradients(self.images, logits, self.incoming)

    def _inputs(self, images: Tensor) -> list[Tensor]:
        return [*([images] if self.of_images else []), *self.weights]

    def _gradients(self, images: Tensor, logits: Tensor, incoming: Tensor) -> list[Tensor | None]:
        # What the forward pass keeps must stay: the backward pass is replayed more than once.
        found = torch.autograd.grad(
            logits, self._inputs(images), incoming, retain_graph=True, allow_unused=True
        )
        return ([] if self.of_images else [None]) + list(found)

    def _warm_up(self) -> None:
        current, side = torch.cuda.current_stream(), _capture_stream(self.images.device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for number in range(_WARM_UPS):
                # A pass that waits would break the capture, and with it more than this recording.
                with _no_waits() if number == _WARM_UPS - 1 else contextlib.nullcontext():
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

    Batches are padded (`padded`), so each example must be computed on its own; those that are not recorded
    yet, too, so that logits do not depend on what ran before. `notify` is called with a sentence when
    recording fails later, after which the network runs as it is.
    """

    def __init__(self, network: nn.Module, notify: Callable[[str], None]) -> None:
        super().__init__()
        self.network, self.notify = network, notify
        self.stopped = False
        self.release()

    def release(self) -> None:
        """Give the memory of all recordings back; they are made again when they are needed."""
        self.pool: _Pool | None = None
        self.calls: Counter[_Key] = Counter()
        self.recordings: dict[_Key, _Recording] = {}

    def forward(self, images: Tensor) -> Tensor:
        if self.stopped or not len(images):
            logits: Tensor = self.network(images)
            return logits
        differentiable = images.requires_grad and torch.is_grad_enabled()
        key = _Key(padded(len(images)), tuple(images.shape[1:]), differentiable)
        if key not in self.recordings:
            self.calls[key] += 1
            if self.calls[key] < CALLS or not self._record(key, images):
                return self._plain(images)
        recording = self.recordings[key]
        if not differentiable or recording.backward_graph is None:
            return recording.forward(images)
        logits = _Replay.apply(images, recording)
        return logits

    def _plain(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(_filled(images, padded(len(images))))
        return logits[: len(images)]

    def _record(self, key: _Key, images: Tensor) -> bool:
        try:
            self.record(key, images)
        except Exception as wrong:  # the network's own code may raise anything
            self.stopped = True
            self.release()
            self.notify(not_used(wrong))
        return not self.stopped

    def record(self, key: _Key, images: Tensor) -> None:
        """Record passes of a batch size, and compare them with the network.

        Raises NotRecorded, or what the network raises, if it cannot be recorded.
        """
        self.pool = self.pool or _Pool()
        batch = _filled(images.detach(), key.size).clone()
        with torch.set_grad_enabled(key.differentiable):
            batch.requires_grad_(key.differentiable)
            recording = _Recording(self.network, batch, (), self.pool)
            _compare(recording, batch)
            _compare(recording, 1 - batch)
        part = batch.detach()[: key.size // 2 + 1]
        with torch.no_grad():
            _check_near(self.network(part), recording.forward(part), _TOLERANCE_OF_PARTS)
        self.recordings[key] = recording


class _Key(NamedTuple):
    size: int
    shape: tuple[int, ...]
    differentiable: bool


def _filled(images: Tensor, size: int) -> Tensor:
    """A batch of that size that begins with these images."""
    if size == len(images):
        return images
    filler = images[:1].detach().expand(size - len(images), *images.shape[1:])
    return torch.cat([images, filler])


class GraphedTraining(nn.Module):
    """A network in training: its k-th forward pass of a step, and the backward pass, are recorded.

    Call `begin` before each step. Passes without gradients, in eval mode, of another batch size than the
    first, or with tensors in place of the network's own (torch.func.functional_call) run as they are.
    """

    def __init__(self, network: nn.Module, notify: Callable[[str], None]) -> None:
        super().__init__()
        self.network, self.notify = network, notify
        self.own: tuple[Tensor, ...] = ()
        self.slots: list[_Recording] = []
        self.shape: torch.Size | None = None
        self.steps = self.next = 0
        self.stopped = False

    def begin(self) -> None:
        """Start a step: nothing of the step before is differentiated any more."""
        self.steps += 1
        self.next = 0
        self.own = tuple(self._tensors())

    def forward(self, images: Tensor) -> Tensor:
        recording = self._slot(images) if self._fits(images) else None
        if recording is None:
            logits: Tensor = self.network(images)
            return logits
        weights = [value for value in self.network.parameters() if value.requires_grad]
        logits = _Replay.apply(images, recording, *weights)
        return logits

    def _tensors(self) -> Iterator[Tensor]:
        yield from self.network.parameters()
        yield from self.network.buffers()

    def _fits(self, images: Tensor) -> bool:
        """Whether this pass is one of those that are recorded."""
        if self.stopped or not (torch.is_grad_enabled() and self.training) or images.requires_grad:
            return False
        self.shape = self.shape or images.shape
        if images.shape != self.shape or self.steps < CALLS or self.next == SLOTS:
            return False
        own = all(value is known for value, known in zip(self._tensors(), self.own, strict=True))
        return own and all(module.training for module in self.network.modules())

    def _slot(self, images: Tensor) -> _Recording | None:
        """The recording of this pass of the step; None where it fails."""
        if self.next == len(self.slots) and not self._record(images):
            return None
        self.next += 1
        return self.slots[self.next - 1]

    def _record(self, images: Tensor) -> bool:
        buffers = [(buffer, buffer.clone()) for buffer in self.network.buffers()]
        # The same memory by other names: autograd remembers on which stream a parameter was used first.
        aliases = {
            name: value.detach().requires_grad_(value.requires_grad)
            for name, value in self.network.named_parameters()
        }

        def passed(images: Tensor) -> Tensor:
            logits: Tensor = torch.func.functional_call(self.network, aliases, (images,))
            return logits

        try:
            with _without_cast_cache():
                weights = [value for value in aliases.values() if value.requires_grad]
                recording = _Recording(passed, images, weights, _Pool())
                _compare(recording, images)
                _compare(recording, 1 - images)
            if recording.backward_graph is None:
                raise NotRecorded("its logits have no gradient")
            self.slots.append(recording)
        except Exception as wrong:  # the network's own code may raise anything
            self.stopped = True
            self.slots.clear()
            self.notify(not_used(wrong))
        finally:
            with torch.no_grad():  # passes above changed BatchNorm's statistics
                for buffer, before in buffers:
                    buffer.copy_(before)
        return not self.stopped


@contextlib.contextmanager
def released(model: nn.Module) -> Iterator[None]:
    """Give the memory of a model's recordings back at the end."""
    try:
        yield
    finally:
        release(model)


def release(model: nn.Module) -> None:
    """Give the memory of a model's recordings back, if it has any."""
    if isinstance(model, GraphedNetwork):
        model.release()


def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which this thread warms up and records. cuBLAS has one workspace for a stream, so jobs of
    several threads, whose replays overlap on the GPU, must not record on the same one."""
    return _capture_stream_of(device, threading.get_ident())


@cache
def _capture_stream_of(device: torch.device, thread: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@contextlib.contextmanager
def _same_stream() -> Iterator[None]:
    """Go on with the stream of before: a capture that fails leaves its own behind."""
    before = torch.cuda.current_stream()
    try:
        yield
    finally:
        torch.cuda.set_stream(before)


@contextlib.contextmanager
def _no_waits() -> Iterator[None]:
    """Raise RuntimeError where Python would wait for the GPU."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


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
    largest = max((wanted.abs().max() for wanted, _ in pairs[1:]), default=None)
    for number, (wanted, got) in enumerate(pairs):
        # A gradient that is zero but for rounding is compared with the largest.
        _check_near(wanted, got, _TOLERANCE, None if number == 0 else largest)


def _check_near(wanted: Tensor, got: Tensor, tolerance: float, of_all: Tensor | None = None) -> None:
    scale = wanted.detach().abs().max()
    if of_all is not None:
        scale = torch.maximum(scale, 1e-3 * of_all)
    if not bool((wanted - got).detach().abs().max() <= tolerance * scale):  # NaN as well
        raise NotRecorded("a replay differs from the network")


def not_used(wrong: Exception) -> str:
    """The sentence that says why a network is not recorded; a failed capture hides its cause."""
    cause = wrong.__context__
    wrong = cause if isinstance(cause, Exception) else wrong
    return f"CUDA graphs are not used ({folding.reason(wrong)}): passes of a small network take longer."


def frozen(network: nn.Module, probe: Tensor, notify: Callable[[str], None]) -> nn.Module:
    """The network with recorded passes if `probe`, images (N, C, H, W), is on a GPU; else the network.

    A network that cannot be recorded is returned as it is, and `notify` is called with the reason.
    """
    if not usable(probe.device):
        _tell_of_version(probe.device, notify)
        return network
    graphed = GraphedNetwork(network, notify)
    return (
        graphed if graphed._record(_Key(padded(len(probe)), tuple(probe.shape[1:]), True), probe) else network
    )


def training(
    network: nn.Module, device: torch.device, notify: Callable[[str], None]
) -> GraphedTraining | None:
    """The network with recorded training passes; None where it draws random numbers, or not on a GPU.

    A replay of dropout draws other numbers than the network itself, so the same seed would train another
    network.
    """
    if not usable(device):
        _tell_of_version(device, notify)
        return None
    if any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p for module in network.modules()):
        notify(not_used(NotRecorded("the network has dropout")))
        return None
    return GraphedTraining(network, notify)


def _tell_of_version(device: torch.device, notify: Callable[[str], None]) -> None:
    if device.type == "cuda" and not _recent():
        notify(not_used(NotRecorded(f"torch is {torch.__version__}, they need {'.'.join(map(str, _SINCE))}")))


def in_use(model: nn.Module) -> bool:
    """Whether passes of a model are recorded."""
    if isinstance(model, GraphedNetwork):
        return bool(model.recordings)
    return isinstance(model, GraphedTraining) and bool(model.slots)


def usable(device: torch.device) -> bool:
    """Whether passes on a device are recorded."""
    return device.type == "cuda" and _recent()


def _recent() -> bool:
    return tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2]) >= _SINCE
