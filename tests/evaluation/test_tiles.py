"""Tiles of one evaluation, by several workers, beside other shards, after a kill: as of one process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rbtools.attacks import ATTACKS
from rbtools.corruptions import CORRUPTIONS
from rbtools.errors import RbError
from rbtools.evaluation import accuracy, base, under_corruption
from rbtools.evaluation.base import Outcomes
from rbtools.evaluation.evaluate import _COMPARED as COMPARED
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
from tests.runner import Record, lines, run_in, run_task, timeless

TASKS: dict[str, Callable[[], Evaluation]] = {
    "pgd": lambda: accuracy.attacked(ATTACKS.build("pgd", steps=2), (4 / 255, 8 / 255)),
    "ladder": lambda: accuracy.attacked(ATTACKS.build("pgd", steps=2), (4 / 255, 8 / 255), ladder=True),
    "corruption": lambda: under_corruption.corrupted((CORRUPTIONS.build("gaussian_noise"),), (1, 3)),
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
        if len(ids) != COMPARED:  # the images on which the float32 copy is compared are no tile
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


def asked(task: str, trained: dict[str, Record]) -> Evaluation:
    """The task; a transfer is from both of the trained networks."""
    if task != "transfer":
        return TASKS[task]()
    sources = tuple(json.dumps(record) for record in trained.values())
    return transferred(ATTACKS.build("mi-fgsm", steps=2, diversity=0.5), (0.1,), sources, run_in())


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


class Measured:
    """An evaluation that one process has made in the store `alone`; others make it in `rb-store`."""

    def __init__(self, trained: dict[str, Record], computed: list[int], task: str = "pgd") -> None:
        shutil.copytree("rb-store", "alone")
        self.record, self.question = trained["erm"], asked(task, trained)
        self.expected, self.batches = self.by(run_in("alone")), sorted(computed)
        computed.clear()

    def by(self, run: Run) -> Record:
        return run_task(self.record, self.question, run)

    def killed(self, after: int, **options: Any) -> None:
        """In a process that is killed after so many tiles."""
        run = run_in(**options)
        with pytest.raises(Killed), OneByOne(run) as engine:
            engine.last = after
            self.by(run.changed(pool=engine))

    def check(self, *results: Record) -> None:
        """The results, and what is in the store now, are those of the one process."""
        assert [timeless(result) for result in results] == [timeless(self.expected)] * len(results)
        assert outcomes("rb-store") == outcomes("alone")
        assert not [*Store("rb-store").files("state"), *Store("rb-store").files("leases")]


Make = Callable[..., Measured]


@pytest.fixture
def measured(trained: dict[str, Record], computed: list[int]) -> Make:
    return partial(Measured, trained, computed)


@pytest.mark.parametrize("task", [*TASKS, "transfer"])
@pytest.mark.slow
def test_by_workers_it_is_as_of_one_process(task: str, measured: Make, computed: list[int]) -> None:
    one, run = measured(task), run_in()
    with Backwards(run) as engine:
        one.check(one.by(run.changed(pool=engine)))
    assert sorted(computed) == one.batches


@pytest.mark.parametrize(("task", "after"), [("pgd", 1), ("pgd", 5), ("transfer", 2)])
@pytest.mark.slow
def test_a_killed_run_loses_what_was_under_way(
    task: str, after: int, measured: Make, computed: list[int]
) -> None:
    """Its tiles came in the order 6, 5, 4, 3, 2, 1, and none could be appended to the outcomes."""
    one = measured(task)
    one.killed(after)
    one.check(one.by(run_in()))
    assert len(computed) == 6


def test_saved_images_are_of_all_tiles_beside_parts_of_a_killed_run(measured: Make) -> None:
    one = measured()
    one.killed(3)
    assert list(Store("rb-store").files("state"))
    attack = ATTACKS.build("pgd", steps=2)
    run_task(one.record, accuracy.attacked(attack, (8 / 255,), save="saved"), run_in())
    (file,) = Path("saved").glob("*.npz")
    with np.load(file) as saved:
        assert len(saved["images"]) == len(saved["ids"]) == 355


@pytest.mark.slow
def test_a_worker_takes_the_parts_that_another_shard_has_stored_since(
    measured: Make, computed: list[int]
) -> None:
    """All tiles are handed to the workers at once; before they begin, the other shard stores its own."""
    one = measured()

    class Late(Backwards):
        def wait(self) -> None:
            if not computed:
                one.killed(3, shard=(2, 2))
            super().wait()

    run = run_in(shard=(1, 2))
    with Late(run) as engine:
        one.check(one.by(run.changed(pool=engine)))
    assert len(computed) == 6


@pytest.mark.slow
def test_shards_share_the_tiles(measured: Make, computed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two shards comes when the first has computed a tile, and ends before it."""
    one, measure, results = measured(), Evaluator.measure, []

    def beside(self: Evaluator, *arguments: Any) -> Any:
        if len(computed) == 1:
            monkeypatch.setattr(Evaluator, "measure", measure)
            results.append(one.by(run_in(shard=(2, 2))))
        return measure(self, *arguments)

    monkeypatch.setattr(Evaluator, "measure", beside)
    results.append(one.by(run_in(shard=(1, 2))))
    assert len(results) == 2
    one.check(*results)
    assert len(computed) == 6 + 1  # the tile that was under way


