"""rb-verify: true claims match, false ones differ, on all images and on some; undecidable ones say so."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

import rbtools
from rbtools import datasets
from rbtools.cli.output import RecordWriter
from rbtools.formats import FORMATS, ConversionReport, Published
from rbtools.probabilistic import intervals
from rbtools.records import checksums
from rbtools.store import Store
from tests import runner
from tests.runner import Record, records

run = runner.command("verify")


def entries(result: Result) -> dict[str, Record]:
    (record,) = records(result)
    found: dict[str, Record] = record["verify"]["entries"]
    return found


def verdicts(result: Result) -> dict[str, str]:
    return {metric: one["verdict"] for metric, one in entries(result).items()}


def all_match(record: Record) -> set[str]:
    """The metrics of a record of which a result of each was measured again and is the same."""
    told = verdicts(run("", record))
    assert told.pop("seconds_per_epoch", "cannot be told") == "cannot be told"
    assert set(told.values()) == {"match"}, told
    return set(told)


@pytest.fixture
def measured(known: dict[str, Record]) -> Record:
    """A record with results of several tools, of a network whose behaviour is known."""
    record = rbtools.attack(known["erm"], "pgd", eps=[8, 16], steps=3, n=60)
    record = rbtools.pr(record, gamma=0.1, rho=0.05, samples=5, n=60)
    record = rbtools.corrupt(record, "contrast", severity=2, n=60)
    return rbtools.score([record], add=["drop=acc - pgd3.16"])[0]


def claimed(record: Record, metric: str, more: int) -> Record:
    """The record with `more` images added to a claim, and consistent other fields."""
    entry = runner.entry(record, metric)
    right, n = round(entry["value"] * entry["n"]) + more, entry["n"]
    record = edited(record, metric, value=right / n, ci95=list(intervals.wilson(right, n)))
    record["checksums"][metric] = checksums.of(runner.entry(record, metric))
    return record


def edited(record: Record, metric: str, **fields: Any) -> Record:
    """The record with other fields in the entry of a metric, and its value in metrics."""
    record = copy.deepcopy(record)
    entry = runner.entry(record, metric)
    entry |= fields
    record["metrics"][metric] = entry["value"]
    return record


def test_true_claims_match(measured: Record) -> None:
    assert {"acc", "pgd3.8", "pr.uniform.0.1", "drop"} <= all_match(measured)


def test_a_false_claim_differs_with_status_1(measured: Record) -> None:
    result = run("", claimed(measured, "pgd3.16", 1))
    assert result.exit_code == 1
    assert verdicts(result)["pgd3.16"] == "differs" and verdicts(result)["pgd3.8"] == "match"


def test_a_random_part_of_the_images_and_of_the_entries(measured: Record) -> None:
    result = run("--n 40 --sample 4 --seed 3", measured)
    told = entries(result)
    assert result.exit_code == 0 and len(told) == 4
    assert {one["n"] for one in told.values() if "p" in one and one["n"] != 60} <= set(range(41))


KINDS: dict[str, Callable[[Record], Record]] = {
    "distances, whose step has no unit": lambda record: rbtools.attack(record, "fmn", eps=8, n=20, steps=20),
    "gap": lambda record: rbtools.ge(record, "attack", "pgd", eps=8, steps=2, n=20, n_train=30),
    "gap of means": lambda record: rbtools.ge(record, "corrupt", "contrast", severity="1-5", n=20),
    "gap of pr": lambda record: rbtools.ge(record, "pr", gamma=0.1, samples=3, n=20),
    "gap of losses": lambda record: rbtools.ge(record, "loss", "pgd", eps=8, steps=2, n=20),
    "ladder": lambda record: rbtools.attack(record, "pgd", eps=[2, 8, 16], steps=2, ladder=True, n=20),
    "two phases": lambda record: rbtools.attack(
        record, "pgd", eps=8, steps=3, n=60, two_phase=10, screen_steps=2
    ),
    "train": lambda record: rbtools.attack(record, "fgsm", eps=8, n=20, split="train"),
    "curve": lambda record: rbtools.curve(record, eps=[0, 8, 16], queries=40, n=10),
    "decided": lambda record: rbtools.pr(record, gamma=0.2, rho=[0.1, 0.2], samples=9, only="probacc", n=20),
    "adaptive": lambda record: rbtools.pr(record, gamma=0.2, rho=0.3, samples=60, sampling="adaptive", n=20),
    "rare": lambda record: rbtools.pr(record, gamma=0.2, sampling="rare", particles=20, moves=1, runs=2, n=2),
    "certified": lambda record: rbtools.certify(record, "smooth", eps=[0, 0.1], samples=200, select=9, n=5),
    "certified list": lambda record: rbtools.certify(
        record, "smooth", eps=[0, 0.1, 0.25], samples=200, select=9, n=5, adaptive=True, detail=True
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_each_tool_writes_is_measured_again(kind: str, known: dict[str, Record]) -> None:
    assert all_match(KINDS[kind](known["erm"]))


def test_a_result_under_a_name_of_the_users_own(known: dict[str, Record]) -> None:
    record = rbtools.attack(known["erm"], "pgd", eps=16, steps=3, n=30)
    record = rbtools.attack(record, "pgd", eps=16, steps=3, restarts=2, n=30, **{"as": "mine"})
    assert {verdicts(run("", record))[name] for name in ("mine", "pgd3.16")} == {"match"}
    assert verdicts(run("", claimed(record, "mine", 1)))["mine"] == "differs"


def test_a_record_without_a_checkpoint(measured: Record) -> None:
    record = {name: value for name, value in measured.items() if name != "checkpoint"}
    result = run("", record)
    reason = entries(result)["acc"]["reason"]
    assert reason.startswith("the record has no checkpoint: name its file with")
    assert result.exit_code == 0 and "1 match, 0 differ," in result.stderr  # an expression needs no network
    bare = {**record, "evals": [one for one in record["evals"] if one["metric"] == "acc"]}
    bare |= {"metrics": {"acc": record["metrics"]["acc"]}, "checksums": {"acc": record["checksums"]["acc"]}}
    assert run("", bare).exit_code == 1  # nothing was verified


@pytest.mark.parametrize(
    ("metric", "fields", "reason"),
    [
        ("pgd3.8", {"n": 6000}, "but 355 in the measurement"),
        ("pgd3.8", {"steps": {}}, ""),
        ("pgd3.8", {"norm": []}, ""),
        ("pr.uniform.0.1", {"n": []}, ""),
    ],
)
def test_a_setting_that_cannot_be_leaves_the_other_results_their_verdicts(
    metric: str, fields: Record, reason: str, measured: Record
) -> None:
    result = run("", {**edited(measured, metric, **fields), "checksums": {}})
    assert "Traceback" not in result.stderr
    told = verdicts(result)
    assert (told[metric] == "cannot be told" or reason) and told["acc"] == "match"
    assert reason in entries(result)[metric]["reason"]


def test_measures_are_measured_again(known: dict[str, Record]) -> None:
    record = rbtools.measure(known["erm"], "naswot,margin,synflow", batches=2, batch_size=10, on="auto")
    record = rbtools.measure(record, "hessian", wrt="both", batches=1, batch_size=5, probes=2, seed=3)
    measures = {"naswot", "margin.clean", "margin.robust.pgd.8", "synflow", "hessian.weight.trace"}
    assert measures <= all_match(record)
    value = record["metrics"]["margin.robust.pgd.8"]
    lie = run("--sample 99", edited(record, "margin.robust.pgd.8", value=value + 0.5))
    assert lie.exit_code == 1 and verdicts(lie)["margin.robust.pgd.8"] == "differs"


def test_a_measure_of_fresh_weights_needs_no_checkpoint(known: dict[str, Record]) -> None:
    bare = {name: value for name, value in known["erm"].items() if name in ("arch", "dataset", "schema")}
    record = rbtools.measure(bare, "synflow")
    assert verdicts(run("", record)) == {"synflow": "match"}
    assert verdicts(run("", edited(record, "synflow", value=1.0))) == {"synflow": "differs"}


def test_the_checklist_is_tested_again(known: dict[str, Record]) -> None:
    record = rbtools.check(known["erm"], eps=16, steps=3, queries=20, samples=3, n=20)
    told = entries(run("", record))
    assert {one["verdict"] for one in told.values()} == {"match", "cannot be told"}
    assert told["obfuscation.failed"]["test"] == "each test holds or fails as before"
    lie = edited(record, "obfuscation.failed", value=record["metrics"]["obfuscation.failed"] + 1)
    assert verdicts(run("", lie))["obfuscation.failed"] == "differs"
    less = {**record, "evals": [one for one in record["evals"] if one["metric"] != "square.16"]}
    assert verdicts(run("", less))["obfuscation.failed"] == "cannot be told"


def test_a_transfer_is_measured_again_from_the_model_that_its_entry_names(known: dict[str, Record]) -> None:
    record = rbtools.attack(known["erm"], "transfer", from_=known["pgd"], eps=[16], steps=3, n=40)
    (entry,) = [one for one in record["evals"] if one["metric"].startswith("transfer")]
    assert entry["source"] == known["pgd"]["checkpoint"] and "arch" in entry["source_model"]
    assert verdicts(run("", record))[entry["metric"]] == "match"
    part = run("--n 30", claimed(record, entry["metric"], 40 - round(entry["value"] * 40)))
    assert verdicts(part)[entry["metric"]] == "differs"
    old = copy.deepcopy(record)
    for one in old["evals"]:
        one.pop("source_model", None)
    result = entries(run("", old))[entry["metric"]]
    assert result["verdict"] == "cannot be told" and "--from" in result["reason"]


def test_a_score_is_recomputed_from_its_ranges(measured: Record) -> None:
    other = copy.deepcopy(measured)
    other["checkpoint"] = "sha256:" + "0" * 64
    other["metrics"] = {name: value / 2 for name, value in measured["metrics"].items()}
    del other["evals"], other["checksums"]
    with pytest.warns(UserWarning, match="with two records, each metric"):
        record = rbtools.score([measured, other], metric=["acc"], weight={"pgd3.8": 2})[0]
    assert verdicts(run("", record))["score"] == "match"
    lie = run("", edited(record, "score", value=record["metrics"]["score"] - 0.1))
    assert verdicts(lie)["score"] == "differs"
    better = run("", edited(record, "pgd3.8", value=record["metrics"]["pgd3.8"] / 2))
    assert verdicts(better)["score"] == "differs"  # the metric that it is made of was changed


def test_a_terminal_gets_a_table_and_a_pipe_the_record(
    measured: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie = claimed(measured, "pgd3.16", 9)
    monkeypatch.setattr(RecordWriter, "is_terminal", lambda self: True)
    monkeypatch.setattr(RecordWriter, "width", lambda self: 100)
    result = run("", {**lie, "arch": {**lie["arch"], "name": "a\x1b[31mb"}})
    table = result.stdout
    assert "0 of 60 images" in table and "9 of 60 images" in table and "test" in table.splitlines()[1]
    assert "differs" in table and "match" in table and "\x1b[31m" not in table
    assert "seconds_per_epoch: durations differ from run to run" in table


def test_inconsistent_needs_no_network(measured: Record) -> None:
    record = {**measured, "checkpoint": "sha256:" + "0" * 64}
    assert run("--inconsistent", record).exit_code == 0
    record["metrics"] = {**record["metrics"], "acc": 0.999}
    result = run("--inconsistent", record)
    assert result.exit_code == 1 and "acc is 0.999 in metrics" in result.stderr
    rules = [one["rule"] for one in json.loads(result.stdout)["verify"]["inconsistent"]]
    assert rules == ["edited"]
    assert run("--inconsistent --sample 2", record).exit_code == 2
    assert run("--inconsistent --n 2", record).exit_code == 2


def test_old_records_are_told_apart(measured: Record) -> None:
    record = {name: value for name, value in measured.items() if name != "checksums"}
    result = run("--inconsistent", record)
    assert result.exit_code == 0 and "results without a checksum" in result.stderr
    assert "acc" in json.loads(result.stdout)["verify"]["without_checksum"]


def file_of(record: Record) -> str:
    return str(Store("rb-store").object(record["checkpoint"]))


@pytest.fixture
def theirs(trained: dict[str, Record], monkeypatch: pytest.MonkeyPatch) -> Record:
    """A colleague's record with a claim and saved images; the store here has nothing of it."""
    record = rbtools.attack(trained["erm"], "pgd", eps=16, steps=2, n=40, save_adv="adv")
    Path("model.bin").write_bytes(Path(file_of(record)).read_bytes())
    Path("other.bin").write_bytes(Path(file_of(trained["pgd"])).read_bytes())
    monkeypatch.setenv("RB_STORE", "empty")
    return {**record, "checkpoint_file": "/elsewhere/model.bin"}


