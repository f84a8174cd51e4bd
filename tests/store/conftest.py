"""A store with finished work in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rbtools.attacks import ATTACKS
from rbtools.evaluation import accuracy
from rbtools.execution.run import Run
from rbtools.store import Store
from tests.runner import Record, run_task


class Filled:
    """The store under test, and what it holds: `trained` records, and what evaluating them gave."""

    def __init__(self, trained: list[Record]) -> None:
        self.store, self.trained = Store(Path("rb-store").absolute()), trained
        self.evaluated = [self.attack(record) for record in trained]

    def attack(self, record: Record, split: str = "test", n: int | None = None) -> Record:
        """Keep clean accuracy and that under FGSM, and give the record with both."""
        question = accuracy.attacked(ATTACKS.build("fgsm", eps=8 / 255), (8 / 255,))
        run = Run.of(tool="rb-attack", store=self.store, device="cpu", threads=1, split=split, n=n)
        return run_task(record, question, run)

    def files(self, kind: str) -> list[Path]:
        """The files of one kind."""
        return list(self.store.files(kind))


@pytest.fixture
def filled(trained: dict[str, dict[str, Any]]) -> Filled:
    """Two trainings and four evaluations of them: clean accuracy, and FGSM's."""
    return Filled([*trained.values()])
