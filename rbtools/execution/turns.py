"""Jobs of one process in turn: threads of which only one runs at a time, and lets the others run between the
steps of its loop.

On a GPU each job has a stream of its own, so what the jobs have launched overlaps there, as it does not for
processes without NVIDIA's MPS. Nothing runs at the same time in Python, and torch's random state is each
job's own, so a job makes the draws and the steps that it would make alone.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

SECONDS = 0.005
"""A turn takes so long at least, so that short steps do not wait for each other."""

_of_thread = threading.local()


class Turns:
    """Which of a process's threads runs: one after another, so that each has about the same time, whatever
    its steps take."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: _Turn | None = None
        self._waiting: list[_Turn] = []

    @contextlib.contextmanager
    def taken(self, check: Callable[[], None]) -> Iterator[None]:
        """Run the block in this thread's turns. `check` is called at the end and the start of each, and may
        raise."""
        turn = _Turn(self, check)
        turn.begin()
        _of_thread.turn = turn
        try:
            yield
        finally:
            _of_thread.turn = None
            self.leave(turn)

    def enter(self, turn: _Turn) -> None:
        """Wait until it is this turn."""
        with self._lock:
            others = [*self._waiting, *([] if self._running is None else [self._running])]
            # Who comes, or has paused, has no claim to the time that the others had meanwhile.
            turn.used = max(turn.used, min((other.used for other in others), default=0.0))
            turn.came.clear()
            if self._running is None:
                self._running = turn
                return
            self._waiting.append(turn)
        turn.came.wait()

    def leave(self, turn: _Turn) -> None:
        """End a turn, or its waiting; who has had the least time comes next."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif self._running is turn:
                self._running = min(self._waiting, key=lambda other: other.used, default=None)
                if self._running is not None:
                    self._waiting.remove(self._running)
                    self._running.came.set()

    def is_over(self, turn: _Turn) -> bool:
        """Whether others wait that have had no more time than this one."""
        with self._lock:
            return any(other.used <= turn.used for other in self._waiting)


class _Turn:
    """The turns of a thread: the seconds of them so far, and its random state while others have theirs."""

    def __init__(self, turns: Turns, check: Callable[[], None]) -> None:
        self.turns, self.check = turns, check
        self.came = threading.Event()
        self.used = self.start = 0.0

    def begin(self) -> None:
        try:
            self.turns.enter(self)
        except BaseException:  # the process is ended meanwhile
            self.turns.leave(self)
            raise
        self.start = time.monotonic()

    def count(self) -> bool:
        """Add the time since the start or the last count, if it is long enough for a turn; whether it is."""
        spent = time.monotonic() - self.start
        if spent < SECONDS:
            return False
        self.used, self.start = self.used + spent, self.start + spent
        return True

    @contextlib.contextmanager
    def without(self) -> Iterator[None]:
        """Let the other threads have their turns during the block."""
        state = _random_state()
        self.turns.leave(self)
        try:
            yield
        finally:
            self.begin()
            _set_random_state(state)
            self.check()


def pass_on() -> None:
    """Let the other jobs of this process do their next step; does nothing where this job is the only one.

    Called between the steps of a loop that launches work on a GPU and does not wait for it. What belongs to
    the whole process, such as flags of cuDNN, must not be changed for a block with a call of it.
    """
    turn: _Turn | None = getattr(_of_thread, "turn", None)
    if turn is None:
        return
    turn.check()
    if turn.count() and turn.turns.is_over(turn):
        with turn.without():
            pass


def pause(seconds: float) -> None:
    """Sleep, while the other jobs of this process go on."""
    turn: _Turn | None = getattr(_of_thread, "turn", None)
    with contextlib.nullcontext() if turn is None else turn.without():
        time.sleep(seconds)


@functools.cache
def stream(device: torch.device, thread: int) -> torch.cuda.Stream:
    """The stream of a thread on a GPU: always the same, since memory is kept for reuse by stream."""
    return torch.cuda.Stream(device)


_RandomState = tuple["Tensor", "list[Tensor]"]


def _random_state() -> _RandomState | None:
    """The state of torch's own random numbers on the CPU and all GPUs; None before torch is used."""
    if "torch" not in sys.modules:
        return None
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def _set_random_state(state: _RandomState | None) -> None:
    if state is None:
        return
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