def test_a_record_of_another_machine_is_judged_with_a_file(theirs: Record) -> None:
    result = run("", theirs)
    without = entries(result)["pgd2.16"]
    assert without["verdict"] == "cannot be told" and "--checkpoint FILE" in without["reason"]
    for how, metrics in (("", {"acc", "pgd2.16"}), ("--adv adv", {"pgd2.16"})):
        result = run(f"--checkpoint model.bin {how}", theirs)
        assert result.exit_code == 0, result.stderr
        told = {name: one["verdict"] for name, one in entries(result).items() if "measured" in one}
        assert told == dict.fromkeys(metrics, "match") and "BatchNorm" not in result.stderr


@pytest.mark.parametrize("how", ["", "--adv adv"])
def test_another_file_differs(theirs: Record, how: str) -> None:
    result = run(f"--checkpoint other.bin {how}", theirs)
    one = entries(result)["pgd2.16"]
    assert result.exit_code == 1 and one["verdict"] == "differs"
    assert one["reason"].startswith("another checkpoint: ") and one["claimed"] == theirs["metrics"]["pgd2.16"]


def test_without_records_the_file_of_images_is_judged_alone(theirs: Record) -> None:
    words = "--checkpoint model.bin --dataset digits"
    assert entries(run(f"{words} --adv adv"))["pgd2.16"]["verdict"] == "match"
    assert "no records came in" in run(words).stderr


