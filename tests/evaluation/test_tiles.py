"""Tiles of one evaluation, measured by several workers, beside other shards, after an interruption: outcomes
and entries are those of one process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rbtools.attacks import ATTACKS
from rbtools.corruptions import CORRUPTIONS
from rbtools.errors import RbError
from rbtools.evaluation import accuracy, base
from rbtools.evaluation.base import OutcomeRows, Outcomes
from rbtools.evaluation.evaluate import Evaluator
from rbtools.evaluation.probabilistic import noisy
from rbtools.evaluation.spec import Evaluation
from rbtools.execution import resources
from rbtools.execution.engine import Call, Engine, JobReport, run_job
from rbtools.execution.run import Run
from rbtools.jobs.transfer import transferred
from rbtools.probabilistic import NOISES
from rbtools.probabilistic.estimate import Estimator
from rbtools.store import Store
from tests.runner import Record, run_in, run_task, timeless

TASKS: dict[str, Callable[[], Evaluation]] = {
    "pgd": lambda: accuracy.attacked(ATTACKS.build("pgd", steps=2), (4 / 255, 8 / 255)),
    "ladder": lambda: accuracy.attacked(ATTACKS.build("pgd", steps=2), (4 / 255, 8 / 255), ladder=True),
    "corruption": lambda: accuracy.corrupted((CORRUPTIONS.build("gaussian_noise"),), (1, 3)),
    "noise": lambda: noisy(NOISES.build("uniform"), (0.1,), Estimator(rho=(0.1,)), 4),
}


class Backwards(Engine):
    """Two workers; of the calls that are under way the last is done first."""

    def __enter__(self) -> Backwards:
        self.capacity = 2
        self.held: list[tuple[Call, Future[JobReport]]] = []
        return self

    def submit(self, call: Call) -> Future[JobReport]:
        future: Future[JobReport] = Future()
        self.held.append((call, future))
        return future

    def wait(self) -> None:
        while self.held:
            call, future = self.held.pop()
            future.set_result(run_job(call, self.run.changed(pool=None)))


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits come in tiles of 4 x 16: six of the test split."""
    monkeypatch.setattr(base, "BATCH", {"cpu": 16, "cuda": 128})


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images of each computed batch."""
    sizes: list[int] = []
    made = Evaluator._batch

    def counted(self: Evaluator, ids: Any, *more: Any) -> Any:
        sizes.append(len(ids))
        return made(self, ids, *more)

    monkeypatch.setattr(Evaluator, "_batch", counted)
    return sizes


def outcomes(folder: str) -> dict[str, Any]:
    """What a store has per example, by key: rows, sums without seconds, devices and steps."""
    known = {path.name: Outcomes(Store(folder), path.name) for path in Store(folder).files("outcomes")}
    return {
        key: (
            str(one.values(9999).dtype),
            one.values(9999).tolist(),
            {name: total for name, total in one.totals.items() if name != "seconds"},
            one.known.devices,
            one.known.fast_steps,
        )
        for key, one in known.items()
    }


@pytest.fixture
def stores(tmp_path: Path) -> tuple[str, str]:
    """Two stores with the trained networks' checkpoints."""
    shutil.copytree("rb-store", tmp_path / "other")
    return "rb-store", str(tmp_path / "other")


def asked(task: str, trained: dict[str, Record]) -> Evaluation:
    """The task; a transfer is from both of the trained networks."""
    if task != "transfer":
        return TASKS[task]()
    sources = tuple(json.dumps(record) for record in trained.values())
    return transferred(ATTACKS.build("mi-fgsm", steps=2, diversity=0.5), (0.1,), sources, run_in())


@pytest.mark.parametrize("task", [*TASKS, "transfer"])
@pytest.mark.slow
def test_by_workers_it_is_as_of_one_process(
    task: str, trained: dict[str, Record], stores: tuple[str, str], computed: list[int]
) -> None:
    alone, shared = stores
    question = asked(task, trained)
    expected = run_task(trained["erm"], question, run_in(alone))
    batches_alone = sorted(computed)
    computed.clear()
    run = run_in(shared)
    with Backwards(run) as engine:
        result = run_task(trained["erm"], question, run.changed(pool=engine))
    assert timeless(result) == timeless(expected)
    assert outcomes(shared) == outcomes(alone)
    assert sorted(computed) == batches_alone
    assert not list(Store(shared).files("state")) and not list(Store(shared).files("leases"))


class Killed(BaseException):
    """The process ends here."""


class OneByOne(Backwards):
    """It dies after some calls."""

    last = 0

    def wait(self) -> None:
        if not self.last:
            raise Killed
        self.last -= 1
        call, future = self.held.pop()
        future.set_result(run_job(call, self.run.changed(pool=None)))


def killed(record: Record, run: Run, after: int, question: Evaluation | None = None) -> None:
    """Measure the accuracy under PGD, or what is asked, in a process that is killed after so many tiles."""
    with pytest.raises(Killed), OneByOne(run) as engine:
        engine.last = after
        run_task(record, question or TASKS["pgd"](), run.changed(pool=engine))


