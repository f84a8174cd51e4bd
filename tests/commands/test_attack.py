"""rb-attack at the command line: records in and out, the store, two phases, the curve, what goes wrong."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rbtools import api
from rbtools.attacks import ATTACKS, presets
from rbtools.attacks.curve import CurveAttack
from rbtools.evaluation import accuracy, attacking
from rbtools.evaluation.distances import local_optimality
from rbtools.evaluation.spec import Evaluation
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.jobs import screened_attack, stored_results
from rbtools.jobs.screened_attack import Screened
from rbtools.records import answers, metric_name
from rbtools.store import Store
from tests import runner
from tests.runner import Record, in_a_process, one, records

run = runner.command("attack", "--device cpu")


def test_an_attack_adds_its_results_and_passes_the_rest(trained: dict[str, Record]) -> None:
    before = trained["erm"]
    asked = "--steps 3 --eps 4,16/255,16 --n 50 --seed 5 --precision fp32"
    result = run(f"pgd {asked}", before)
    record = one(result)
    assert result.stderr == "rb-attack: 1 record: 1 computed, 0 found in the store.\n"
    own = ("metrics", "evals", "checksums")
    assert record.items() >= {key: value for key, value in before.items() if key not in own}.items()
    assert list(record["metrics"]) == ["seconds_per_epoch", "acc", "pgd3.4", "pgd3.16"]
    assert record["metrics"]["acc"] >= record["metrics"]["pgd3.4"] >= record["metrics"]["pgd3.16"]
    entry = record["evals"][-1]
    assert 0 <= entry["ci95"][0] <= entry["value"] and entry["seconds"] > 0
    # a step is a forward and a backward pass of the unbroken images; then the final check
    passes, bits = entry["passes"], entry["answers"]
    assert (bits["images"], bits["examples"]) == (50, next(iter(record["examples"])))
    assert 0 < passes["backward"] <= 3 and passes["backward"] < passes["forward"] <= 3 + 3 + 2
    told = {"tool": "rb-attack", "attack": "pgd", "norm": "linf", "eps": 16 / 255, "steps": 3, "seed": 5}
    assert entry.items() >= {**told, "split": "test", "n": 50, "precision": "fp32"}.items()


@pytest.mark.slow
def test_large_details_stay_in_the_store(trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures fetch them by their key, and are the same to the byte."""
    words = "fgsm --eps 8 --n 30 --detail"
    inside = one(run(words, trained["erm"]))
    monkeypatch.setattr(stored_results, "LARGE_DETAIL", 100)
    apart = one(run(words, trained["erm"]))
    assert list(apart["evals"][-1]["detail"]) == ["stored"]
    for name, record in {"inside": inside, "apart": apart}.items():
        drawn = runner.run("plot", f"confusion --metric fgsm.8 -o {name}.svg", [record])
        assert drawn.exit_code == 0, drawn.stderr
    assert Path("inside.svg").read_bytes() == Path("apart.svg").read_bytes()
    lost = runner.run("plot", "confusion --metric fgsm.8 --store other -o lost.svg", [apart])
    assert lost.exit_code == 2 and "The details of fgsm.8 are not in the store" in lost.stderr


def test_a_metric_that_is_not_what_its_entry_says_is_said_and_replaced(trained: dict[str, Record]) -> None:
    made = one(run("fgsm --eps 8 --n 10", trained["erm"]))
    false = {**made, "metrics": {**made["metrics"], "fgsm.8": 1.5}}
    result = run("fgsm --eps 8 --n 10", false, false)
    assert result.stderr.startswith(
        "rb-attack: warning: fgsm.8 of a record differs from its entry in evals. Measuring it again replaces"
        " it.\nrb-attack: 2 records:"
    )
    assert json.loads(result.stdout.splitlines()[0])["metrics"] == made["metrics"]


