"""The steps of a loop on a GPU as one launch each, so that the GPU does not wait for Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rbtools import graphs
from rbtools.attacks.target import Network
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import ExampleRows

_BEFORE = 2  # steps of a shape before one is captured
_LARGEST = 1 << 26  # bytes of the images: where they are more, a kernel takes longer than its launch
_APART = 0.5  # the largest difference from the same step without a graph, as a share of what the step changed


class Replays:
    """Makes a step of a loop by calling `step`, which assigns new tensors to fields of `state`.

    On a GPU the third call with tensors of some shapes is captured, and then replayed: `step` may not
    depend on anything else that changes, nor wait for the GPU. A replay is compared with the step itself
    before it is used; where they differ, or a network cannot be captured, all steps are calls.
    """

    def __init__(self, model: Network, state: ExampleRows, step: Callable[[], None]) -> None:
        self.model, self.state, self.step = model, state, step
        images: Tensor = state.images  # type: ignore[attr-defined]
        small = images.numel() * images.element_size() <= _LARGEST
        self.allowed = small and not model.randomised and graphs.usable(images.device)
        self.shapes: Any = None
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.fixed: dict[str, Tensor] = {}

    def __call__(self, case: object = None) -> None:
        """Make a step. case: what else the step depends on."""
        if not self.allowed:
            self.step()
            return
        shapes = (case, [(name, tensor.shape) for name, tensor in self.state.tensors().items()])
        if shapes != self.shapes:
            self.shapes, self.calls, self.graph = shapes, 0, None
        self.calls += 1
        if self.graph is not None:
            self._settle()
            self.graph.replay()
            self.model.count(*self.passes)
        elif self.calls <= _BEFORE:
            self.step()
        else:
            self._record()

    def _settle(self) -> None:
        """Copy new values of the fields into the tensors that the graph has."""
        now = self.state.tensors()
        held = {id(tensor) for tensor in self.fixed.values()}
        fresh = {name: now[name] for name, tensor in self.fixed.items() if now[name] is not tensor}
        # A field may have got the tensor of another one, which is written to below.
        fresh = {name: value.clone() if id(value) in held else value for name, value in fresh.items()}
        for name, value in fresh.items():
            self.fixed[name].copy_(value)
        self._assign(self.fixed)

    def _assign(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            setattr(self.state, name, tensor)

    def _record(self) -> None:
        """Capture the step, make it, and compare it with the step without a graph."""
        before, self.fixed = self._copies(), self._copies()
        try:
            passes = self.model.counted
            with graphs.no_waits():
                self.step()
            called = self._copies()
            self.passes = [now - then for now, then in zip(self.model.counted, passes, strict=True)]
            self._assign(self.fixed)
            device = self.state.images.device  # type: ignore[attr-defined]
            graph, pool = torch.cuda.CUDAGraph(), graphs.lasting_pool(device)
            with pool.capture(graph):
                self.step()
                self._settle()
            graph.replay()
            self.model.count(*(-number for number in self.passes))
            self._compare(before, called)
            self.graph = graph
        except (RuntimeError, ValueError):  # whatever the network's own code cannot do in a capture
            self.allowed = False
            self._assign(before)
            self.step()

    def _copies(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.state.tensors().items()}

    def _compare(self, before: dict[str, Tensor], called: dict[str, Tensor]) -> None:
        """Raise ValueError where a replay differs from the step without a graph."""
        for name, tensor in self.fixed.items():
            if tensor.is_floating_point():
                apart, moved = (tensor - called[name]).norm(), (called[name] - before[name]).norm()
                if not bool(apart <= _APART * moved):  # NaN fails this comparison, too
                    raise ValueError(f"a replay differs from the step in {name}")
