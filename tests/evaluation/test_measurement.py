"""Measures of records: weights and splits, names, stored results, errors."""

from __future__ import annotations

import dataclasses
import json
import shutil
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy import stats

from rbtools.errors import RbError
from rbtools.inputs import resolve
from rbtools.inputs.data import data_of
from rbtools.jobs import measure_batches, measurement
from rbtools.jobs.measurement import MeasureJob, perturbing
from rbtools.measures import MEASURES
from rbtools.measures.base import Value
from rbtools.records import results
from rbtools.store import Store
from rbtools.trainer import init
from rbtools.trainer.recipe import Recipe
from rbtools.trainer.train_model import TrainingTask
from rbtools.training import METHODS
from tests.conftest import SMALL_ARCH
from tests.runner import Record, entry, in_a_process, run_in, timeless

FRESH = {"schema": 1, "arch": SMALL_ARCH, "dataset": "digits"}
SMALL: dict[str, Any] = {"hessian": {"probes": 2, "iterations": 5}, "wci": {"probes": 2}, "nu": {"steps": 2}}


def asked(*names: str, **own: Any) -> MeasureJob:
    made = tuple(MEASURES.build(name, **SMALL.get(name, {})) for name in names)
    attacks = perturbing(("pgd",), (8 / 255,), 2, None)
    return MeasureJob(made, attacks, **{"batches": 2, "batch_size": 6, **own})


def test_fresh_weights_are_those_that_a_training_starts_from() -> None:
    run = run_in(seed=3)
    data = data_of(FRESH, run, "train")
    task = TrainingTask(FRESH, FRESH, data, METHODS.build("erm"), Recipe(), "fp32")
    begun = init.network(task, run)
    made = init.fresh(SMALL_ARCH, data.about, 3)
    for name, value in begun.state_dict().items():
        assert torch.equal(made.state_dict()[name], value)
    name = "network.classifier.weight"
    other = init.fresh(SMALL_ARCH, data.about, 4)
    assert not torch.equal(other.state_dict()[name], begun.state_dict()[name])


def test_perturbed_images_keep_their_budget_and_the_second_attack_starts_where_the_first_ended() -> None:
    run, attack = run_in(), perturbing(("pgd",), (8 / 255,), 3, None)[0]
    data = data_of(FRESH, run, "train")
    kernel = MEASURES.build("ntk", kernel="twice")
    job = measure_batches.MeasureItem(kernel, attack, "init", data, (1, 5))
    work = measure_batches.MeasureWork(resolve.Inputs(FRESH, data, run), {"key": job})
    with work.opened() as measuring:
        model, _ = measuring._model(job)
        clean = measuring._batch(job, measure_batches.MeasureTile("key", 0, range(5)))
    whole = measure_batches.AttackedBatch(model, clean, 0).batch(job, 64)
    first, second = (whole.attacked - clean.images).abs(), (whole.attacked_twice - whole.attacked).abs()
    assert 0 < float(first.max()) <= 8 / 255 + 1e-6 and 0 < float(second.max()) <= 8 / 255 + 1e-6
    assert float((whole.attacked_twice - clean.images).abs().max()) > 8 / 255
    parts = measure_batches.AttackedBatch(model, clean, 0).batch(job, 2)
    torch.testing.assert_close(parts.attacked, whole.attacked, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in MEASURES if name not in ("params", "macs", "synflow")])
def test_memory_decides_no_number(name: str, trained: dict[str, Record]) -> None:
    """Images at a time (`--batch`) change rounding only."""
    what = asked(name, batches=1)
    one, other = (what(trained["pgd"], run_in(force=True, batch=batch))["metrics"] for batch in (64, 2))
    mine = [key for key in one if key.startswith(name)]
    assert mine and one.keys() == other.keys()
    for key in mine:
        assert one[key] == pytest.approx(other[key], rel=2e-3, abs=1e-6)


@pytest.mark.parametrize(
    "change", [{"init_seed": 1}, {"batch_size": 5}, {"batches": 1}, {"splits": ("test",)}]
)
def test_what_determines_a_result_is_part_of_its_key(change: dict[str, Any]) -> None:
    run = run_in()
    asked("naswot")(FRESH, run)
    asked("naswot", **change)(FRESH, run)
    assert run.store.computed == 2


def test_the_seed_matters_to_what_is_drawn_alone() -> None:
    one, other = (asked("naswot", "jacobian")(FRESH, run_in(force=True, seed=seed)) for seed in (0, 1))
    assert one["metrics"]["naswot"] == other["metrics"]["naswot"]
    assert one["metrics"]["jacobian.init.train"] != other["metrics"]["jacobian.init.train"]
    assert "seed" not in entry(one, "naswot") and entry(other, "jacobian.init.train")["seed"] == 1