@pytest.mark.parametrize("more", ["", "--two-phase 10", "--precision-goal .4"])
def test_a_run_that_finds_everything_imports_no_torch(more: str, trained: dict[str, Record]) -> None:
    words = f"pgd --steps 3 --eps 16 --n 20 --device cpu {more}{' --screen-steps 1' * bool(more)}"
    first = run(words, *trained.values())
    out, said, modules = in_a_process("attack", words, [*trained.values()])
    again = [json.loads(line) for line in out.splitlines()]
    for entry in (entry for record in again for entry in record["evals"]):
        entry.pop("command", None)  # only a separate process has a command line
    assert again == records(first)
    assert said == "rb-attack: 2 records: 0 computed, 2 found in the store.\n"
    assert not {"torch", "numpy", "scipy", "sklearn"} & modules


def test_a_full_disk_loses_no_result(trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "replace", refuse)
        result = run("fgsm --n 20", trained["erm"], trained["pgd"])
    assert result.exit_code == 0
    assert all("fgsm.8" in record["metrics"] for record in records(result))
    warning, *others = [line for line in result.stderr.splitlines() if "warning" in line]
    assert "No space left on device" in warning and "not to the store" in warning
    assert not others  # once is enough, however many records there are


def test_the_shards_of_one_checkpoint_share_its_images_and_the_first_writes(
    trained: dict[str, Record],
) -> None:
    shutil.copyfile(Store("rb-store").object(trained["erm"]["checkpoint"]), "model.safetensors")
    chosen = "fgsm --checkpoint model.safetensors --dataset digits --n 20"
    whole = one(run(f"{chosen} --store alone"))
    second = run(f"{chosen} --shard 2/2")
    assert second.exit_code == 0 and second.stdout == ""
    assert second.stderr.endswith("1 record: 1 computed, 0 found in the store, 1 written by another shard.\n")
    first = run(f"{chosen} --shard 1/2")
    assert first.stderr.endswith("1 record: 0 computed, 1 found in the store.\n")
    record = one(first)
    assert record["metrics"] == whole["metrics"]
    for option in ("--store=none", "--force"):
        refused = run(f"{chosen} --shard 2/2 {option}")
        assert refused.exit_code == 2 and "--shard with --checkpoint divides the images" in refused.stderr


def test_a_presets_step_gives_way_where_it_cannot_reach() -> None:
    near, far = presets.preset("rice2020", (8 / 255, 76.5 / 255))
    assert (near.eps, near.params["step_size"]) == ((8 / 255,), 2 / 255)
    assert far.eps == (76.5 / 255,) and "step_size" not in far.params
    assert len(presets.preset("jung2023", (8 / 255,))) == 4


@pytest.mark.slow
def test_a_ladder_only_sharpens_the_result(trained: dict[str, Record]) -> None:
    plain = one(run("pgd --eps 4,16,32 --steps 3 --n 60", trained["erm"]))
    ladder = one(run("pgd --eps 32,4,16 --ladder --steps 3 --n 60 --force", plain))
    names = ["pgd3.4", "pgd3.16", "pgd3.32"]
    before, after = plain["metrics"], ladder["metrics"]
    assert before[names[0]] == after[names[0]]  # the smallest distance is the plain attack
    assert all(after[name] <= before[name] for name in names)
    assert sorted((after[name] for name in names), reverse=True) == [after[name] for name in names]
    assert ladder["evals"][-1]["ladder"]


@pytest.mark.slow
def test_what_was_counted_is_counted_once_however_the_examples_came(trained: dict[str, Record]) -> None:
    how = "aa --attacks fgsm,pgd --n"
    shutil.copytree("rb-store", "whole-store")
    whole = one(run(f"{how} 60 --eps 16,32 --store whole-store", trained["erm"]))
    one(run(f"{how} 20 --eps 16", trained["erm"]))
    parts = one(run(f"{how} 60 --eps 16,32", trained["erm"]))
    for name in ("ensemble-fgsm-pgd.16", "ensemble-fgsm-pgd.32"):
        wanted, found = (runner.entry(record, name) for record in (whole, parts))
        assert found["value"] == wanted["value"] and found["broken_by"] == wanted["broken_by"]
        broken = round(60 * (parts["metrics"]["acc"] - found["value"]))
        assert sum(found["broken_by"].values()) == broken > 0


