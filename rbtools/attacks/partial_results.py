"""Partial results, from which an interrupted attack continues: the results of its finished parts, and the
state of the running loop. A continued attack finds the same points as an uninterrupted one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import ActiveExamples
    from rbtools.attacks.oracle import Oracle

    Tensors = dict[str, Tensor]


class Remembers(Protocol):
    """An object with values that a part changes: `memory` returns them, and `recall` restores them."""

    def memory(self) -> Tensors: ...

    def recall(self, memory: Tensors) -> None: ...


class PartialResults:
    """This base class stores nothing, so every part is computed, and every loop begins at its first step."""

    def clock(self) -> float:
        """The time in seconds, including what earlier processes spent on the results that are used."""
        return time.perf_counter()

    def open(self, owner: Remembers | None = None) -> Tensors | None:
        """Begin a part of the work, which may itself have parts. If its results are stored, the part is
        finished: they are returned, and `owner` gets its values after the part. Otherwise the caller computes
        the results and calls `close`."""
        return None

    def close(self, found: Tensors) -> Tensors:
        """End the part that was opened last, and return its results."""
        return found

    def loop(self) -> Tensors | None:
        """The stored state of the loop of the open part, if any. Also restores the values of its owner."""
        return None

    def keep_loop(self, state: Callable[[], Tensors]) -> None:
        """Store the state of a loop between two steps, if this is due."""


def continued(model: Oracle, state: Any, active: ActiveExamples | None = None) -> int:
    """The number of finished steps of a loop that has just begun. The state is set to that after these steps.
    If the loop drops examples, the state is an `ExampleRows`. If the class of the state is not from this
    package, the loop begins at the first step, because the state may have fields that are not stored."""
    saved = model.partial.loop() if _is_kept(state) else None
    if saved is None:
        return 0
    if active is not None:
        state.take(torch.searchsorted(active.row, saved["active.row"]))
    objects = {"active": active, "state": state}
    for name, value in saved.items():
        owner, _, field = name.partition(".")
        if owner in objects:
            setattr(objects[owner], field, value if value.ndim else value.item())
    return int(saved["steps"])


def keep(model: Oracle, state: Any, active: ActiveExamples | None, steps: int) -> None:
    """Store the state of a loop after `steps` finished steps, if this is due."""
    if not _is_kept(state):
        return

    def saved() -> Tensors:
        values = {"steps": steps}
        for owner, one in (("active", active), ("state", state)):
            fields = {} if one is None else vars(one)
            values |= {f"{owner}.{name}": value for name, value in fields.items()}
        kinds = (torch.Tensor, int)
        return {name: torch.as_tensor(value) for name, value in values.items() if isinstance(value, kinds)}

    model.partial.keep_loop(saved)


def _is_kept(state: Any) -> bool:
    return type(state).__module__.startswith("rbtools.")