@pytest.mark.slow
def test_a_damaged_part_is_computed_again(measured: Make, computed: list[int]) -> None:
    one = measured()
    one.killed(3)
    next(iter(Store("rb-store").files("state"))).write_bytes(b"cut off")
    one.by(run_in())
    assert len(computed) == 6 + 1
    assert outcomes("rb-store") == outcomes("alone")


def test_workers_of_another_kind_of_device_are_refused(
    trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "kind", lambda run: resources.Kind("cuda"))
    run = run_in(precision="fp32")
    with Backwards(run) as engine, pytest.raises(RbError, match="same device for all with --device"):
        run_task(trained["erm"], TASKS["pgd"](), run.changed(pool=engine))


ASKED = "pgd --steps 5 --eps 2 --n 120 --two-phase 40 --screen-steps 1 --device cpu --jobs 1"
# Batches of 16 images, written at once; the process kills itself instead of one more call of an attack.
RUN = """
import os, signal, sys
from rbtools.commands import attack
from rbtools.evaluation import attacking, base

run_attack, left = attacking.run_attack, [None] * int(sys.argv[1])

def counted(*positional, **named):
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left.pop()
    print("call", file=sys.stderr, flush=True)
    return run_attack(*positional, **named)

attacking.run_attack, base.BATCH, base._SECONDS_BETWEEN_WRITES = counted, {"cpu": 4}, 0.0
attack.main(sys.argv[2:])
"""


def two_phase(record: Record, store: str, most: int = 99) -> tuple[Any, int]:
    """The entry of the attack, None if the process was killed, and how many calls there were."""
    words = [sys.executable, "-c", RUN, str(most), *ASKED.split(), "--store", store]
    done = subprocess.run(words, input=lines(record), capture_output=True, text=True)
    assert done.returncode == (0 if done.stdout else -9), done.stderr
    return json.loads(done.stdout)["evals"][-1] if done.stdout else None, done.stderr.count("call\n")


@pytest.mark.parametrize(("last", "finished"), [(5, 4), (17, 17)])
def test_a_killed_run_goes_on(trained: dict[str, Record], last: int, finished: int) -> None:
    shutil.copytree("rb-store", "other-store")
    whole, calls = two_phase(trained["erm"], "other-store")
    assert calls == 8 * 2 + 3  # screen: 8 batches; sample: 3
    assert two_phase(trained["erm"], "rb-store", last) == (None, last)
    resumed, left = two_phase(trained["erm"], "rb-store")
    assert left == calls - finished
    cost = {"seconds": 0, "passes": 0}
    assert {**resumed, **cost} == {**whole, **cost}
