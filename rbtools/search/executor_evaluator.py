"""Evaluates architectures by a job function, in this process or in workers that live for the whole search."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rbtools.execution.executor import JobFunction, JobReport, executor_for
from rbtools.execution.run import Run

Record = dict[str, Any]


class ExecutorEvaluator:
    """Puts many records at a time through a job function; a context manager that ends its workers.

    A record that fails comes out with an `error`.
    """

    def __init__(self, function: JobFunction, run: Run) -> None:
        self._executor = executor_for([function], run)

    def __enter__(self) -> ExecutorEvaluator:
        self._executor.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.__exit__(kind, error, trace)

    def __call__(self, records: list[Record]) -> list[Record]:
        reports = {event.place: event.report for event in self._executor.map(records)}
        return [_result(record, reports[place]) for place, record in enumerate(records)]


def _result(record: Record, report: JobReport) -> Record:
    if report.result is not None:
        return report.result
    return {**record, "error": {"tool": "rb-search", "message": report.problem or "unknown"}}
