"""Jobs of one process in turn: threads of which only one runs at a time, and lets the others run between the
steps of its loop.

On a GPU each job has a stream of its own, so what the jobs have launched overlaps there, as it does not for
processes without NVIDIA's MPS. Nothing runs at the same time in Python, and torch's random state is each
job's own, so a job computes what it would compute alone.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

_of_thread = threading.local()


class Turns:
    """The order of a process's threads: the first of the queue has its turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[threading.Event] = deque()

    @contextlib.contextmanager
    def taken(self, check: Callable[[], None]) -> Iterator[None]:
        """Run the block in this thread's turns. `check` is called at the end of each, and may raise."""
        turn = _Turn(self, check)
        turn.begin()
        _of_thread.turn = turn
        try:
            yield
        finally:
            _of_thread.turn = None
            turn.end()

    def queue(self, mine: threading.Event) -> None:
        """Stand in the queue until it is this thread's turn."""
        with self._lock:
            self._queue.append(mine)
            if self._queue[0] is mine:
                mine.set()
        mine.wait()

    def leave(self, mine: threading.Event) -> None:
        """Leave the queue, wherever in it this thread is."""
        with self._lock, contextlib.suppress(ValueError):
            self._queue.remove(mine)
            if self._queue:
                self._queue[0].set()

    @property
    def others_wait(self) -> bool:
        return len(self._queue) > 1


class _Turn:
    """A thread's place in the queue, and the random state of its job while others have their turns."""

    def __init__(self, turns: Turns, check: Callable[[], None]) -> None:
        self.turns, self.check = turns, check
        self.place = threading.Event()

    def begin(self) -> None:
        self.place = threading.Event()
        try:
            self.turns.queue(self.place)
        except BaseException:  # the process is ended meanwhile
            self.end()
            raise

    def end(self) -> None:
        self.turns.leave(self.place)

    @contextlib.contextmanager
    def without(self) -> Iterator[None]:
        """Let the other threads have their turns during the block."""
        state = _random_state()
        self.end()
        try:
            yield
        finally:
            self.begin()
            _set_random_state(state)


def pass_on() -> None:
    """Let the other jobs of this process do their next step; does nothing where this job is the only one.

    Called between the steps of a loop that launches work on a GPU and does not wait for it. What belongs to
    the whole process, such as flags of cuDNN, must not be changed for a block with a call of it.
    """
    turn: _Turn | None = getattr(_of_thread, "turn", None)
    if turn is None:
        return
    turn.check()
    if turn.turns.others_wait:
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


_RandomState = tuple["Tensor", "Tensor | None"]


def _random_state() -> _RandomState | None:
    """The state of torch's own random numbers on the CPU and the current GPU; None before torch is used."""
    if "torch" not in sys.modules:
        return None
    on_gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), on_gpu


def _set_random_state(state: _RandomState | None) -> None:
    if state is None:
        return
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])
