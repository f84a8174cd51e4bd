"""Runs each step of a loop on a GPU as one launch, so that the GPU does not wait for Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from rbtools import graphs
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import ActiveExamples

_BEFORE = 2  # calls with the same shapes before a call is captured
_LARGEST = 1 << 26  # bytes of a tensor; with larger tensors a kernel takes longer than its launch
_APART = 0.5  # largest difference between a replay and a call of the step, as a share of the step's change


class _Guard(AbstractContextManager[None]):
    """A context that keeps an error in its body instead of raising it."""

    error: Exception | None = None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.error = error if isinstance(error, (RuntimeError, ValueError)) else None
        return self.error is not None

    def check(self) -> None:
        if self.error is not None:
            raise self.error


class Replays:
    """Performs the steps of a loop, each of which assigns new tensors to fields of `state` and marks broken
    examples in `active`. The loop writes a step as

        for once in replays.step():
            with once:
                ...

    On a GPU, the third step with the same shapes is captured as a CUDA graph; its code runs twice for this.
    Later steps replay the graph, and their code does not run. After the capture, a step must not depend on
    any other changing value and must not wait for the GPU. If the first replay differs from the step's own
    result, or if the capture fails, or without `wanted`, the code of each step runs once.
    """

    def __init__(self, state: Any, active: ActiveExamples, wanted: bool) -> None:
        self.state, self.active = state, active
        self.usable = wanted and not state.model.randomised and graphs.usable(active.row.device)
        self.passes = state.model.passes
        self.shapes: Any = None
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.fixed: dict[str, Tensor] = {}

    def step(self, case: object = None) -> Iterator[AbstractContextManager[None]]:
        """Perform a step. `case` is an additional value on which the step depends."""
        if not (self.usable and self.passes.captures):
            yield nullcontext()
            return
        tensors = self.state.tensors()
        shapes = (case, [(name, tensor.shape) for name, tensor in tensors.items()])
        if shapes != self.shapes:
            self.shapes, self.calls, self.graph = shapes, 0, None
        self.calls += 1
        if self.graph is not None:
            self._settle()
            self.graph.replay()
            self.passes.add(*self.counts)
        elif self.calls <= _BEFORE or max(one.nbytes for one in tensors.values()) > _LARGEST:
            yield nullcontext()
        else:
            yield from self._record()

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

    def _record(self) -> Iterator[AbstractContextManager[None]]:
        """Capture the step, replay it, and compare the result with that of a normal call of the step."""
        before, self.fixed = self._copies(), self._copies()
        marks, counted, guard = self.active.marks(), self._counted(), _Guard()
        try:
            with graphs.no_waits():
                yield guard
                guard.check()
            called, marked = self._copies(), self.active.marks()
            self.counts = [now - then for now, then in zip(self._counted(), counted, strict=True)]
            self._assign(self.fixed)
            self.active.set_marks(marks)
            graph, (pool, _) = torch.cuda.CUDAGraph(), graphs.lasting_pool(self.active.row.device)
            with pool.capture(graph):
                yield guard
                guard.check()
                self._settle()
            graph.replay()
            self._compare(before, called, marked)
            self.graph = graph
            self._count_from(counted)
            self.passes.add(*self.counts)
            return
        except (RuntimeError, ValueError):  # the network's own code does something that cannot be captured
            self.passes.captures, self.fixed, guard.error = False, {}, None
        graphs.lasting_pool.cache_clear()
        self._count_from(counted)
        self.active.set_marks(marks)
        self._assign(before)
        yield nullcontext()

    def _copies(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.state.tensors().items()}

    def _count_from(self, counted: tuple[int, int]) -> None:
        self.passes.add(*(then - now for then, now in zip(counted, self._counted(), strict=True)))

    def _counted(self) -> tuple[int, int]:
        return self.passes.forwards, self.passes.backwards

    def _compare(
        self, before: dict[str, Tensor], called: dict[str, Tensor], marked: tuple[Tensor, ...]
    ) -> None:
        same = [(self.active.marks()[0] == marked[0]).all()]
        for name, tensor in self.fixed.items():
            if tensor.is_floating_point():
                apart, moved = (tensor - called[name]).norm(), (called[name] - before[name]).norm()
                same.append(apart <= _APART * moved)  # NaN fails this comparison, too
        if not bool(torch.stack(same).all()):
            raise ValueError("the result of a replay differs from that of the step")
