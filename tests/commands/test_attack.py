"""rb-attack at the command line: records in and out, one checkpoint, protocols, what goes wrong."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from PIL import Image
from torch import nn

from rbtools import api
from rbtools.attacks import ATTACKS, presets
from rbtools.attacks.curve import CurveAttack
from rbtools.evaluation import accuracy, attacking
from rbtools.evaluation.distances import local_optimality
from rbtools.evaluation.spec import Evaluation
from rbtools.execution.device import environment
from rbtools.execution.run import Run
from rbtools.inputs import resolve
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.jobs import screened_attack, stored_results
from rbtools.jobs.screened_attack import Screened
from rbtools.records import answers, consistency, metric_name
from rbtools.registry import gathered
from rbtools.store import Store
from tests import runner
from tests.networks import nearest
from tests.runner import Record, in_a_process, one, records


def run(words: str, *given: Record) -> Result:
    return runner.run("attack", f"{words} --device cpu", given)


def without_results(record: Record) -> Record:
    return {key: value for key, value in record.items() if key not in ("metrics", "evals", "checksums")}


# --- records in, records out ----------------------------------------------------------------------


def test_an_attack_adds_its_results_and_passes_the_rest(trained: dict[str, Record]) -> None:
    before = trained["erm"]
    asked = "--steps 3 --eps 4,16/255,16 --n 50 --seed 5 --precision fp32"
    result = run(f"pgd {asked}", before)
    record = one(result)
    assert result.stderr == "rb-attack: 1 record: 1 computed, 0 found in the store.\n"
    assert without_results(record).items() >= without_results(before).items()
    assert list(record["metrics"]) == ["seconds_per_epoch", "acc", "pgd3.4", "pgd3.16"]
    assert record["metrics"]["acc"] >= record["metrics"]["pgd3.4"] >= record["metrics"]["pgd3.16"]
    entry = record["evals"][-1]
    assert 0 <= entry.pop("ci95")[0] <= entry.pop("value") and entry.pop("seconds") > 0
    # a step is a forward and a backward pass of the unbroken images; then the final check
    passes, bits = entry.pop("passes"), entry.pop("answers")
    assert (bits["images"], bits["examples"]) == (50, next(iter(record["examples"])))
    assert 0 < passes["backward"] <= 3 and passes["backward"] < passes["forward"] <= 3 + 3 + 2
    assert entry == {
        "tool": "rb-attack",
        "metric": "pgd3.16",
        "attack": "pgd",
        "norm": "linf",
        "eps": 16 / 255,
        "steps": 3,
        "step_size": ATTACKS.build("pgd", steps=3, eps=16 / 255).effective_step_size,
        "start": "uniform",
        "restarts": 1,
        "iterate": "any",
        "relative_step": None,
        "decay": "constant",
        "target": "none",
        "loss": "ce",
        "prepared": ["channels-last", "folded"],
        "split": "test",
        "seed": 5,
        "draws": "philox4x32-10/1",
        "n": 50,
        "device": "cpu",
        "precision": "fp32",
        "environment": environment(torch.device("cpu")),
    }


SHORT = {"steps": "3", "queries": "5", "searches": "2", "targets": "2", "samples": "3"}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.slow
def test_every_attack_runs(trained: dict[str, Record], attack: str) -> None:
    fields = {field.name for field in dataclasses.fields(ATTACKS.load(attack))}
    short = " ".join(f"--{name} {value}" for name, value in SHORT.items() if name in fields)
    short += " --attacks fgsm,noise" if attack == "aa" else ""
    entry = one(run(f"{attack} {short} --eps 4 --n 4", trained["erm"]))["evals"][-1]
    assert entry["attack"] == attack and entry["n"] == 4 and 0 <= entry["value"] <= 1


def test_none_measures_clean_accuracy_alone(trained: dict[str, Record]) -> None:
    plain = without_results(trained["erm"])
    record = one(run("none --n 30 --detail", plain))
    assert list(record["metrics"]) == ["acc"]
    (entry,) = record["evals"]
    confusion = np.array(entry["detail"]["confusion"])
    assert confusion.sum() == 30 and np.trace(confusion) == round(30 * entry["value"])
    attacked = one(run("fgsm --eps 8 --n 30", plain))
    assert attacked["metrics"]["acc"] == record["metrics"]["acc"]
    again = run("none --n 30", attacked)
    assert one(again)["metrics"] == attacked["metrics"]
    assert again.stderr == "rb-attack: 1 record: 0 computed, 1 found in the store.\n"


@pytest.mark.slow
def test_large_details_stay_in_the_store(trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures fetch them by their key, and are the same to the byte."""
    words = "fgsm --eps 8 --n 30 --detail"
    inside = one(run(words, trained["erm"]))
    monkeypatch.setattr(stored_results, "LARGE_DETAIL", 100)
    apart = one(run(words, trained["erm"]))
    assert list(apart["evals"][-1]["detail"]) == ["stored"]
    for figure in ("confusion", "confidence --view class"):
        for name, record in {"inside": inside, "apart": apart}.items():
            drawn = runner.run("plot", f"{figure} --metric fgsm.8 -o {name}.svg", [record])
            assert drawn.exit_code == 0, drawn.stderr
        assert Path("inside.svg").read_bytes() == Path("apart.svg").read_bytes()
        Path("inside.svg").unlink()
        Path("apart.svg").unlink()
    lost = runner.run("plot", "confusion --metric fgsm.8 --store other -o lost.svg", [apart])
    assert lost.exit_code == 2 and "The details of fgsm.8 are not in the store" in lost.stderr
    assert not Path("lost.svg").exists()


