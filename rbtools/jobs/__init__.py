"""The jobs of the tools: functions of a record that can be sent to other processes, each with a run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rbtools.execution.executor import JobFunction
from rbtools.execution.run import Run
from rbtools.trainer.recipe import Recipe


class _RunJob(JobFunction):
    """A job with a `run`, which is that of the current process."""

    run: Run

    def with_run(self, run: Run) -> JobFunction:
        return dataclasses.replace(self, run=run)  # type: ignore[type-var]


class _SplitJob(_RunJob):
    """A job that reads the split of the run's selection."""

    def splits(self) -> tuple[str, ...]:
        return (self.run.selection.split,)


@dataclass(frozen=True)
class EvaluateJob(_SplitJob):
    """Run one evaluation task on the record's model."""

    divisible = True
    task: Any
    run: Run

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        from rbtools.jobs.evaluate_record import run_task

        return run_task(record, self.task, self.run)


@dataclass(frozen=True)
class ArchiveJob(_RunJob):
    """Evaluate the record's model on an archive of corrupted images."""

    folder: Path
    names: tuple[str, ...]
    severities: tuple[int, ...]
    reference: Any
    run: Run
    detail: bool = False

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        from rbtools.jobs.corrupted_images import run_archive

        return run_archive(
            record, self.folder, self.names, self.severities, self.reference, self.run, self.detail
        )


@dataclass(frozen=True)
class EvidenceJob(_RunJob):
    """Judge saved adversarial images of the record's model: a file, or those in a folder.

    file: with these weights, whose hash must be the record's; `hints` describe them where it has none.
    """

    path: str
    run: Run
    file: str | None = None
    hints: Any = None  # CheckpointHints

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        from rbtools.jobs.evidence import verify_evidence

        return verify_evidence(record, self.path, self.run, self.file, self.hints)


@dataclass(frozen=True)
class EvaluateAllJob(_SplitJob):
    """Run several evaluation tasks on the record's model, one after another."""

    divisible = True
    tasks: tuple[Any, ...]
    run: Run

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        from rbtools.inputs.data import beside
        from rbtools.jobs.evaluate_record import run_task

        if self.run.plan is not None:
            self.run.plan.each([partial(run_task, record, task, self.run) for task in self.tasks])
        for task in self.tasks:
            record = beside(record, run_task(record, task, self.run))
        return record


@dataclass(frozen=True)
class TwoPhaseJob(_SplitJob):
    """Run cheap attacks on all images of the record's model and an expensive one on a sample of the rest."""

    divisible = True
    request: Any
    run: Run

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        from rbtools.jobs.screened_attack import run_two_phase

        return run_two_phase(record, self.request, self.run)


@dataclass(frozen=True)
class GradientMaskingJob(_SplitJob):
    """Run the tests for gradient masking."""

    task: Any
    run: Run

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        from rbtools.jobs.attack_tasks import run_gradient_masking

        return run_gradient_masking(record, self.task, self.run)


@dataclass(frozen=True)
class TrainTestGapJob(_RunJob):
    """Run a task on train and test, and take the difference; then `more` tasks likewise."""

    divisible = True
    task: Any
    n_train: int | None
    run: Run
    more: tuple[Any, ...] = ()

    def splits(self) -> tuple[str, ...]:
        return ("test", "train")

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        from rbtools.jobs.train_test_gap import ge

        tasks = (self.task, *self.more)
        if self.more and self.run.plan is not None:
            self.run.plan.each([partial(ge, record, task, self.run, self.n_train) for task in tasks])
        for task in tasks:
            record = ge(record, task, self.run, self.n_train)
        return record


@dataclass(frozen=True)
class TrainJob(_RunJob):
    """Train the record's architecture with one method and seed."""

    method: Any
    recipe: Recipe
    seed: int
    run: Run

    def splits(self) -> tuple[str, ...]:
        return ("train",)

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        from rbtools.trainer.train_model import train

        # The store's counters are shared: `replace` keeps the same store object.
        return train(record, self.method, self.recipe, self.run.changed(seed=self.seed))


@dataclass(frozen=True)
class MeasureJob(_SplitJob):
    """Measure the record's network."""

    divisible = True
    request: Any
    run: Run

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        from rbtools.jobs.measurement import measure

        return measure(record, self.request, self.run)