@pytest.mark.parametrize(("over", "count"), [("batches", 4), ("examples", 22), ("probes", 10)])
def test_the_interval_of_a_number_is_student_s(over: str, count: int) -> None:
    job: Any = SimpleNamespace(batches=4, n=22, measure=SimpleNamespace(probes=10))
    low, high = measurement._number(Value("", 1.0, 0.5, over), job)["ci95"]
    half = 0.5 * stats.t.ppf(0.975, count - 1)
    assert [low, high] == pytest.approx([1 - half, 1 + half])


def test_what_needs_a_checkpoint_says_so_where_there_is_none() -> None:
    with pytest.raises(RbError, match=r"measure wci needs trained weights.* no checkpoint.*rb-train"):
        asked("wci")(FRESH, run_in())
    assert any(key.startswith("wci") for key in asked("wci", on="init")(FRESH, run_in())["metrics"])


def test_values_that_overflow_are_null_with_a_reason(
    trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = resolve.load_model

    def huge(*args: Any) -> Any:
        model = load(*args)
        for parameter in model.parameters():
            parameter.mul_(1e30)
        return model

    monkeypatch.setattr(resolve, "load_model", huge)
    record = asked("hessian")(trained["erm"], run_in(force=True))
    told = entry(record, "hessian.weight.lmax")
    assert told["value"] is None and "not finite" in told["reason"]
    assert "hessian.weight.lmax" not in record["metrics"]
    json.dumps(record, allow_nan=False)


def test_a_training_keeps_what_was_measured_on_fresh_weights() -> None:
    record = asked("ntk")(FRESH, run_in())
    kept = results.forget_evaluations(record)
    assert kept["metrics"] == record["metrics"] and kept["evals"] == record["evals"]


def test_a_network_that_has_no_live_path_is_measured_like_any_other() -> None:
    dead = {**FRESH, "arch": {**SMALL_ARCH, "str": "|none~0|+|none~0|none~1|+|none~0|none~1|none~2|"}}
    record = asked("ntk", "jacobian", "grad_norm", "snip", "synflow")(dead, run_in())
    assert record["metrics"]["jacobian.init.train"] == 0
    assert "ntk.robust.cond.pgd.8" not in record["metrics"]


@pytest.mark.parametrize("name", MEASURES)
def test_what_is_measured_in_another_way_is_refused_before_the_work(
    name: str, trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = asked(name)
    (one,) = whole.measures
    record = whole(trained["pgd"], run_in())
    before = json.loads(json.dumps(record))
    monkeypatch.setattr(measure_batches, "Measuring", lambda *_: pytest.fail("it was computed"))
    assert json.loads(json.dumps(whole(before, run_in()))) == before
    if one.data:
        with pytest.raises(RbError, match="batch_size 6 there and 5 here"):
            dataclasses.replace(whole, batch_size=5)(before, run_in())
    if one.weights == "init":
        with pytest.raises(RbError, match="init_seed 0 there and 1 here"):
            dataclasses.replace(whole, init_seed=1)(before, run_in())


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.slow
def test_a_divided_measure_is_as_of_one_process(
    name: str, trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two batches of six images; sums over images are cut after four, the `--batch`."""
    tiles: list[range] = []
    computed = measure_batches.Measuring.computed

    def counted(self: Any, tile: Any) -> Any:
        tiles.append(tile.examples)
        return computed(self, tile)

    monkeypatch.setattr(measure_batches.Measuring, "computed", counted)
    request, found = asked(name), []
    for folder in ("alone", "shared"):
        shutil.copytree("rb-store", folder)
    (one,) = request.measures
    record = request(trained["pgd"], run_in("alone", batch=4))
    assert tiles == ([range(6), range(6, 12)] if one.data else [range(1)])
    tiles.clear()
    result = request(trained["pgd"], run_in("shared", batch=4, shard=(1, 2)))
    if one.data:  # of two shards the first begins with the tiles 1, 3, and goes on with the last of the rest
        cut = [range(4), range(6, 10), range(10, 12), range(4, 6)]
        assert tiles == (cut if one.of_images else [range(6), range(6, 12)])
    assert timeless(result) == timeless(record)
    for folder in ("alone", "shared"):
        store = Store(folder)
        found.append({path.name: store.result(path.name) for path in store.files("results")})
        assert not [*store.files("state"), *store.files("leases")]
    assert [*found[0]] == [*found[1]]


def test_two_workers_share_the_measures_of_one_record(trained: dict[str, Record]) -> None:
    words = "margin,ntk,wci --batches 2 --batch-size 8 --probes 2 --attack-steps 1 --device cpu --threads 1"
    records = []
    for jobs in ("1", "2"):
        shutil.copytree("rb-store", jobs)
        out, _, _ = in_a_process("measure", f"{words} --jobs {jobs} --store {jobs}", [trained["pgd"]])
        records.append(timeless(json.loads(out)))
    assert records[0] == records[1]