def test_a_record_of_which_a_part_was_found_counts_once(trained: dict[str, Record]) -> None:
    chosen = "fgsm --n 10"
    run(f"{chosen} --eps 4", trained["erm"])
    result = run(f"{chosen} --eps 4,8", trained["erm"])
    assert result.stderr == "rb-attack: 1 record: 1 computed, 0 found in the store.\n"


def test_a_metric_that_is_not_what_its_entry_says_is_said_and_replaced(trained: dict[str, Record]) -> None:
    made = one(run("fgsm --eps 8 --n 10", trained["erm"]))
    false = {**made, "metrics": {**made["metrics"], "fgsm.8": 1.5}}
    result = run("fgsm --eps 8 --n 10", false, false)
    assert result.stderr.startswith(
        "rb-attack: warning: fgsm.8 of a record differs from its entry in evals. Measuring it again replaces"
        " it.\nrb-attack: 2 records:"
    )
    assert json.loads(result.stdout.splitlines()[0])["metrics"] == made["metrics"]


def test_at_distance_0_nothing_is_lost(trained: dict[str, Record]) -> None:
    metrics = one(run("pgd --eps 0", trained["erm"]))["metrics"]
    assert metrics["pgd20.0"] == metrics["acc"]


def test_records_come_out_as_they_came_in(trained: dict[str, Record]) -> None:
    failed = {"schema": 1, "error": {"message": "before"}, "text": "hello"}
    result = run("fgsm --n 5 --errors retry", trained["erm"], failed, trained["pgd"])
    first, second, third = records(result)
    assert second == failed  # an invalid line cannot be retried
    assert (first["train"]["method"], third["train"]["method"]) == ("erm", "pgd")
    assert result.stderr.endswith("2 computed, 0 found in the store, 1 passed on with their error.\n")


GARBAGE: list[Any] = [True, -1, 1.5, "", "../x", [], ["a", "b"], {"a": 1}, 10**30]


@pytest.mark.parametrize("field", ["space", "str", "channels", "cells", "normalize"])
def test_garbage_in_an_architecture_is_the_records_fault_and_not_a_bug(
    field: str, trained: dict[str, Record]
) -> None:
    arch = trained["erm"]["arch"]
    wrong = [{**trained["erm"], "arch": {**arch, field: value}} for value in GARBAGE]
    result = run("fgsm --n 5", *wrong)
    assert result.exit_code == 1 and len(records(result)) == len(GARBAGE)
    assert all("error" in record for record in records(result))
    assert "a bug in rbtools" not in result.stderr and "Traceback" not in result.stderr


def test_a_failing_record_does_not_stop_the_others(trained: dict[str, Record]) -> None:
    lost = {**trained["erm"], "checkpoint": "sha256:" + 64 * "0"}
    result = run("fgsm --n 5", lost, trained["pgd"])
    assert result.exit_code == 1
    first, second = records(result)
    assert "is not in the store" in first["error"]["message"]
    assert {key: value for key, value in first.items() if key != "error"} == lost
    assert "fgsm.8" in second["metrics"]
    retried = one(run("fgsm --n 5 --errors retry", {**trained["erm"], "error": first["error"]}))
    assert "error" not in retried and "fgsm.8" in retried["metrics"]


# --- protocols ------------------------------------------------------------------------------------