@pytest.mark.parametrize(("task", "after"), [("pgd", 1), ("pgd", 5), ("transfer", 2)])
@pytest.mark.slow
def test_a_killed_run_loses_what_was_under_way(
    task: str, after: int, trained: dict[str, Record], stores: tuple[str, str], computed: list[int]
) -> None:
    """Its tiles came in the order 6, 5, 4, 3, 2, 1, and none could be appended to the outcomes."""
    alone, shared = stores
    question = asked(task, trained)
    expected = run_task(trained["erm"], question, run_in(alone))
    computed.clear()
    killed(trained["erm"], run_in(shared), after, question)
    again = run_task(trained["erm"], question, run_in(shared))
    assert len(computed) == 6
    assert timeless(again) == timeless(expected) and outcomes(shared) == outcomes(alone)
    assert not list(Store(shared).files("state"))


def test_saved_images_are_of_all_tiles_beside_parts_of_a_killed_run(
    trained: dict[str, Record], stores: tuple[str, str], computed: list[int], tmp_path: Path
) -> None:
    _, shared = stores
    run = run_in(shared)
    killed(trained["erm"], run, 3)
    assert list(Store(shared).files("state"))
    attack = ATTACKS.build("pgd", steps=2)
    run_task(trained["erm"], accuracy.attacked(attack, (8 / 255,), save=str(tmp_path / "saved")), run)
    (file,) = (tmp_path / "saved").glob("*.npz")
    with np.load(file) as saved:
        assert len(saved["images"]) == len(saved["ids"]) == 355


@pytest.mark.slow
def test_a_worker_takes_the_parts_that_another_shard_has_stored_since(
    trained: dict[str, Record], stores: tuple[str, str], computed: list[int]
) -> None:
    """All tiles are handed to the workers at once; before they begin, the other shard stores its own."""
    alone, shared = stores
    expected = run_task(trained["erm"], TASKS["pgd"](), run_in(alone))
    computed.clear()

    class Late(Backwards):
        def wait(self) -> None:
            if not computed:
                killed(trained["erm"], run_in(shared, shard=(2, 2)), 3)
            super().wait()

    run = run_in(shared, shard=(1, 2))
    with Late(run) as engine:
        result = run_task(trained["erm"], TASKS["pgd"](), run.changed(pool=engine))
    assert timeless(result) == timeless(expected) and len(computed) == 6
    assert not list(Store(shared).files("state"))


@pytest.mark.slow
def test_shards_share_the_tiles(
    trained: dict[str, Record], stores: tuple[str, str], computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two shards comes when the first has computed a tile, and ends before it."""
    alone, shared = stores
    expected = run_task(trained["erm"], TASKS["pgd"](), run_in(alone))
    computed.clear()
    measure, results = Evaluator.measure, []

    def beside(self: Evaluator, *arguments: Any) -> Any:
        if len(computed) == 1:
            monkeypatch.setattr(Evaluator, "measure", measure)
            results.append(run_task(trained["erm"], TASKS["pgd"](), run_in(shared, shard=(2, 2))))
        return measure(self, *arguments)

    monkeypatch.setattr(Evaluator, "measure", beside)
    results.append(run_task(trained["erm"], TASKS["pgd"](), run_in(shared, shard=(1, 2))))
    assert [timeless(result) for result in results] == [timeless(expected)] * 2
    assert outcomes(shared) == outcomes(alone)
    assert len(computed) == 6 + 1  # the tile that was under way
    assert not list(Store(shared).files("state"))


@pytest.mark.slow
def test_a_damaged_part_is_computed_again(
    trained: dict[str, Record], stores: tuple[str, str], computed: list[int]
) -> None:
    alone, shared = stores
    run_task(trained["erm"], TASKS["pgd"](), run_in(alone))
    computed.clear()
    run = run_in(shared)
    killed(trained["erm"], run, 3)
    next(iter(Store(shared).files("state"))).write_bytes(b"cut off")
    run_task(trained["erm"], TASKS["pgd"](), run)
    assert len(computed) == 6 + 1
    assert outcomes(shared) == outcomes(alone)


def test_workers_of_another_kind_of_device_are_refused(
    trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "kind", lambda run: resources.Kind("cuda"))
    run = run_in(precision="fp32")
    with Backwards(run) as engine, pytest.raises(RbError, match="Name one with --device"):
        run_task(trained["erm"], TASKS["pgd"](), run.changed(pool=engine))


@pytest.mark.parametrize("values", [np.arange(3, dtype="i4"), np.eye(3, 2, dtype="f4")])
def test_a_part_is_read_as_it_was_written(values: np.ndarray) -> None:
    written = OutcomeRows(values, {"seconds": 0.5, "forward": 7}, ["cpu"], ["folded"])
    part = OutcomeRows.decoded(written.encoded())
    assert part is not None and (part.devices, part.fast_steps) == (["cpu"], ["folded"])
    assert part.totals == {"seconds": 0.5, "forward": 7}
    np.testing.assert_array_equal(part.values, values)
    assert OutcomeRows.decoded(b"{}\n") is None