def rows(measured: dict[str, float]) -> dict[str, Record]:
    """The measured numbers as each leaderboard publishes them, by format."""
    percent = {name: round(100 * value, 2) for name, value in measured.items()}
    prbench = {"dataset": "CIFAR-10", "model": "ResNet-18", "method": "ERM", "acc": percent["acc"]}
    prbench |= {"ar": {"PGD10": percent["pgd10.8"]}, "pr": {"0.10": percent["pr.uniform.0.1"]}}
    board = {"dataset": "cifar10", "architecture": "WideResNet-34-10", "eps": "64/255"}
    board |= {"name": "A", "clean_acc": f"{percent['acc']}", "autoattack_acc": f"{percent['aa.64']}"}
    Path("info/cifar10/Linf").mkdir(parents=True)
    Path("info/cifar10/Linf/Some2020Paper.json").write_text(json.dumps(board))
    seeds = {"val_acc": {"1": measured["acc"]}, "val_pgd_8.0_acc": {"1": measured["pgd20.8"]}}
    Path("all.json").write_text(json.dumps({"cifar10": {"2136": seeds}}))
    report = ConversionReport()
    robustbench, nasrobbench = FORMATS.build("robustbench"), FORMATS.build("nasrobbench201")
    (info,) = robustbench.units(Published(Path("info"), "info"), report)
    (cell,) = nasrobbench.units(Published(Path("all.json"), "all.json"), report)
    return {
        "prbench": FORMATS.build("prbench").record(prbench, report, "row 1"),
        "robustbench": robustbench.record(info.content, report, "row 1"),
        "nasrobbench201": nasrobbench.record(cell.content, report, "row 1"),
    }