def test_another_protocol_is_refused_or_renamed(trained: dict[str, Record]) -> None:
    first = one(run("pgd --steps 2 --n 20", trained["erm"]))
    again = "pgd --steps 2 --n 20 --restarts 2"
    result = run(again, first)
    assert result.exit_code == 1
    assert "measured differently: restarts 1 there and 2 here." in records(result)[0]["error"]["message"]
    named = one(run(f"{again} --as mine", first))
    assert {"pgd2.8", "mine"} <= named["metrics"].keys()


# --- the store ------------------------------------------------------------------------------------


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
    assert "No space left on device" in warning and "not kept" in warning
    assert not others  # once is enough, however many records there are


# --- one checkpoint -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_published_checkpoint_is_evaluated_without_a_pipe(photos: Path) -> None:
    """A CIFAR-10 ResNet-18 that comes with pyautoattack. Photographs of no classes do not tell which of two
    networks and five normalisations it is."""
    package = Path(str(importlib.util.find_spec("pyautoattack").submodule_search_locations[0]))  # type: ignore[union-attr, index]
    file = [*package.rglob("model_test.pt"), *package.parent.glob("examples/model_test.pt")][0]
    words = f"fgsm --checkpoint {file} --dataset imagefolder:{photos} --n 6 --eps 8"
    asked = run(words).stderr
    assert "fit 10 networks" in asked and "--arch resnet18:stem=cifar --normalize none: 0." in asked
    record = one(run(f"{words} --arch resnet18:stem=cifar --normalize none"))
    assert record["arch"]["name"] == "resnet18" and record["arch"]["params"] == 11173962
    assert record["checkpoint_file"] == str(file) and record["checkpoint"].startswith("sha256:")
    assert record["dataset"] == f"imagefolder:{photos}"
    assert record["evals"][-1]["n"] == 6
    assert record["metrics"]["fgsm.8"] <= record["metrics"]["acc"]
    again = one(run("fgsm --eps 8,0 --n 6", record))  # in a pipe
    assert again["metrics"]["fgsm.0"] == record["metrics"]["acc"]


def test_a_class_map_says_which_folder_is_which_class(
    trained: dict[str, Record], photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network predicts the class of the nearest of the 20 training photographs."""
    files = sorted((photos / "train").rglob("*.png"))
    pixels = torch.tensor(np.array([np.array(Image.open(file)) for file in files])).permute(0, 3, 1, 2)
    layers = (nn.Unflatten(1, (10, 2)), nn.AdaptiveMaxPool1d(1), nn.Flatten())
    model = nn.Sequential(*nearest(pixels.flatten(1).double() / 255), *layers)
    monkeypatch.setattr(resolve, "load_model", lambda *_: model.eval())
    record = {**trained["erm"], "dataset": f"imagefolder:{photos}"}
    folders = sorted(folder.name for folder in (photos / "train").iterdir())
    Path("map.json").write_text(json.dumps({name: 9 - index for index, name in enumerate(folders)}))
    asked = "fgsm --eps 0 --split train"
    assert one(run(asked, record))["metrics"]["train.acc"] == 1
    mapped = one(run(f"{asked} --class-map map.json", record))
    assert mapped["metrics"]["train.acc"] == 0
    # The next stage of a pipe has no class map option, and must not use the alphabetical order.
    assert mapped["class_map"] == folders[::-1]
    again = one(run(f"{asked} --force", mapped))
    assert again["metrics"]["train.acc"] == 0


# --- what is wrong with a checkpoint --------------------------------------------------------------


@pytest.fixture
def file(trained: dict[str, Record]) -> Path:
    """A checkpoint for digits as a file of the user's."""
    shutil.copyfile(Store("rb-store").object(trained["erm"]["checkpoint"]), "model.safetensors")
    return Path("model.safetensors")


def test_the_shards_of_one_checkpoint_share_its_images_and_the_first_writes(file: Path) -> None:
    chosen = f"fgsm --checkpoint {file} --dataset digits --n 20"
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


def test_a_checkpoint_of_our_own_needs_no_arch(file: Path, trained: dict[str, Record]) -> None:
    record = one(run(f"fgsm --checkpoint {file}"))
    (piped,) = records(run("fgsm", trained["erm"]))
    assert record["metrics"]["fgsm.8"] == piped["metrics"]["fgsm.8"]
    assert record["arch"]["str"] == trained["erm"]["arch"]["str"]


def test_a_damaged_checkpoint_is_an_error_record(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])
    result = run(f"fgsm --checkpoint {file}")
    assert result.exit_code == 1
    message = records(result)[0]["error"]["message"]
    assert "is a safetensors file that is cut off or damaged" in message and str(file.absolute()) in message
    assert result.stderr.splitlines()[0] == f"rb-attack: error: {message}"


