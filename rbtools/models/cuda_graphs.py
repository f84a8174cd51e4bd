"""Passes of a network on a GPU as CUDA graphs: captured once for a batch size, then replayed by one launch.

A pass of a small network is hundreds of kernels, each shorter than its launch, so the GPU waits for Python.
A replay computes with the same kernels on the same memory: images are copied in, logits and gradients out.
Weights may change in place between replays. A captured graph is compared with the network before it is used.

Off unless RB_CUDA_GRAPHS=1: its speedup is not measured yet.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rbtools.models import folding

CALLS = 3
"""Passes of one batch size before it is captured: a capture costs about five passes."""
_TOLERANCE = 0.02  # a share of the largest value, above rounding in bfloat16 and in any order of sums
_TOLERANCE_OF_PARTS = 0.1  # the same for another batch size, which may use other kernels
# version of torch; earlier ones left memory and random state inconsistent after a failed capture
_SINCE = (2, 12)


def padded(count: int) -> int:
    """The batch size that `count` images are padded to: 16, 24, 32, 48, 64, 96 ...

    A batch that examples leave one by one thus has few sizes, and at most a third of a pass is for padding.
    """
    size = 16
    while size < count:
        size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
    return size


class _Pool:
    """Memory that graphs share, and the stream on which they are captured. `ticket` counts forward replays:
    each may overwrite the tensors that an earlier one kept for its backward pass."""

    def __init__(self, device: torch.device) -> None:
        self.handle, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        self.ticket = 0


class _Recording:
    """A forward pass, and where images have a gradient a backward pass, for batches of one shape.

    images: (N, C, H, W) on the GPU, used to warm up. Raises RuntimeError if the network makes Python wait, or
    uses an operation that a graph cannot contain.
    """

    def __init__(self, network: nn.Module, images: Tensor, pool: _Pool) -> None:
        self.network, self.pool = network, pool
        self.images = images.detach().clone().requires_grad_(images.requires_grad)
        self.backward_graph: torch.cuda.CUDAGraph | None = None
        before = torch.cuda.current_stream()
        chosen = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True  # the fastest of cuDNN's algorithms, which is then replayed
        try:
            with torch.cuda.device(images.device):
                self._capture(pool.stream)
        finally:
            torch.backends.cudnn.benchmark = chosen
            torch.cuda.set_stream(before)  # a failed capture changes the current stream

    def _capture(self, stream: torch.cuda.Stream) -> None:
        current, waits = torch.cuda.current_stream(), torch.cuda.get_sync_debug_mode()
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch calls this mode a prototype
                for mode in (waits, waits, "error"):  # cuDNN chooses its algorithms in the first pass
                    torch.cuda.set_sync_debug_mode(mode)  # waiting for the device is not allowed in a capture
                    logits = self.network(self.images)
                    if logits.requires_grad:
                        self._gradient(self.images, logits, torch.zeros_like(logits))
        finally:
            torch.cuda.set_sync_debug_mode(waits)
        current.wait_stream(stream)
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
        graph = self.backward_graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, **how):
            self.gradient = self._gradient(self.images, logits, self.incoming)

    @staticmethod
    def _gradient(images: Tensor, logits: Tensor, incoming: Tensor) -> Tensor:
        # Retain the graph: the backward pass is replayed more than once.
        return torch.autograd.grad(logits, images, incoming, retain_graph=True)[0]

    def forward(self, images: Tensor) -> Tensor:
        """The logits of at most as many images as the graph was captured for."""
        with torch.no_grad():
            self.images[: len(images)].copy_(images)
        self.pool.ticket += 1
        self.forward_graph.replay()
        return self.logits[: len(images)].detach().clone()

    def backward(self, gradient: Tensor) -> Tensor:
        """The gradient with respect to the images, from that of the latest logits."""
        assert self.backward_graph is not None
        count = len(gradient)
        self.incoming[:count].copy_(gradient)
        self.incoming[count:].zero_()
        self.backward_graph.replay()
        return self.gradient[:count].detach().clone()

    def backward_anew(self, images: Tensor, gradient: Tensor) -> Tensor:
        """The same after another forward pass has overwritten the tensors for this backward pass."""
        with torch.enable_grad():
            images = images.detach().requires_grad_(True)
            return self._gradient(images, self.network(images), gradient)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, images, recording):  # type: ignore[no-untyped-def]
        logits = recording.forward(images)
        ctx.recording, ctx.ticket = recording, recording.pool.ticket
        ctx.save_for_backward(images)
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if ctx.ticket == ctx.recording.pool.ticket:
            return ctx.recording.backward(gradient), None
        return ctx.recording.backward_anew(*ctx.saved_tensors, gradient), None


class _Key(NamedTuple):
    size: int
    shape: tuple[int, ...]
    differentiable: bool


class GraphedNetwork(nn.Module):
    """A frozen network in eval mode: images (N, C, H, W) in [0, 1] -> logits (N, K).

    Batches are padded (`padded`), so each example must be computed independently. Batches without a graph are
    padded too, so that logits do not depend on earlier calls. `notify` is called with a sentence if a later
    capture fails; then the network runs without graphs.
    """

    def __init__(self, network: nn.Module, notify: Callable[[str], None]) -> None:
        super().__init__()
        self.network, self.notify = network, notify
        self.stopped = False
        self.release()

    def release(self) -> None:
        """Free the memory of all graphs; they are captured again when they are needed."""
        self.pool: _Pool | None = None
        self.calls: Counter[_Key] = Counter()
        self.recordings: dict[_Key, _Recording] = {}

    def forward(self, images: Tensor) -> Tensor:
        if self.stopped or not len(images):
            return self.network(images)
        differentiable = images.requires_grad and torch.is_grad_enabled()
        key = _Key(padded(len(images)), tuple(images.shape[1:]), differentiable)
        if key not in self.recordings:
            self.calls[key] += 1
            if self.calls[key] < CALLS or not self.record(key, images):
                padded_logits: Tensor = self.network(_filled(images, key.size))
                return padded_logits[: len(images)]
        recording = self.recordings[key]
        if not differentiable or recording.backward_graph is None:
            return recording.forward(images)
        logits = _Replay.apply(images, recording)
        return logits

    def record(self, key: _Key, images: Tensor) -> bool:
        """Capture passes of a batch size, and compare them with the network; return whether that
        succeeded."""
        try:
            if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < _SINCE:
                raise ValueError(f"torch is {torch.__version__}, they need {'.'.join(map(str, _SINCE))}")
            self.pool = self.pool or _Pool(images.device)
            with torch.set_grad_enabled(key.differentiable):
                batch = _filled(images.detach(), key.size).clone().requires_grad_(key.differentiable)
                recording = _Recording(self.network, batch, self.pool)
                _compare(recording, batch)
                _compare(recording, 1 - batch)
            part = batch.detach()[: key.size // 2 + 1]
            with torch.no_grad():
                _check_near(self.network(part), recording.forward(part), _TOLERANCE_OF_PARTS)
            self.recordings[key] = recording
        except Exception as wrong:  # the network's own code may raise anything
            self.stopped = True
            self.release()
            # A failed capture hides its cause.
            reason = folding.reason(wrong.__context__ if isinstance(wrong.__context__, Exception) else wrong)
            self.notify(f"CUDA graphs are not used ({reason}): passes of a small network take longer.")
        return not self.stopped


def _filled(images: Tensor, size: int) -> Tensor:
    """A batch of that size that begins with these images."""
    if size == len(images):
        return images
    return torch.cat([images, images[:1].detach().expand(size - len(images), *images.shape[1:])])


def _compare(recording: _Recording, images: Tensor) -> None:
    """Raise ValueError where a replay differs from the network itself, beyond rounding."""
    images = images.detach().requires_grad_(recording.images.requires_grad)
    logits = recording.network(images)
    _check_near(logits, recording.forward(images), _TOLERANCE)
    if recording.backward_graph is not None:
        incoming = torch.softmax(logits.detach(), dim=1)
        replayed = recording.backward(incoming)
        _check_near(recording._gradient(images, logits, incoming), replayed, _TOLERANCE)


def _check_near(wanted: Tensor, got: Tensor, tolerance: float) -> None:
    difference, largest = (wanted - got).detach().abs().max(), wanted.detach().abs().max()
    if not bool(difference <= tolerance * largest):  # NaN fails this comparison, too
        raise ValueError("a replay differs from the network")


def frozen(network: nn.Module, probe: Tensor, notify: Callable[[str], None]) -> nn.Module:
    """The network with captured passes if RB_CUDA_GRAPHS is 1 and `probe`, images (N, C, H, W), is on a GPU,
    else the network. If it cannot be captured, `notify` is called with the reason.
    """
    if not usable(probe.device):
        return network
    graphed, key = GraphedNetwork(network, notify), _Key(padded(len(probe)), tuple(probe.shape[1:]), True)
    return graphed if graphed.record(key, probe) else network


def usable(device: torch.device) -> bool:
    """Whether passes on a device are captured."""
    return device.type == "cuda" and os.environ.get("RB_CUDA_GRAPHS") != "0"
