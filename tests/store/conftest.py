"""A store with finished and unfinished work in it, made without training anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rbtools.attacks import ATTACKS
from rbtools.evaluation import accuracy
from rbtools.evaluation.base import OutcomeRows
from rbtools.execution.run import Run
from rbtools.spaces import sized
from rbtools.store import Store
from rbtools.trainer import train_model
from rbtools.trainer.recipe import Recipe
from rbtools.training import METHODS
from tests.runner import run_task

Record = dict[str, Any]
IMAGES = 355  # of the test split of digits


class Filling(Store):
    """A store to which every outcome is known: the engine then needs no torch."""

    def outcomes(self, key: str) -> bytes | None:
        known = super().outcomes(key)
        if known is None:
            right = (np.arange(IMAGES) % 4 > 0).astype(np.int32)
            known = OutcomeRows(right, {"seconds": 0.25}, ["cpu"]).encoded()
            self.keep_outcomes(key, known)
        return known


class Filled:
    """The store under test, and what it holds: `trained` records, and what evaluating them gave."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self.trained: list[Record] = []
        self.evaluated: list[Record] = []

    def train(self, index: int, method: str = "erm", epochs: int = 2) -> Record:
        """Keep a training of that network, and give its record."""

        def fit(task: Any, run: Run, key: str) -> Record:
            return {
                "checkpoint": run.store.keep_object(f"weights {key}".encode()),
                "seconds_per_epoch": 1.5,
                "device": "cpu",
                "threads": 1,
                "normalize": [[0.3], [0.4]],
                "history": {"loss": [2.0, 1.5], "seconds": [1.5, 1.5]},
            }

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(train_model, "_fit", fit)
            record = {"schema": 1, "arch": sized("nasbench201", cells=1).arch(index)}
            run = Run.of(tool="rb-train", store=self.store)
            made = train_model.train(record, METHODS.build(method), Recipe(epochs=epochs), run)
        self.trained.append(made)
        return made

    def attack(self, record: Record, split: str = "test", n: int | None = None) -> Record:
        """Keep clean accuracy and that under FGSM, and give the record with both."""
        question = accuracy.attacked(ATTACKS.build("fgsm", eps=8 / 255), (8 / 255,))
        assert self.store.folder is not None
        run = Run.of(tool="rb-attack", store=Filling(self.store.folder), split=split, n=n)
        made = run_task(record, question, run)
        self.evaluated.append(made)
        return made

    def files(self, kind: str) -> list[Path]:
        """The files of one kind."""
        return list(self.store.files(kind))


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    """Two trainings and four evaluations of them: clean accuracy, and FGSM's."""
    made = Filled(tmp_path / "rb-store")
    for index, method in ((13714, "erm"), (1462, "pgd")):
        made.attack(made.train(index, method))
    return made