def test_a_checkpoint_of_another_architecture_says_which_keys(file: Path) -> None:
    result = run(f"fgsm --checkpoint {file} --arch resnet18")
    assert result.exit_code == 1
    message = records(result)[0]["error"]["message"]
    assert "Keys missing: conv1.weight" in message and "unexpected: cells.0" in message


def test_a_device_that_is_not_there_is_said(trained: dict[str, Record]) -> None:
    result = runner.run("attack", "fgsm --device xpu:7", [trained["erm"]])
    assert result.exit_code == 1 and "The device 'xpu:7' cannot be used" in result.stderr
    assert "Use --device cpu or auto." in result.stderr


@pytest.mark.parametrize(
    ("words", "short"),
    [
        ("--step-size 2", True),
        ("--relative-step 0.0625", True),
        ("--step-size 4 --step-decay linear --steps 9", True),
        ("", False),
        ("--step-size 4", False),
        ("--step-decay cosine", False),
        ("--step-size 2 --steps 16", False),
    ],
)
def test_steps_that_cannot_reach_the_border_are_warned_about(words: str, short: bool) -> None:
    """The warning needs only the words; nothing is read."""
    said = runner.run("attack", f"pgd --eps 8,32 --steps 10 {words}").stderr
    warning = (
        "rb-attack: warning: --eps is 32/255, but the steps add up to 20/255: the attack cannot reach the"
        " border of its ball. Give a longer --step-size, or more --steps.\n"
    )
    assert said.startswith(warning) if short else "the steps add up" not in said


def test_a_presets_step_gives_way_where_it_cannot_reach() -> None:
    near, far = presets.preset("rice2020", (8 / 255, 76.5 / 255))
    assert (near.eps, near.params["step_size"]) == ((8 / 255,), 2 / 255)
    assert far.eps == (76.5 / 255,) and "step_size" not in far.params
    assert len(presets.preset("jung2023", (8 / 255,))) == 4


REFUSED = {
    "pgd --steps 99999999999999999999": "99999999999999999999 is too large. Expected 9223372036854775807",
    "pgd --seed 99999999999999999999": "99999999999999999999 is too large. Expected 9223372036854775807",
    "pgd --step-size nan": "--step-size is 'nan'. Expected a finite number.",
    "pgd --steps 1.5": "Invalid value for '--steps': '1.5' is no whole number.",
    "pgd --precision fp23": "is not one of 'auto', 'fp32', 'bf16'. Did you mean 'fp32'? Try",
    "pgd --threads 99999999": "--threads is 99999999. Expected 1024 at most.",
    "pgd --jobs 99999999": "--jobs is '99999999'. Expected a whole number from 1 to 1024, or auto.",
    "pgd --jobs ²": "--jobs is '²'. Expected a whole number",
    "pgd --shard ²/3": "--shard is '²/3'. Expected I/N",
    "pgd --eps ,": "--eps is empty. Expected distances such as 8 or 1,2,8.",
    "pgd --eps 1-9999999999": "which is 9,999,999,999 numbers. Expected 100,000 at most.",
    "pgd --eps 0:1:1000000000": "which is 1,000,000,000 numbers. Expected 100,000 at most.",
    "pgd --eps 0:1:²": "--eps has the count '²'.",
    "pgd --indices nowhere.txt": "The file of indices nowhere.txt cannot be read",
    "pgd --checkpoint model.safetensors in.jsonl": "Both --checkpoint and FILE are given.",
    "pgd --eps 8 --ladder": "--ladder needs several distances",
    "--preset jung --n 30": "Unknown preset 'jung'. Did you mean 'jung2023'?",
    "check --eps 8,16": "The check is at one distance above 0",
    "check --eps 0": "The check is at one distance above 0",
    "transfer --eps 8": "--from",
    "pgd --two-phase 3": "--two-phase is 3. Expected how many images to attack, 10 or more, or all.",
    "pgd --two-phase some": "--two-phase is some. Expected how many",
    "pgd --two-phase 20 --precision-goal .01": "Fix the size, or the goal.",
    "pgd --two-phase 20 --detail": "leave out --ladder, --detail, --save-adv",
    "pgd --screen-steps 1": "--screen-steps are of --two-phase.",
    "curve --attacks pgd": "--attacks: Unknown search in linf 'pgd'.",
    "curve --attacks ddn": "--attacks: Unknown search in linf 'ddn'.",
    "curve --attacks ,": "--attacks is empty.",
}


