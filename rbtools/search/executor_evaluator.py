"""Records through a work of the engine, here or in worker processes that stay for the whole search."""

from __future__ import annotations

import contextlib
import queue
from types import TracebackType
from typing import Any

from rbtools.execution import local
from rbtools.execution.context import RunContext
from rbtools.execution.job import JobReport, run_job

Record = dict[str, Any]


class ExecutorEvaluator:
    """A work for many records at a time; a context, since its processes end with it.

    A record that fails comes out with an `error`.
    """

    def __init__(self, work: Any, run: RunContext) -> None:
        self.work, self.run = work, run
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._open = contextlib.ExitStack()
        self._pool: local.LocalExecutor | None = None

    def __enter__(self) -> ExecutorEvaluator:
        if self.run.jobs > 1:
            self._pool = self._open.enter_context(local.LocalExecutor([self.work], self.run, self._events))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def __call__(self, records: list[Record]) -> list[Record]:
        if self._pool is None:
            return [_settled(record, run_job(self.work, record, self.run)) for record in records]
        for place, record in enumerate(records):
            self._pool.submit(local.Job(place, 0, record))
        found: dict[int, Record] = {}
        while len(found) < len(records):
            self.run.check_cancelled()
            with contextlib.suppress(queue.Empty):
                event = self._events.get(timeout=0.5)
                if isinstance(event, local.Finished):
                    found[event.place] = _settled(records[event.place], event.report)
        return [found[place] for place in range(len(records))]


def _settled(record: Record, report: JobReport) -> Record:
    if report.result is not None:
        return report.result
    return {**record, "error": {"tool": "rb-search", "message": report.problem or "unknown"}}