@pytest.mark.slow
def test_an_ensemble_of_other_attacks_is_never_called_autoattack(trained: dict[str, Record]) -> None:
    how = "aa --eps 16 --n 10 --attacks"
    record = one(run(f"{how} noise,fgsm", trained["erm"]))
    entry = record["evals"][-1]
    assert entry["metric"] == "ensemble-fgsm-noise.16" and "aa.16" not in record["metrics"]
    again = run(f"{how} ' noise, fgsm,noise'", trained["erm"])
    assert one(again)["evals"][-1] == entry and "1 found in the store" in again.stderr
    verdicts = one(runner.run("verify", "", [record]))["verify"]["entries"]
    assert verdicts["ensemble-fgsm-noise.16"]["verdict"] == "match"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"attacks": "fgsm"}, "ensemble-fgsm"),
        ({"attacks": "square,pgd", "norm": "l2"}, "ensemble-pgd-square.l2"),
        ({"attacks": "square, fab-t,apgd-t,apgd-ce", "variant": "plus"}, "aa"),
        ({"attacks": "apgd-ce,apgd-t,fab-t,square", "norm": "l1"}, "ensemble-apgd-ce-apgd-t-fab-t-square.l1"),
    ],
)
def test_the_name_of_an_ensemble_is_that_of_its_parts(settings: dict[str, str], name: str) -> None:
    attack = ATTACKS.build("aa", **settings)
    assert attack.stem == name
    metric = metric_name.attack_name(name, "8")
    parts = metric_name.parse(metric)
    assert (parts.build(), parts.over, parts.number != "") == (metric, "eps", True)
    assert metric_name.is_share(metric) and metric_name.higher_is_better(metric)


def test_detail_and_saved_images_tell_the_same_as_the_number(trained: dict[str, Record]) -> None:
    plain = "pgd --eps 16 --steps 3 --n 60"
    assert run(plain, trained["erm"]).exit_code == 0  # the images are made though the result is known
    words = f"{plain} --detail --save-adv adv"
    record = one(run(words, trained["erm"]))
    entry = record["evals"][-1]
    confusion = np.array(entry["detail"]["confusion"])
    assert confusion.sum(1).tolist() == [6] * 10  # as many of each class
    assert np.trace(confusion) / 60 == entry["value"]
    label = np.array(entry["detail"]["confidence"]["label"])
    assert np.allclose(label.sum(1), 1, atol=1e-3)
    right, wrong = entry["detail"]["confidence"]["prediction"]
    assert 0.1 < right <= 1 and 0.1 < wrong <= 1
    (file,) = Path("adv").glob("*.npz")
    saved = np.load(file)
    right = api.load(record)(torch.from_numpy(saved["images"])).argmax(1).numpy() == saved["labels"]
    assert right.sum() / 60 == entry["value"]
    assert runner.entry(one(run("fgsm --n 60", record)), "acc") == runner.entry(record, "acc")  # details stay


CHECK = "check --eps 8 --n 40 --steps 5 --queries 20 --samples 5"


def test_the_checklist_passes_an_ordinary_model(trained: dict[str, Record]) -> None:
    record = one(run(CHECK, trained["erm"]))
    entry = record["evals"][-1]
    assert entry["metric"] == "obfuscation.failed" and [test["test"] for test in entry["tests"]] == [*"abcde"]
    values = record["metrics"]
    by = {test["test"]: test["by"] for test in entry["tests"]}
    assert by["a"] == pytest.approx(values["fgsm.8"] - values["pgd5.8"])
    assert by["b"] == pytest.approx(values["square.8"] - values["pgd5.8"])
    assert by["c"] == pytest.approx(-values["pgd5.255"])
    assert values["obfuscation.failed"] == sum(not test["holds"] for test in entry["tests"])
    assert "1 found in the store" in run(CHECK, trained["erm"]).stderr