@pytest.mark.parametrize("words", REFUSED)
def test_wrong_use_is_refused_before_the_first_record(words: str) -> None:
    Path("model.safetensors").touch()
    result = runner.run("attack", words, "{}\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert REFUSED[words] in result.stderr and result.stderr.count("\n") == 1


# --- several distances, and what is kept ----------------------------------------------------------


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
    extended = "pgd --eps 4,16,32,64 --ladder --steps 3 --n 60 --force"
    longer = one(run(extended, ladder))["metrics"]  # the smaller distances come from the store
    assert {name: longer[name] for name in names} == {name: after[name] for name in names}
    assert longer["pgd3.64"] <= after["pgd3.32"]


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
def test_an_ensemble_of_other_attacks_is_never_called_autoattack(
    trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    how = "aa --eps 16 --n 10 --attacks"
    with monkeypatch.context() as former:  # an earlier version of rbtools stored it as aa.16
        former.setattr(ATTACKS.load("aa"), "stem", "aa")
        former.setattr(accuracy.Attacked, "reading", classmethod(lambda cls, specs: {}))
        old = one(run(f"{how} noise,fgsm", trained["erm"]))
    assert old["metrics"].keys() >= {"aa.16"}
    entry = one(run(f"{how} noise,fgsm", old))["evals"][-1]
    assert entry["metric"] == "ensemble-fgsm-noise.16" and entry["value"] == old["metrics"]["aa.16"]
    again = run(f"{how} ' noise, fgsm,noise'", trained["erm"])
    assert one(again)["evals"][-1] == entry and "1 found in the store" in again.stderr
    assert consistency.summary(old)["inconsistent"] == []
    verdicts = one(runner.run("verify", "", [old]))["verify"]["entries"]
    assert verdicts["aa.16"]["verdict"] == "match"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"attacks": "fgsm"}, "ensemble-fgsm"),
        ({"attacks": "square,apgd-ce"}, "ensemble-apgd-ce-square"),
        ({"attacks": "square,pgd", "norm": "l2"}, "ensemble-pgd-square.l2"),
        ({"attacks": "square, fab-t,apgd-t,apgd-ce", "variant": "plus"}, "aa"),
        ({"attacks": "apgd-ce,apgd-t,fab-t,square", "norm": "l1"}, "ensemble-apgd-ce-apgd-t-fab-t-square.l1"),
        ({"variant": "plus"}, "aa"),
    ],
)
def test_the_name_of_an_ensemble_is_that_of_its_parts(settings: dict[str, str], name: str) -> None:
    attack = ATTACKS.build("aa", **settings)
    assert attack.stem == name
    metric = metric_name.attack_name(name, 8 / 255, attack.norm)
    parts = metric_name.parse(metric)
    assert (parts.build(), parts.over, parts.number != "") == (metric, "eps", True)
    assert metric_name.is_share(metric) and metric_name.higher_is_better(metric)


def test_images_of_fewer_examples_leave_the_outcomes_of_more(trained: dict[str, Record]) -> None:
    """Saving images computes outcomes again, here of 20 examples where the store has those of 40."""
    asked = "pgd --eps 16 --steps 3"
    store = Store(Path("rb-store"))
    one(run(f"{asked} --n 40", trained["erm"]))
    before = {path: path.read_bytes() for path in store.files("outcomes")}
    one(run(f"{asked} --n 20 --save-adv few", trained["erm"]))
    assert len(before) == 2 and all(path.read_bytes() == data for path, data in before.items())


def test_detail_and_saved_images_tell_the_same_as_the_number(trained: dict[str, Record]) -> None:
    words = "pgd --eps 16 --steps 3 --n 60 --detail --save-adv adv"
    record = one(run(words, trained["erm"]))
    entry = record["evals"][-1]
    confusion = np.array(entry["detail"]["confusion"])
    assert confusion.sum() == 60 and np.trace(confusion) / 60 == entry["value"]
    assert confusion.sum(1).tolist() == [6] * 10  # as many of each class
    label = np.array(entry["detail"]["confidence"]["label"])
    assert np.allclose(label.sum(1), 1, atol=1e-3)
    right, wrong = entry["detail"]["confidence"]["prediction"]
    assert 0.1 < right <= 1 and 0.1 < wrong <= 1
    (file,) = Path("adv").glob("*.npz")
    saved = np.load(file)
    right = api.load(record)(torch.from_numpy(saved["images"])).argmax(1).numpy() == saved["labels"]
    assert right.sum() / 60 == entry["value"]
    before = file.stat().st_mtime_ns
    assert "1 found in the store" in run(words, trained["erm"]).stderr
    assert file.stat().st_mtime_ns == before


