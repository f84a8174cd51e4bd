"""CUDA graphs for the forward and backward passes of the attack in adversarial training.

A pass of a small batch consists of hundreds of kernels, each of which takes less time than its launch, so the
GPU waits for Python. A replay runs the same kernels on the same memory. Weights may change in place between
replays. A captured graph is compared with the network before it is used.

On an H200, an epoch of PGD-10 training of a ResNet-18 takes 8.7 s with graphs and 21.1 s without. PGD-20 in
an evaluation is slower with graphs: 0.42 s instead of 0.28 s for 1,000 images (bench/gpu.py). Longer attacks
replay complete attack steps (attacks/replays.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rbtools.graphs import Pool, no_waits
from rbtools.models import folding

CALLS = 3  # the third pass is captured, the earlier ones run without a graph
_TOLERANCE = 0.02  # share of the largest value; larger than rounding in bfloat16


class _Recording:
    """Captures a forward pass for batches of one shape and, if the images need a gradient, a backward pass.

    `images` (N, C, H, W) is a batch on the GPU. Raises RuntimeError if the network makes Python wait for the
    GPU, or if it uses an operation that a graph cannot contain.
    """

    def __init__(self, network: nn.Module, images: Tensor, pool: Pool) -> None:
        self.network, self.pool = network, pool
        self.images = images.detach().clone().requires_grad_(images.requires_grad)
        self.backward_graph: torch.cuda.CUDAGraph | None = None
        before = torch.cuda.current_stream()
        try:
            with torch.cuda.device(images.device):
                self._capture(pool.stream)
        finally:
            torch.cuda.set_stream(before)  # a failed capture changes the current stream

    def _capture(self, stream: torch.cuda.Stream) -> None:
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for waits in (nullcontext, nullcontext, no_waits):  # cuDNN chooses its algorithms first
                with waits():
                    logits = self.network(self.images)
                    if logits.requires_grad:
                        self._gradient(self.images, logits, torch.zeros_like(logits))
        current.wait_stream(stream)
        self.forward_graph = torch.cuda.CUDAGraph()
        with self.pool.capture(self.forward_graph):
            logits = self.network(self.images)
        # Without its autograd graph: the next recording in the pool may then reuse the memory of the pass.
        self.logits = logits.detach()
        if not torch.is_grad_enabled() or not logits.requires_grad:
            return
        self.incoming = torch.zeros_like(self.logits)
        graph = self.backward_graph = torch.cuda.CUDAGraph()
        with self.pool.capture(graph):
            self.gradient = self._gradient(self.images, logits, self.incoming)

    @staticmethod
    def _gradient(images: Tensor, logits: Tensor, incoming: Tensor) -> Tensor:
        # Retain the graph: the backward pass is replayed more than once.
        return torch.autograd.grad(logits, images, incoming, retain_graph=True)[0]

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            self.images.copy_(images)
        self.pool.ticket += 1
        self.forward_graph.replay()
        return self.logits.detach().clone()

    def backward(self, gradient: Tensor) -> Tensor:
        assert self.backward_graph is not None
        self.incoming.copy_(gradient)
        self.backward_graph.replay()
        return self.gradient.detach().clone()

    def backward_anew(self, images: Tensor, gradient: Tensor) -> Tensor:
        """Replaces `backward` after another forward pass has overwritten its tensors."""
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


class GraphedNetwork(nn.Module):
    """A network in eval mode without gradients of its weights: images (N, C, H, W) in [0, 1] -> logits (N,
    K).

    Two passes for batches of `count` images are captured, one with and one without a gradient. Batches of
    other sizes run without graphs. If a capture fails, `notify` receives a message, and no pass is replayed.
    """

    def __init__(self, network: nn.Module, count: int, notify: Callable[[str], None]) -> None:
        super().__init__()
        self.network, self.count, self.notify = network, count, notify
        self.stopped = False
        self.pool: Pool | None = None
        self.calls: Counter[bool] = Counter()
        self.recordings: dict[bool, _Recording] = {}

    def forward(self, images: Tensor) -> Tensor:
        if self.stopped or len(images) != self.count:
            return self.network(images)
        differentiable = images.requires_grad and torch.is_grad_enabled()
        if differentiable not in self.recordings:
            self.calls[differentiable] += 1
            if self.calls[differentiable] < CALLS or not self._record(images, differentiable):
                return self.network(images)
        recording = self.recordings[differentiable]
        if recording.backward_graph is None:
            return recording.forward(images)
        logits: Tensor = _Replay.apply(images, recording)
        return logits

    def _record(self, images: Tensor, differentiable: bool) -> bool:
        try:
            self.pool = self.pool or Pool(images.device)
            with torch.set_grad_enabled(differentiable):
                batch = images.detach().clone().requires_grad_(differentiable)
                recording = _Recording(self.network, batch, self.pool)
                _compare(recording, batch)
                _compare(recording, 1 - batch)
            self.recordings[differentiable] = recording
        except Exception as wrong:  # the network's own code may raise anything
            self.stopped = True
            self.recordings, self.pool = {}, None
            # A failed capture hides its cause.
            reason = folding.reason(wrong.__context__ if isinstance(wrong.__context__, Exception) else wrong)
            self.notify(f"CUDA graphs are not used ({reason}), so small networks run more slowly.")
        return not self.stopped


def _compare(recording: _Recording, images: Tensor) -> None:
    images = images.detach().requires_grad_(recording.images.requires_grad)
    logits = recording.network(images)
    folding.check_same(logits.detach(), recording.forward(images), _TOLERANCE, "replay")
    if recording.backward_graph is not None:
        incoming = torch.softmax(logits.detach(), dim=1)
        replayed = recording.backward(incoming)
        folding.check_same(recording._gradient(images, logits, incoming), replayed, _TOLERANCE, "replay")
