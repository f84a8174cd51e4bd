"""The jobs of the tools: functions of a record and a run that can be sent to other processes."""

from __future__ import annotations

from rbtools.execution.engine import JobFunction
from rbtools.execution.run import Run


class SplitJob(JobFunction):
    """A job that evaluates a model on the split that the run selects."""

    divided = True

    def reads(self, run: Run) -> tuple[str, ...]:
        return (run.selection.split,)