def test_saved_images_are_made_though_the_result_is_known(trained: dict[str, Record]) -> None:
    words = "fgsm --eps 16 --n 30"
    first = one(run(words, trained["erm"]))
    again = one(run(f"{words} --save-adv adv", trained["erm"]))
    assert first["metrics"] == again["metrics"] and len(list(Path("adv").glob("*.npz"))) == 1


# --- a paper's attacks, the checklist, another model's examples ------------------------------------


def test_a_preset_is_the_papers_attacks(trained: dict[str, Record]) -> None:
    record = one(run("--preset rice2020 --n 30", trained["erm"]))
    entry = record["evals"][-1]
    assert entry["metric"] == "pgd10.8" and entry["iterate"] == "last"
    assert entry["step_size"] == pytest.approx(2 / 255) and entry["n"] == 30
    again = one(run("preset rice2020 --n 30 --eps 16", trained["erm"]))
    assert "pgd10.16" in again["metrics"] and "pgd10.8" not in again["metrics"]


@pytest.mark.parametrize("name", gathered("attack-presets"))
def test_presets_are_made_of_attacks_that_there_are(name: str) -> None:
    for part in presets.preset(name):
        made = ATTACKS.build(part.attack, **part.params)
        chooses = "iterate" in {field.name for field in dataclasses.fields(made)}
        assert part.eps and (made.iterate == "last" or not chooses)


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


