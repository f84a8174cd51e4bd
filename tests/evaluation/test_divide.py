"""Batches of one evaluation, computed by several processes: outcomes and entries are those of one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from rbtools.attacks import ATTACKS
from rbtools.corruptions import CORRUPTIONS
from rbtools.errors import RbError
from rbtools.evaluation import accuracy, base, evaluate
from rbtools.evaluation.base import Outcomes, TilePart
from rbtools.evaluation.probabilistic import noisy
from rbtools.evaluation.spec import Evaluation
from rbtools.execution.run import Run
from rbtools.inputs.resolve import Inputs
from rbtools.jobs.evaluate_record import run_task
from rbtools.jobs.transfer import transferred
from rbtools.probabilistic import NOISES
from rbtools.probabilistic.estimate import Estimator
from rbtools.store import Store, lease
from tests.waiting import elsewhere

Record = dict[str, Any]
TASKS: dict[str, Callable[[], Evaluation]] = {
    "pgd": lambda: accuracy.attacked(ATTACKS.build("pgd", steps=2), (4 / 255, 8 / 255)),
    "corruption": lambda: accuracy.corrupted((CORRUPTIONS.build("gaussian_noise"),), (1, 3)),
    "noise": lambda: noisy(NOISES.build("uniform"), (0.1,), Estimator(rho=(0.1,)), 4),
}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits come in batches of 4 x 16: six of the test split, which are not cut further."""
    monkeypatch.setattr(base, "BATCH", {"cpu": 16, "cuda": 128})
    monkeypatch.setattr(evaluate, "TILES_OF_BATCH", {})


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images of each computed batch."""
    sizes: list[int] = []
    made = evaluate._batch

    def counted(model: Any, fast: Any, pixels: Any, labels: Any, ids: Any, *more: Any) -> Any:
        sizes.append(len(ids))
        return made(model, fast, pixels, labels, ids, *more)

    monkeypatch.setattr(evaluate, "_batch", counted)
    return sizes


def run_in(folder: str, **options: Any) -> Run:
    return Run.of(tool="rb-test", store=Store(folder), device="cpu", threads=1, **options)


def timeless(record: Record) -> Record:
    """A record without its times."""
    entries = [
        {k: v for k, v in entry.items() if k not in ("seconds", "command")} for entry in record["evals"]
    ]
    return {**record, "evals": entries}


def outcomes(folder: str) -> dict[str, Any]:
    """What a store has per example, by key: rows, sums without seconds, devices and steps."""
    known = {path.name: Outcomes(Store(folder), path.name) for path in Store(folder).files("outcomes")}
    return {
        key: (
            str(one.values(9999).dtype),
            one.values(9999).tolist(),
            {name: total for name, total in one.totals.items() if name != "seconds"},
            one.devices,
            one.fast_steps,
        )
        for key, one in known.items()
    }


def copies(tmp_path: Path) -> tuple[str, str]:
    """Two stores with the trained networks' checkpoints."""
    shutil.copytree("rb-store", tmp_path / "other")
    return "rb-store", str(tmp_path / "other")


def asked(task: str, trained: dict[str, Record]) -> Evaluation:
    """The task; a transfer is from both of the trained networks."""
    if task != "transfer":
        return TASKS[task]()
    sources = tuple(json.dumps(record) for record in trained.values())
    return transferred(ATTACKS.build("mi-fgsm", steps=2, diversity=0.5), (0.1,), sources, run_in("rb-store"))


@pytest.mark.parametrize("task", [*TASKS, "transfer"])
@pytest.mark.parametrize("helped", [False, True])
def test_divided_is_as_of_one_process(
    task: str, helped: bool, trained: dict[str, Record], tmp_path: Path, computed: list[int]
) -> None:
    alone, shared = copies(tmp_path)
    question = asked(task, trained)
    expected = run_task(trained["erm"], question, run_in(alone))
    batches_alone = sorted(computed)
    if helped:
        with elsewhere():
            run_task(trained["erm"], question, run_in(shared, divide=True))
        computed.clear()
    result = run_task(trained["erm"], question, run_in(shared, divide=True))
    assert timeless(result) == timeless(expected)
    assert outcomes(shared) == outcomes(alone)
    assert not list(Store(shared).files("state")) and not list(Store(shared).files("leases"))
    assert sorted(computed) == ([] if helped else sorted(batches_alone * 2))


