"""The works that tools put records through, as values that travel to other processes.

The process they are made in and those they travel to each have a `run` of their own.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rbtools.engine.recipe import Recipe
from rbtools.engine.run import Run


@dataclass(frozen=True)
class Ask:
    """Ask a question about the record's model."""

    question: Any
    run: Run

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        from rbtools.engine.evaluate import ask

        return ask(record, self.question, self.run)


@dataclass(frozen=True)
class AskArchive:
    """Ask for accuracies on the files of an archive of corrupted images."""

    folder: Path
    names: tuple[str, ...]
    severities: tuple[int, ...]
    reference: Any
    run: Run

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        from rbtools.engine.archive import ask

        return ask(record, self.folder, self.names, self.severities, self.reference, self.run)


@dataclass(frozen=True)
class AskAll:
    """Ask several questions about the record's model, one after another."""

    questions: tuple[Any, ...]
    run: Run

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        from rbtools.engine.evaluate import ask

        if self.run.plan is not None:
            self.run.plan.each([partial(ask, record, question, self.run) for question in self.questions])
        for question in self.questions:
            record = ask(record, question, self.run)
        return record


@dataclass(frozen=True)
class Check:
    """Run the obfuscation checklist."""

    question: Any
    run: Run

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        from rbtools.engine.checklist import ask

        return ask(record, self.question, self.run)


@dataclass(frozen=True)
class Gap:
    """Ask on train and test, and take the difference."""

    question: Any
    n_train: int | None
    run: Run

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        from rbtools.engine.generalisation import ge

        return ge(record, self.question, self.run, self.n_train)


@dataclass(frozen=True)
class Train:
    """Train the record's architecture with one method and seed."""

    method: Any
    how: Recipe
    seed: int
    run: Run

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        from rbtools.engine.train import train

        # The store's counters are shared: `replace` keeps the very store object.
        return train(record, self.method, self.how, dataclasses.replace(self.run, seed=self.seed))


@dataclass(frozen=True)
class Measure:
    """Measure the record's network."""

    asked: Any
    run: Run

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        from rbtools.engine.measure import measure

        return measure(record, self.asked, self.run)