@pytest.fixture
def few(known: dict[str, Record]) -> Record:
    """A record of a known network on a data set of 40 images."""
    data = datasets.load("digits", "test")
    images, labels = data.images[:40, 0].numpy(), data.labels[:40].numpy()
    np.savez("few.npz", test_images=images, test_labels=labels, train_images=images, train_labels=labels)
    return {**known["erm"], "dataset": "npz:few.npz"}


def test_rows_of_leaderboards_are_measured_with_what_they_say(few: Record) -> None:
    record = rbtools.attack(few, "aa", eps=64)
    for steps in (10, 20):
        record = rbtools.attack(record, "pgd", eps=8, steps=steps)
    record = rbtools.pr(record, gamma=0.1, samples=20)
    words = f"--checkpoint {file_of(record)} --dataset npz:few.npz"
    assumed = {"prbench": "pgd10.8", "robustbench": "aa.64", "nasrobbench201": "pgd20.8"}
    for name, row in rows(record["metrics"]).items():
        row = json.loads(json.dumps(row, default=float))
        result = run(words, row)
        told = entries(result)
        assert result.exit_code == 0 and assumed[name] in told, result.stderr
        assert {one["verdict"] for one in told.values()} == {"match"}
        about = told[assumed[name]]["assumed"]
        assert "n 40" in about and "checkpoint " in about and about in result.stderr
    without = entries(run("", row))["pgd20.8"]
    assert without["verdict"] == "cannot be told" and "--checkpoint FILE" in without["reason"]