def test_the_checklist_finds_masked_gradients(
    trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that rounds its input: gradients are useless, and Square does not need them."""
    model = api.load(trained["erm"])

    class Masked(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return model((images * 8).round() / 8 + 0 * images)

    monkeypatch.setattr(resolve, "load_model", lambda *_: Masked().eval())
    result = run(f"{CHECK.replace('8', '64')} --force --prepare none", trained["erm"])
    failed = {test["test"] for test in one(result)["evals"][-1]["tests"] if not test["holds"]}
    assert "c" in failed and "obfuscation check c fails: pgd5.255 is 0, but it is not so by" in result.stderr


def test_a_check_after_a_plain_attack_uses_what_is_known(trained: dict[str, Record]) -> None:
    one(run("pgd --eps 8 --steps 5 --n 40", trained["erm"]))
    assert "obfuscation.failed" in one(run(CHECK, trained["erm"]))["metrics"]


def test_few_classes_get_another_loss_and_are_told(
    trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, first = api.load(trained["erm"]), nn.Linear(10, 3, bias=False)
    nn.init.eye_(first.weight)
    three = nn.Sequential(model, first).requires_grad_(False)
    monkeypatch.setattr(resolve, "load_model", lambda *_: three.eval())
    result = run("apgd-t --steps 2 --n 30 --force", trained["erm"])
    entry = one(result)["evals"][-1]
    assert entry["loss"] == "targeted-margin"
    assert "too few classes for the loss targeted-dlr: targeted-margin stands in" in result.stderr


class Ink(nn.Module):
    """Class 0 where some columns of an image hold more than eight pixels' worth of ink, else class 1.

    The gradient has one sign in all those columns, whatever the arithmetic, and is 0 in the others. No sum of
    multiples of 1/255 is near the threshold.
    """

    def __init__(self, columns: slice) -> None:
        super().__init__()
        self.columns = columns

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        more = (images[..., self.columns].sum((1, 2, 3)) - 8.002) / 8
        other = torch.full_like(more, -9.0)
        return torch.stack([more, -more, *[other] * 8], 1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_another_models_examples(
    precision: str, trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two networks, each of which uses one half of the image: examples for one do not change the other's
    half."""
    halves = {trained["erm"]["checkpoint"]: slice(0, 4), trained["pgd"]["checkpoint"]: slice(4, 8)}
    load = lambda record, *_: Ink(halves[record["checkpoint"]]).eval()  # noqa: E731
    monkeypatch.setattr(resolve, "load_model", load)
    Path("other.jsonl").write_text(runner.lines(trained["pgd"]))
    Path("same.jsonl").write_text(runner.lines(trained["erm"]))
    own = one(run(f"fgsm --eps 32 --precision {precision}", trained["erm"]))["metrics"]
    same = one(run("transfer --from same.jsonl --attack fgsm --eps 32", trained["erm"]))
    assert same["metrics"]["transfer.fgsm.32"] == own["fgsm.32"] < own["acc"]
    other = one(run("transfer --from other.jsonl --attack fgsm --eps 32", trained["erm"]))
    assert other["metrics"]["transfer.fgsm.32"] == other["metrics"]["acc"] == own["acc"]
    assert other["evals"][-1]["source"] == trained["pgd"]["checkpoint"]


def test_a_transfer_is_from_one_record(trained: dict[str, Record]) -> None:
    Path("two.jsonl").write_text(runner.lines(trained["erm"], trained["erm"]))
    result = run("transfer --from two.jsonl", trained["erm"])
    assert result.exit_code == 2 and "holds 2 records. Expected one, of the model to attack." in result.stderr


def test_another_number_of_images_is_refused_before_the_work(
    trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = one(run("fgsm --eps 8 --n 20", trained["erm"]))
    monkeypatch.setattr(resolve, "load_model", lambda *_: pytest.fail("it was computed"))
    result = run("fgsm --eps 8 --n 30", few)
    assert result.exit_code == 1
    assert "'fgsm.8', measured differently: n 20 there and 30 here. Keep both with --as" in result.stderr


# --- two phases -----------------------------------------------------------------------------------

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
    unknown = run("fgsm --n 25 --two-phase 12 --dry-run", known["pgd"])
    assert "fgsm: 1 tile to compute." in unknown.stderr
    planned = run(f"{TWO_PHASE} --two-phase 40 --screen-steps 1 --dry-run", known["erm"])
    assert "pgd5: 1 tile to compute." in planned.stderr
    again = run(f"{TWO_PHASE} --two-phase 30 --screen-steps 1", known["erm"])
    assert len(attacked) == 30 and "1 found in the store" in again.stderr


@pytest.mark.parametrize("option", ["--force", "--store=none"])
@pytest.mark.parametrize("size", ["--two-phase 20", "--precision-goal .05"])
def test_two_phases_without_stored_outcomes(
    known: dict[str, Record], file: Path, option: str, size: str
) -> None:
    one(run("pgd --steps 3 --eps 32 --n 120", known["erm"]))
    record = {**known["erm"], "checkpoint_file": str(file.absolute())}
    entry = two_phase(record, f"{size} {option}")
    assert entry["screen"] == "pgd1,cw1" and 0 < entry["value"] < 1


def test_a_smaller_sample_does_not_replace_a_larger(known: dict[str, Record]) -> None:
    exact = one(run(f"{TWO_PHASE} --two-phase all --screen-steps 1", known["erm"]))
    result = run(f"{TWO_PHASE} --two-phase 20 --screen-steps 1", exact)
    assert one(result)["evals"] == exact["evals"]
    assert "the record keeps its estimate, which is of a larger sample" in result.stderr
    replaced = one(run(f"{TWO_PHASE} --two-phase 20 --screen-steps 1 --force", exact))
    assert replaced["evals"][-1]["two_phase"]["sampled"] == 20


def test_the_entry_has_the_seed_of_its_sample_and_its_cost(
    known: dict[str, Record], weak_screen: tuple[Any, ...]
) -> None:
    asked = "fgsm --eps 32 --n 60 --seed 3"
    entry = one(run(f"{asked} --two-phase 10 --screen-steps 1", known["erm"]))["evals"][-1]
    assert entry["seed"] == 3 and entry["draws"] and entry["passes"]["forward"] > 1
    parts = "aa --attacks fgsm,pgd --eps 32 --n 60 --two-phase all --screen-steps 1"
    assert one(run(parts, known["erm"]))["evals"][-1]["two_phase"]["broken_by"].keys() == {"fgsm", "pgd"}


def test_a_goal_of_precision_enlarges_the_sample_until_it_is_met(known: dict[str, Record]) -> None:
    coarse = two_phase(known["erm"], "--precision-goal .2")["two_phase"]
    fine = two_phase(known["erm"], "--precision-goal .0001")["two_phase"]
    assert coarse["goal"] == 0.2 and coarse["sampled"] == 48 < coarse["survivors"]
    assert "optimistic" in coarse["estimator"] and "optimistic" not in fine["estimator"]
    assert (coarse["interval"][1] - coarse["interval"][0]) / 2 <= 0.2
    assert fine["sampled"] == fine["survivors"] and fine["interval"][0] == fine["interval"][1]


@pytest.mark.slow
def test_two_phases_in_l1_screen_with_apgd(known: dict[str, Record]) -> None:
    asked = "apgd-t --norm l1 --steps 20 --eps 1"
    entry = one(run(f"{asked} --n 60 --two-phase all --screen-steps 10", known["erm"]))["evals"][-1]
    assert entry["screen"] == "apgd-ce.l1,apgd-margin.l1" and entry["metric"] == "apgd-t.l1.1"
    about = entry["two_phase"]
    assert 10 < about["sampled"] == about["survivors"] < 60 and about["screen_steps"] == 10
    whole = one(run(asked, known["erm"]))["metrics"]
    assert entry["value"] <= whole["apgd-t.l1.1"] < whole["acc"]
    sampled = one(run(f"{asked} --n 60 --two-phase 10 --screen-steps 10", known["erm"]))["evals"][-1]
    assert sampled["two_phase"]["interval"][0] <= entry["value"] <= sampled["two_phase"]["interval"][1]


def test_two_phases_are_another_protocol_than_the_attack_on_all(known: dict[str, Record]) -> None:
    whole = one(run("pgd --steps 5 --eps 32 --n 120", known["erm"]))
    result = run(f"{TWO_PHASE} --two-phase 20 --screen-steps 1", whole)
    assert result.exit_code == 1 and "measured differently: screen absent there and" in result.stderr


def test_a_model_that_the_screen_breaks_whole_has_accuracy_0(known: dict[str, Record]) -> None:
    entry = one(run("pgd --eps 255 --n 60 --two-phase 10", known["erm"]))["evals"][-1]
    assert entry["value"] == 0 == entry["ci95"][0] and entry["two_phase"]["survivors"] == 0


# --- the curve over eps ---------------------------------------------------------------------------


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
    assert summary["value"] == summary["quantiles"]["0.5"] > 0 and 0 < summary["area"] < 1
    assert summary["unreached"] == 0 and summary["norm"] == norm
    other = one(run(f"{asked} --eps 8", known["erm"]))
    assert len(searches) == 1  # other distances are computed from the store
    assert values[0] >= other["metrics"][f"curve{suffix}.8"] >= values[1 if norm == "linf" else -1]


def test_the_curve_is_not_above_pgd(known: dict[str, Record]) -> None:
    asked = "--eps 8,16,24,32 --n 100"
    curve = one(run(f"curve --queries 200 {asked}", known["erm"]))["metrics"]
    pgd = one(run(f"pgd --steps 40 {asked}", known["erm"]))["metrics"]
    for eps in (8, 16, 24, 32):
        assert pgd[f"pgd40.{eps}"] - 0.1 <= curve[f"curve.{eps}"] <= pgd[f"pgd40.{eps}"] + 0.01


def test_a_plot_of_a_curve_names_its_unit(known: dict[str, Record]) -> None:
    from rbtools.plots import words

    assert words.axis(["curve.l1.12"]) == "accuracy under curve (L1), ε = 12"
    assert words.axis(["curve.8"]) == "accuracy under curve, ε = 8/255"


def test_several_searches_are_compared_by_their_local_optimality(known: dict[str, Record]) -> None:
    asked = "curve --norm l2 --queries 60 --n 40 --eps 1"
    record = one(run(f"{asked} --attacks fmn,ddn,curve", known["erm"]))
    values = {name: record["metrics"][f"optimality.{name}"] for name in ("fmn.l2", "ddn.l2", "curve.l2")}
    assert all(0 < value <= 1 for value in values.values())
    assert record["evals"][-1]["best"] == "fmn,ddn,curve" and record["evals"][-1]["attack"] == "curve"
    assert {"fmn.l2.1", "ddn.l2.1", "curve.l2.1", "fmn.l2.distance", "ddn.l2.distance"} <= record[
        "metrics"
    ].keys()
    fmn = one(run("fmn --norm l2 --steps 30 --n 40 --eps 1", known["erm"]))
    assert fmn["metrics"]["fmn.l2.1"] == record["metrics"]["fmn.l2.1"]
    added = one(run("fmn --norm l2 --steps 30 --n 40 --eps 1", record))
    assert added["metrics"] == record["metrics"]  # the same protocol, so that one replaces the other


def test_local_optimality_by_hand() -> None:
    # Best distances 0, 1, 2, 4: area (0 + 1 + 2 + 4) / 4; the first attack's (0 + 1 + 4 + 4) / 4; nothing: 3.
    distances = np.array([[0, 0], [1, 3], [np.inf, 2], [4, 4]])
    first, second = local_optimality(distances)
    assert first == pytest.approx(1 - (9 / 4 - 7 / 4) / (3 - 7 / 4))
    assert second == pytest.approx(1 - (9 / 4 - 7 / 4) / (3 - 7 / 4))
    assert local_optimality(distances[:, :1]) == [pytest.approx(1)]
    assert local_optimality(np.full((3, 2), np.inf)) == [None, None]
