"""The jobs of the tools: functions of a record that can be sent to other processes, each with a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rbtools.execution.engine import JobFunction
from rbtools.execution.run import Run
from rbtools.trainer.recipe import Recipe


class _SplitJob(JobFunction):
    """A job that reads the split of the run's selection."""

    def splits(self, run: Run) -> tuple[str, ...]:
        return (run.selection.split,)


@dataclass(frozen=True)
class EvaluateJob(_SplitJob):
    """Run one evaluation task on the record's model."""

    divided = True
    task: Any

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        from rbtools.jobs.evaluate_record import run_task

        return run_task(record, self.task, run)


@dataclass(frozen=True)
class ArchiveJob(JobFunction):
    """Evaluate the record's model on an archive of corrupted images."""

    divided = True
    folder: Path
    names: tuple[str, ...]
    severities: tuple[int, ...]
    reference: Any
    detail: bool = False

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        from rbtools.jobs.corrupted_images import run_archive

        return run_archive(record, self.folder, self.names, self.severities, self.reference, run, self.detail)


@dataclass(frozen=True)
class EvidenceJob(JobFunction):
    """Judge saved adversarial images of the record's model: a file, or those in a folder.

    file: with these weights, whose hash must be the record's; `hints` describe them where it has none.
    """

    path: str
    file: str | None = None
    hints: Any = None  # CheckpointHints

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        from rbtools.jobs.evidence import verify_evidence

        return verify_evidence(record, self.path, run, self.file, self.hints)


@dataclass(frozen=True)
class EvaluateAllJob(_SplitJob):
    """Run several evaluation tasks on the record's model, one after another."""

    divided = True
    tasks: tuple[Any, ...]

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        from rbtools.inputs.data import beside
        from rbtools.jobs.evaluate_record import run_task

        if run.plan is not None:
            run.plan.each([partial(run_task, record, task, run) for task in self.tasks])
        for task in self.tasks:
            record = beside(record, run_task(record, task, run))
        return record


@dataclass(frozen=True)
class TwoPhaseJob(_SplitJob):
    """Run cheap attacks on all images of the record's model and an expensive one on a sample of the rest."""

    divided = True
    request: Any

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        from rbtools.jobs.screened_attack import run_two_phase

        return run_two_phase(record, self.request, run)


@dataclass(frozen=True)
class GradientMaskingJob(_SplitJob):
    """Run the tests for gradient masking."""

    divided = True
    task: Any

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        from rbtools.jobs.attack_tasks import run_gradient_masking

        return run_gradient_masking(record, self.task, run)


@dataclass(frozen=True)
class TrainTestGapJob(JobFunction):
    """Run a task on train and test, and take the difference; then `more` tasks likewise."""

    divided = True
    task: Any
    n_train: int | None
    more: tuple[Any, ...] = ()

    def splits(self, run: Run) -> tuple[str, ...]:
        return ("test", "train")

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        from rbtools.jobs.train_test_gap import ge

        tasks = (self.task, *self.more)
        if self.more and run.plan is not None:
            run.plan.each([partial(ge, record, task, run, self.n_train) for task in tasks])
        for task in tasks:
            record = ge(record, task, run, self.n_train)
        return record


@dataclass(frozen=True)
class TrainJob(JobFunction):
    """Train the record's architecture with one method and seed."""

    method: Any
    recipe: Recipe
    seed: int

    def splits(self, run: Run) -> tuple[str, ...]:
        return ("train",)

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        from rbtools.trainer.train_model import train

        # The store's counters are shared: `replace` keeps the same store object.
        return train(record, self.method, self.recipe, run.changed(seed=self.seed))


@dataclass(frozen=True)
class MeasureJob(_SplitJob):
    """Measure the record's network."""

    divided = True
    request: Any

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        from rbtools.jobs.measurement import measure

        return measure(record, self.request, run)
