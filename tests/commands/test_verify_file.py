"""rb-verify --checkpoint: records of another machine, and rows of leaderboards, which say only a part."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

import rbtools
from rbtools import datasets
from rbtools.formats import FORMATS, ConversionReport, Published
from rbtools.store import Store
from tests import runner
from tests.runner import Record, records


def run(words: str, *given: Record) -> Result:
    return runner.run("verify", words, given)


def verdicts(result: Result) -> dict[str, Record]:
    (record,) = records(result)
    entries: dict[str, Record] = record["verify"]["entries"]
    return entries


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
    without = verdicts(result)["pgd2.16"]
    assert without["verdict"] == "cannot be told" and "--checkpoint FILE" in without["reason"]
    for how, metrics in (("", {"acc", "pgd2.16"}), ("--adv adv", {"pgd2.16"})):
        result = run(f"--checkpoint model.bin {how}", theirs)
        assert result.exit_code == 0, result.stderr
        told = {name: one["verdict"] for name, one in verdicts(result).items() if "measured" in one}
        assert told == dict.fromkeys(metrics, "match") and "BatchNorm" not in result.stderr


@pytest.mark.parametrize("how", ["", "--adv adv"])
def test_another_file_differs(theirs: Record, how: str) -> None:
    result = run(f"--checkpoint other.bin {how}", theirs)
    one = verdicts(result)["pgd2.16"]
    assert result.exit_code == 1 and one["verdict"] == "differs"
    assert one["reason"].startswith("another checkpoint: ") and one["claimed"] == theirs["metrics"]["pgd2.16"]


def test_without_records_the_file_of_images_is_judged_alone(theirs: Record) -> None:
    words = "--checkpoint model.bin --dataset digits"
    assert verdicts(run(f"{words} --adv adv"))["pgd2.16"]["verdict"] == "match"
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
        told = verdicts(result)
        assert result.exit_code == 0 and assumed[name] in told, result.stderr
        assert {one["verdict"] for one in told.values()} == {"match"}
        about = told[assumed[name]]["assumed"]
        assert "n 40" in about and "checkpoint " in about and about in result.stderr
    without = verdicts(run("", row))["pgd20.8"]
    assert without["verdict"] == "cannot be told" and "--checkpoint FILE" in without["reason"]
    for entry in row["evals"]:
        entry["value"] = row["metrics"][entry["metric"]] = 0.3
    result = run(f"{words} --n 30", row)
    assert result.exit_code == 1 and {one["verdict"] for one in verdicts(result).values()} == {"differs"}
    assert all(one["n"] == 30 and one["p"] < 1e-3 for one in verdicts(result).values())
    result = run(words, {**row, "arch": {**row["arch"], "class": 7}})
    assert "another network: " in verdicts(result)["acc"]["reason"]