@pytest.mark.parametrize(
    ("n", "workers", "sizes"),
    [
        (1000, 2, [128, 128, 128, 128, 122, 91, 68, 51, 39, 32, 32, 32, 21]),
        (100, 2, [32, 32, 36]),
        (300, 8, [32] * 8 + [44]),
        (47, 8, [47]),
    ],
)
def test_every_worker_has_tiles_and_they_become_smaller(
    n: int, workers: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "BATCH", {"cpu": 128, "cuda": 128})
    monkeypatch.setattr(evaluate, "TILES_OF_BATCH", {"cpu": 4})
    cuts = {
        (task, device): evaluate.cut(TASKS[task]().every, n, torch.device(device), (3, 32, 32), workers)
        for task in TASKS
        for device in ("cpu", "cuda")
    }
    for (task, device), tiles in cuts.items():
        cut = task == "corruption" and device == "cpu"
        assert [len(tile) for tile in tiles] == (sizes if cut else [128] * (n // 128) + [n % 128])
        assert [i for tile in tiles for i in tile] == list(range(n))


def test_fewer_images_than_a_batch_are_divided_too(
    trained: dict[str, Record], tmp_path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "TILES_OF_BATCH", {"cpu": 4})
    alone, shared = copies(tmp_path)
    task = accuracy.corrupted(tuple(CORRUPTIONS.build(name) for name in ("fog", "gaussian_noise")), (1, 5))
    expected = run_task(trained["erm"], task, run_in(alone, n=50))
    assert computed == [50]
    computed.clear()
    with elsewhere():
        run_task(trained["erm"], task, run_in(shared, n=50, divide=True, workers=2))
    assert computed == [16, 16, 18]
    result = run_task(trained["erm"], task, run_in(shared, n=50, divide=True, workers=2))
    assert computed == [16, 16, 18]
    assert timeless(result) == timeless(expected) and outcomes(shared) == outcomes(alone)


def test_a_helper_that_comes_too_late_computes_nothing(
    trained: dict[str, Record], computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it loads the network, the evaluation ends and its parts are joined and dropped."""
    load, claimed = Inputs.load_model, Store.claimed

    def ended_meanwhile(inputs: Inputs, *rest: Any) -> Any:
        monkeypatch.setattr(Inputs, "load_model", load)
        with mock.patch.object(Store, "claimed", claimed):
            run_task(trained["erm"], TASKS["pgd"](), run_in("rb-store", divide=True))
        return load(inputs, *rest)

    monkeypatch.setattr(Inputs, "load_model", ended_meanwhile)
    with elsewhere():
        run_task(trained["erm"], TASKS["pgd"](), run_in("rb-store", divide=True))
    assert len(computed) == 6
    assert not list(Store("rb-store").files("state")) and not list(Store("rb-store").files("leases"))


def test_more_images_or_another_eps_go_on_from_what_is_there(
    trained: dict[str, Record], tmp_path: Path, computed: list[int]
) -> None:
    alone, shared = copies(tmp_path)
    for folder, options in ((alone, {}), (shared, {"divide": True})):
        attack = ATTACKS.build("pgd", steps=1)
        run_task(trained["erm"], accuracy.attacked(attack, (8 / 255,)), run_in(folder, n=100, **options))
        run_task(trained["erm"], accuracy.attacked(attack, (4 / 255, 8 / 255)), run_in(folder, **options))
    half = len(computed) // 2
    assert computed[:half] == computed[half:]
    assert outcomes(shared) == outcomes(alone)


def test_a_batch_that_another_process_computes_is_left_to_it(
    trained: dict[str, Record], computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = lease.claim
    asked: list[Path] = []

    def third_is_taken(path: Path) -> Any:
        asked.append(path)
        return None if len(asked) == 3 else claim(path)

    monkeypatch.setattr(lease, "claim", third_is_taken)
    with elsewhere():
        run_task(trained["erm"], TASKS["pgd"](), run_in("rb-store", divide=True))
    assert len(computed) == 5 + 1  # in its second round it found the lease free
    computed.clear()
    run_task(trained["pgd"], TASKS["pgd"](), run_in("rb-store", divide=True))
    assert sorted(computed) == [35, 64, 64, 64, 64, 64]


def test_who_waits_for_another_helps_meanwhile(
    trained: dict[str, Record], tmp_path: Path, computed: list[int]
) -> None:
    """As on another host: the evaluation's lease is taken, its batches are free."""
    alone, shared = copies(tmp_path)
    expected = run_task(trained["erm"], TASKS["pgd"](), run_in(alone))
    paths = [Store(shared).path("leases", key) for key in outcomes(alone)]
    held = [lease.claim(path) for path in paths if path is not None]
    computed.clear()

    def release_once_helped() -> None:
        if len(computed) == 6:
            for one in held:
                assert one is not None
                one.release()

    run = run_in(shared, divide=True, check_cancelled=release_once_helped)
    result = run_task(trained["erm"], TASKS["pgd"](), run)
    assert len(computed) == 6
    assert timeless(result) == timeless(expected) and outcomes(shared) == outcomes(alone)


def test_a_damaged_part_is_computed_again(
    trained: dict[str, Record], tmp_path: Path, computed: list[int]
) -> None:
    alone, shared = copies(tmp_path)
    run_task(trained["erm"], TASKS["pgd"](), run_in(alone))
    with elsewhere():
        run_task(trained["erm"], TASKS["pgd"](), run_in(shared, divide=True))
    next(iter(Store(shared).files("state"))).write_bytes(b"cut off")
    computed.clear()
    run_task(trained["erm"], TASKS["pgd"](), run_in(shared, divide=True))
    assert len(computed) == 1
    assert outcomes(shared) == outcomes(alone)


def test_a_store_that_cannot_be_written_costs_nothing_twice(
    trained: dict[str, Record], tmp_path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, shared = copies(tmp_path)
    expected = run_task(trained["erm"], TASKS["pgd"](), run_in(alone))
    computed.clear()

    def full(path: Path, *rest: Any, **more: Any) -> Any:
        raise OSError("no space left")

    monkeypatch.setattr(lease, "claim", full)
    monkeypatch.setattr(lease, "wait", full)
    monkeypatch.setattr(Store, "_write", lambda *arguments, **more: None)
    result = run_task(trained["erm"], TASKS["pgd"](), run_in(shared, divide=True))
    assert timeless(result) == timeless(expected) and len(computed) == 6


def test_a_helper_has_no_part_in_what_is_not_divided(trained: dict[str, Record], computed: list[int]) -> None:
    with elsewhere():
        run_task(trained["erm"], TASKS["pgd"](), run_in("rb-store", n=50, divide=True))
    assert computed == []


def test_errors_of_a_batch_leave_its_lease(
    trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> Any:
        raise RbError("no memory")

    monkeypatch.setattr(evaluate, "_batch", broken)
    with pytest.raises(RbError, match="no memory"):
        run_task(trained["erm"], TASKS["pgd"](), run_in("rb-store", divide=True))
    assert not list(Store("rb-store").files("leases"))


@pytest.mark.parametrize("values", [np.arange(3), np.linspace(0, 1, 6).reshape(3, 2)])
def test_a_part_is_read_as_it_was_written(values: np.ndarray) -> None:
    part = TilePart.decoded(TilePart(values, {"seconds": 0.5, "forward": 7}, "cpu", ("folded",)).encoded())
    assert part is not None and (part.device, part.fast_steps) == ("cpu", ["folded"])
    assert part.totals == {"seconds": 0.5, "forward": 7}
    np.testing.assert_array_equal(part.values, values.astype(part.values.dtype))
    assert TilePart.decoded(b"{}\n") is None
