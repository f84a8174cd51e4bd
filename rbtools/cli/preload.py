"""A stage of a pipe imports what its jobs need while it waits for its first record."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rbtools.cli import BEGUN

if TYPE_CHECKING:
    from rbtools.execution.executor import JobFunction


class Preload(threading.Timer):
    """Imports what the jobs need if the first record is late: upstream computes, so its record is new.

    Late is twice the time that this process took to start. The stages of a pipe start together, so on a busy
    machine as well, records that all stages find in their store come before, and cost no import.
    """

    def __init__(self, functions: Sequence[JobFunction]) -> None:
        super().__init__(time.perf_counter() - BEGUN, self._import, [functions])
        self.daemon = True

    def _import(self, functions: Sequence[JobFunction]) -> None:
        with contextlib.suppress(Exception):  # the job imports it again, and reports the error
            for function in functions:
                function.preload()

    def finish(self, timeout: float | None = None) -> None:
        """Do not begin; wait for what has begun, since two threads that import torch can fail both."""
        self.cancel()
        self.join(timeout)


def running() -> bool:
    """Whether an import runs that nobody waits for."""
    return any(isinstance(thread, Preload) for thread in threading.enumerate())
