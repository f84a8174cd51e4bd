"""The fastest number of threads for a network: measured once, stored, and kept during a training."""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rbtools.execution import cores, measured_threads, resources
from rbtools.execution.measured_threads import Trial
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.store import Store
from rbtools.trainer.recipe import Recipe
from rbtools.trainer.train_model import train
from rbtools.training import METHODS

LARGE = {"space": "zoo", "name": "resnet18"}


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of eight cores, whose user says nothing of threads, and a process that measured nothing."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cores, "count", lambda: 8)
    monkeypatch.setattr(measured_threads, "_known", {})


@pytest.mark.parametrize(
    ("times", "most", "threads"),
    [
        ({1: 10, 2: 9}, 8, 1),  # a second thread gains less than the margin
        ({1: 10, 2: 5, 4: 4.5}, 8, 2),
        ({1: 10, 2: 5, 4: 2.5, 6: 2}, 6, 6),
        ({1: 10, 2: 400}, 8, 1),
        ({}, 1, 1),
    ],
)
def test_twice_the_threads_must_be_faster_by_a_margin(
    times: dict[int, float], most: int, threads: int
) -> None:
    assert measured_threads.fastest(lambda count: times[count], most) == threads


def test_what_else_the_machine_does_decides_nothing() -> None:
    """Of each number the shortest time counts: two threads were disturbed in all turns but one."""
    two = iter([90.0, 5.0, 70.0])
    assert measured_threads.fastest(lambda count: 10.0 if count == 1 else next(two), 2) == 2


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Trial]:
    """The networks that were measured, one after another, of which each found one thread more to pay."""
    trials: list[Trial] = []

    def measure(trial: Trial, most: int) -> int:
        trials.append(trial)
        return 1 + len(trials)

    monkeypatch.setattr(measured_threads, "_measured", measure)
    return trials


def linear(name: str = "linear") -> Trial:
    """Of images of 2x2 pixels."""
    parts = torch.nn.Flatten, partial(torch.nn.Linear, 4, 2)
    return Trial({"name": name}, (1, 2, 2), lambda: torch.nn.Sequential(*(part() for part in parts)))


def test_a_network_is_measured_once_a_store(measured: list[Trial], monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.of(tool="test", store=Store("rb-store"), device="cpu")
    assert [resources.training_threads(run, LARGE, linear()) for _ in range(2)] == [2, 2]
    monkeypatch.setattr(measured_threads, "_known", {})  # as in another process
    assert resources.training_threads(run, LARGE, linear()) == 2
    assert resources.training_threads(run, LARGE, linear("other")) == 3
    monkeypatch.setattr(cores, "count", lambda: 4)  # on fewer cores it is another question
    assert resources.training_threads(run, LARGE, linear()) == 4
    assert len(measured) == 3


def test_without_a_store_a_process_measures_once(measured: list[Trial]) -> None:
    run = Run.of(tool="test", store=Store(None), device="cpu")
    assert [resources.threads_for(run, LARGE, trial=linear()) for _ in range(2)] == [2, 2]


def test_nothing_is_measured_where_the_number_is_known(
    measured: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.of(tool="test", device="cpu")
    assert resources.threads_for(run, {"space": "nasbench201"}, trial=linear()) == 1
    assert resources.threads_for(Run.of(tool="test", jobs=8), LARGE, trial=linear()) == 1
    assert resources.threads_for(Run.of(tool="test", threads=3), LARGE, trial=linear()) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert resources.threads_for(run, LARGE, trial=linear()) == 4
    assert not measured


def test_measuring_changes_neither_draws_nor_threads() -> None:
    run, before = Run.of(tool="test", device="cpu"), torch.get_num_threads()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with torch.no_grad():
        assert 1 <= resources.training_threads(run, LARGE, linear()) <= 8
    assert torch.equal(torch.rand(3), expected) and torch.get_num_threads() == before
    assert len(measured_threads._known) == 1


def test_a_network_that_does_not_run_is_not_measured() -> None:
    """The work itself reports the error."""
    run = Run.of(tool="test", device="cpu")
    assert resources.training_threads(run, LARGE, linear()._replace(shape=(1, 9, 9))) == 8
    assert not measured_threads._known


class Interrupted(Exception):
    """The end of a run."""


def train_in(store: str, **options: Any) -> dict[str, Any]:
    """Train a linear classifier for two epochs."""
    Path("tiny_net.py").write_text(
        "from torch.nn import Flatten, Linear, Sequential\n"
        "def make():\n    return Sequential(Flatten(), Linear(64, 10))\n"
    )
    record = {"schema": 1, "arch": {"space": "python", "name": "tiny_net:make"}, "dataset": "digits"}
    run = Run.of(tool="rb-train", store=Store(store), device="cpu", allow_code=True, **options)
    return train(record, METHODS.build("erm"), Recipe(epochs=2, lr=0.1), run)


@pytest.fixture
def _interrupted(measured: list[Trial], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The state of a training that was interrupted after an epoch; nothing is left of the measurement."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tiny_net", raising=False)
    epochs: list[int] = []

    def stop_in_the_second(event: dict[str, Any]) -> None:
        if event["event"] == "epoch":
            epochs.append(event["epoch"])
        if len(epochs) == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        train_in("rb-store", event=stop_in_the_second)
    assert len(measured) == 1
    shutil.rmtree("rb-store/cache")
    measured_threads._known.clear()


@pytest.mark.usefixtures("_interrupted")
def test_a_training_goes_on_with_the_threads_that_it_began_with(measured: list[Trial]) -> None:
    """Measured anew, three threads would pay."""
    found = train_in("rb-store")
    assert found["train"]["threads"] == 2 and "trained_on" not in found["train"] and len(measured) == 1
    assert train_in("rb-store", threads=1)["train"] == found["train"]  # threads are not in the key
    run = Run.of(tool="test", store=Store("rb-store"), device="cpu", allow_code=True)
    assert [resolve_inputs(found, run).threads() for _ in range(2)] == [3, 3] and len(measured) == 2


@pytest.mark.usefixtures("_interrupted")
@pytest.mark.parametrize(("variable", "count", "threads"), [("3", 8, 3), ("", 1, 1)])
def test_but_with_what_the_user_says_and_no_more_than_there_are_cores(
    variable: str, count: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(cores, "count", lambda: count)
    found = train_in("rb-store")["train"]
    assert found["threads"] == threads and len(found["trained_on"]) == 2
