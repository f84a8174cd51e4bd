"""Runs each step of a loop on a GPU as one launch, so that the GPU does not wait for Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rbtools import graphs
from rbtools.attacks.oracle import Oracle
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import ActiveExamples, ExampleRows

_BEFORE = 2  # calls with the same shapes before a call is captured
_LARGEST = 1 << 26  # bytes of a tensor; with larger tensors a kernel takes longer than its launch
_APART = 0.5  # largest difference between a replay and a call of the step, as a share of the step's change


class Replays:
    """Performs a step of a loop by calling `step`, which assigns new tensors to fields of `state` and marks
    broken examples in `active`.

    On a GPU, the third call with the same shapes is captured as a CUDA graph, and later calls replay the
    graph. After the capture, `step` must not depend on any other changing value and must not wait for the
    GPU. If the first replay differs from a call of `step`, or if the capture fails, `step` is always called.
    """

    def __init__(
        self, model: Oracle, state: ExampleRows, step: Callable[[], None], active: ActiveExamples
    ) -> None:
        self.model, self.state, self.step, self.active = model, state, step, active
        self.usable = not model.randomised and graphs.usable(active.row.device)
        self.shapes: Any = None
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.fixed: dict[str, Tensor] = {}

    def __call__(self, case: object = None) -> None:
        """Perform a step. `case` is a further value on which the step depends."""
        if not (self.usable and self.model.passes.captures):
            self.step()
            return
        tensors = self.state.tensors()
        shapes = (case, [(name, tensor.shape) for name, tensor in tensors.items()])
        if shapes != self.shapes:
            self.shapes, self.calls, self.graph = shapes, 0, None
        self.calls += 1
        if self.graph is not None:
            self._settle()
            self.graph.replay()
            self.model.passes.add(*self.passes)
        elif self.calls <= _BEFORE or max(one.nbytes for one in tensors.values()) > _LARGEST:
            self.step()
        else:
            self._record()

    def _settle(self) -> None:
        """Copy new values of the fields into the tensors that the graph uses."""
        now = self.state.tensors()
        held = {id(tensor) for tensor in self.fixed.values()}
        fresh = {name: now[name] for name, tensor in self.fixed.items() if now[name] is not tensor}
        # A field may now contain the tensor of another field, which is overwritten below.
        fresh = {name: value.clone() if id(value) in held else value for name, value in fresh.items()}
        for name, value in fresh.items():
            self.fixed[name].copy_(value)
        self._assign(self.fixed)

    def _assign(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            setattr(self.state, name, tensor)

    def _record(self) -> None:
        """Capture the step, replay it, and compare the result with that of a normal call of the step."""
        before, self.fixed = self._copies(), self._copies()
        marks, counted = self.active.marks(), self._counted()
        try:
            with graphs.no_waits():
                self.step()
            called, marked = self._copies(), self.active.marks()
            self.passes = [now - then for now, then in zip(self._counted(), counted, strict=True)]
            self._assign(self.fixed)
            self.active.set_marks(marks)
            graph, (pool, _) = torch.cuda.CUDAGraph(), graphs.lasting_pool(self.active.row.device)
            with pool.capture(graph):
                self.step()
                self._settle()
            graph.replay()
            self._compare(before, called, marked)
            self.graph = graph
            self._count_from(counted)
            self.model.passes.add(*self.passes)
        except (RuntimeError, ValueError):  # the network's own code does something that cannot be captured
            self.model.passes.captures, self.fixed = False, {}
            graphs.lasting_pool.cache_clear()
            self._count_from(counted)
            self.active.set_marks(marks)
            self._assign(before)
            self.step()

    def _copies(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.state.tensors().items()}

    def _count_from(self, counted: tuple[int, int]) -> None:
        self.model.passes.add(*(then - now for then, now in zip(counted, self._counted(), strict=True)))

    def _counted(self) -> tuple[int, int]:
        return self.model.passes.forwards, self.model.passes.backwards

    def _compare(
        self, before: dict[str, Tensor], called: dict[str, Tensor], marked: tuple[Tensor, ...]
    ) -> None:
        same = [(self.active.marks()[0] == marked[0]).all()]
        for name, tensor in self.fixed.items():
            if tensor.is_floating_point():
                apart, moved = (tensor - called[name]).norm(), (called[name] - before[name]).norm()
                same.append(apart <= _APART * moved)  # NaN fails this comparison, too
        if not bool(torch.stack(same).all()):
            raise ValueError("a replay differs from the step")