TWO_PHASE = "pgd --steps 5 --eps 32 --n 120"


@pytest.fixture
def weak_screen(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """One step of half the distance: the screen leaves images that PGD breaks."""

    screen = (ATTACKS.build("pgd", steps=1, step_size=16 / 255, start="zero", eps=32 / 255),)
    monkeypatch.setattr(screened_attack, "screen_of", lambda method, steps: screen)
    return screen


def two_phase(record: Record, options: str) -> dict[str, Any]:
    entry: dict[str, Any] = one(run(f"{TWO_PHASE} --screen-steps 1 {options}", record))["evals"][-1]
    return entry


def outcomes_of(record: Record, task: Any) -> np.ndarray:
    """The outcomes of the last output of a task on the first 120 images."""
    inputs = resolve_inputs(record, Run.of("rb-attack", Store(Path("rb-store")), n=120, device="cpu"))
    rows: np.ndarray = stored_results.task_entries(inputs, task).rows(task.specs[0])
    return rows


def test_two_phases_on_all_survivors_are_exact(
    known: dict[str, Record], weak_screen: tuple[Any, ...]
) -> None:
    entry = two_phase(known["erm"], "--two-phase all")
    method = ATTACKS.build("pgd", steps=5, eps=32 / 255)
    margins = outcomes_of(known["erm"], Evaluation(title="", specs=(Screened(attacks=weak_screen),)))[:, 0]
    stands = outcomes_of(known["erm"], accuracy.attacked(method, (32 / 255,)))
    both = (margins >= 0) & (stands == 1)
    assert 0 < both.sum() < (margins >= 0).sum() < 120
    assert entry["value"] == both.sum() / 120 and entry["n"] == 120
    about = entry["two_phase"]
    assert about["interval"] == [entry["value"]] * 2
    assert about["sampled"] == about["survivors"] == (margins >= 0).sum()
    assert entry["screen"] == "pgd1" and entry["metric"] == "pgd5.32"
    answered = answers.of(entry)
    assert answered is not None and np.array_equal(answered.right, both)
    assert "answers" not in two_phase(known["erm"], "--two-phase 20")


def test_a_larger_sample_continues_the_smaller(
    known: dict[str, Record], weak_screen: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    attacked: list[int] = []
    attack = attacking.run_attack

    def counted(batch: Any, method: Any, *more: Any, **options: Any) -> Any:
        if method.name == "pgd" and method.steps == 5:
            attacked.extend(batch.ids.tolist())
        return attack(batch, method, *more, **options)

    monkeypatch.setattr(attacking, "run_attack", counted)
    small = two_phase(known["erm"], "--two-phase 20")
    assert len(attacked) == 20 == small["two_phase"]["sampled"]
    large = two_phase(known["erm"], "--two-phase 30")
    assert len(set(attacked)) == len(attacked) == 30
    strata = np.array(large["two_phase"]["strata"])
    assert strata[:, 2].sum() > 0
    assert strata[:, 1].sum() == 30 and (strata[:, 1] <= strata[:, 0]).all()
    lost = (strata[:, 0] * strata[:, 2] / strata[:, 1]).sum()
    assert large["value"] == pytest.approx((strata[:, 0].sum() - lost) / 120)
    low, high = large["ci95"]
    inner = large["two_phase"]["interval"]
    assert low < inner[0] <= large["value"] <= inner[1] < high
    again = run(f"{TWO_PHASE} --two-phase 30 --screen-steps 1", known["erm"])
    assert len(attacked) == 30 and "1 found in the store" in again.stderr


def test_a_smaller_sample_does_not_replace_a_larger(known: dict[str, Record]) -> None:
    exact = one(run(f"{TWO_PHASE} --two-phase all --screen-steps 1", known["erm"]))
    result = run(f"{TWO_PHASE} --two-phase 20 --screen-steps 1", exact)
    assert one(result)["evals"] == exact["evals"]
    assert "the record keeps its estimate, which uses a larger sample" in result.stderr
    replaced = one(run(f"{TWO_PHASE} --two-phase 20 --screen-steps 1 --force", exact))
    assert replaced["evals"][-1]["two_phase"]["sampled"] == 20


def test_a_goal_of_precision_enlarges_the_sample_until_it_is_met(known: dict[str, Record]) -> None:
    coarse = two_phase(known["erm"], "--precision-goal .2")["two_phase"]
    fine = two_phase(known["erm"], "--precision-goal .0001")["two_phase"]
    assert coarse["goal"] == 0.2 and coarse["sampled"] == 48 < coarse["survivors"]
    assert "optimistic" in coarse["estimator"] and "optimistic" not in fine["estimator"]
    assert (coarse["interval"][1] - coarse["interval"][0]) / 2 <= 0.2
    assert fine["sampled"] == fine["survivors"] and fine["interval"][0] == fine["interval"][1]


def test_two_phases_in_l1_screen_with_apgd() -> None:
    screen = screened_attack.screen_of(ATTACKS.build("apgd-t", norm="l1", eps=1), 10)
    assert [(one.stem, one.norm, one.steps) for one in screen] == [
        ("apgd-ce.l1", "l1", 10),
        ("apgd-margin.l1", "l1", 10),
    ]


def test_a_model_that_the_screen_breaks_whole_has_accuracy_0(known: dict[str, Record]) -> None:
    entry = one(run("pgd --eps 255 --n 60 --two-phase 10", known["erm"]))["evals"][-1]
    assert entry["value"] == 0 == entry["ci95"][0] and entry["two_phase"]["survivors"] == 0


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_the_curve_has_the_accuracy_at_every_distance_from_one_search(
    known: dict[str, Record], norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[int] = []
    search = CurveAttack.search

    def counted(self: Any, model: Any, images: Any, labels: Any) -> Any:
        searches.append(len(images))
        return search(self, model, images, labels)

    monkeypatch.setattr(CurveAttack, "search", counted)
    asked = f"curve --norm {norm} --queries 60 --n 60"
    record = one(run(f"{asked} --eps 0:64:5", known["erm"]))
    names = [name for name in record["metrics"] if name.startswith("curve")]
    suffix = "" if norm == "linf" else f".{norm}"
    assert names == [f"curve{suffix}.{eps}" for eps in (0, 16, 32, 48, 64)] + [f"curve{suffix}.distance"]
    values = [record["metrics"][name] for name in names[:-1]]
    assert values == sorted(values, reverse=True) and values[0] == record["metrics"]["acc"] > values[-1]
    summary = record["evals"][-1]
    assert summary["value"] == summary["quantiles"]["0.5"] > 0 and summary["unreached"] == 0
    other = one(run(f"{asked} --eps 8", known["erm"]))
    assert len(searches) == 1  # other distances are computed from the store
    assert values[0] >= other["metrics"][f"curve{suffix}.8"] >= values[1 if norm == "linf" else -1]


def test_local_optimality_by_hand() -> None:
    # Best distances 0, 1, 2, 4: area (0 + 1 + 2 + 4) / 4; the first attack's (0 + 1 + 4 + 4) / 4; nothing: 3.
    distances = np.array([[0, 0], [1, 3], [np.inf, 2], [4, 4]])
    first, second = local_optimality(distances)
    assert first == pytest.approx(1 - (9 / 4 - 7 / 4) / (3 - 7 / 4))
    assert second == pytest.approx(1 - (9 / 4 - 7 / 4) / (3 - 7 / 4))
    assert local_optimality(distances[:, :1]) == [pytest.approx(1)]
    assert local_optimality(np.full((3, 2), np.inf)) == [None, None]
