"""rb-store answers: records get later what --per-image would have written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rbtools.records import answers, checksums
from tests import runner

Record = dict[str, Any]
CPU = "--device cpu --threads 1"
PIPES = {
    "attack, other split": ("attack", "pgd --steps 2 --eps 4,8 --split train --n 30"),
    "details": ("attack", "fgsm --eps 4 --detail --n 30"),
    "distances": ("attack", "curve --eps 2,8 --queries 20 --n 20"),
    "chosen images": ("attack", "fgsm --eps 4 --indices 5-24"),
    "corruptions": ("corrupt", "fog,contrast --severity 2 --n 30"),
    "noise": ("pr", "--gamma 0.2 --rho 0.1,0.3 --samples 10 --n 30"),
    "noise, all images": ("pr", "--gamma 0.2 --rho 0.2 --passes above --denominator all --samples 10 --n 30"),
    "noise until decided": ("pr", "--gamma 0.2 --rho 0.1,0.3 --only probacc --samples 10 --n 30"),
    "generalisation": ("ge", "attack pgd --steps 2 --eps 4 --n 30"),
    "smoothing": ("certify", "smooth --eps 0,0.1 --sigma 0.1 --samples 30 --select 5 --alpha 0.05 --n 10"),
    "smoothing until decided": (
        "certify",
        "smooth --eps 0,0.1 --sigma 0.1 --samples 60 --select 5 --alpha 0.05 --n 10 --adaptive",
    ),
}


def records(tool: str, words: str, *given: Record) -> list[Record]:
    result = runner.run(tool, words, given)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def attacked(trained: dict[str, Record]) -> Record:
    (record,) = records("attack", f"fgsm --eps 4 --n 30 {CPU}", trained["erm"])
    return record


@pytest.mark.parametrize("pipe", PIPES)
def test_they_are_those_that_per_image_writes(pipe: str, trained: dict[str, Record]) -> None:
    tool, words = PIPES[pipe]
    (later,) = records(tool, f"{words} {CPU}", trained["erm"])
    (expected,) = records(tool, f"{words} {CPU} --per-image", trained["erm"])
    assert answers.LABELS in expected and answers.LABELS not in later
    (found,) = records("store", "answers", later)
    if "chosen" in pipe:  # the entry has only the hash of the list of images
        expected.pop(answers.LABELS)
    assert found == expected
    assert checksums.known(found) == checksums.of_all(found["evals"])[checksums.FIELD]
    assert records("store", "answers --store nowhere", expected) == [expected]


def test_entries_without_outcomes_are_counted_with_the_tool_that_gives_them(trained: Any) -> None:
    record = attacked(trained)
    result = runner.run("store", "answers --store other", [record])
    assert json.loads(result.stdout) == record and result.exit_code == 0
    assert result.stderr == (
        "rb-store: warning: the store has no outcomes of 2 entries (acc, fgsm.4). rb-attack --per-image"
        " measures them again.\n"
    )


def test_without_the_data_set_there_are_bits_only(trained: Any) -> None:
    record = {**attacked(trained), "dataset": "cifar10"}
    result = runner.run("store", "answers", [record])
    (found,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answers.FIELD in entry for entry in found["evals"]].count(True) == 2
    assert answers.LABELS not in found
    assert (
        result.stderr.count("\n") == 1 and "the classes of images of cifar10 are left out: " in result.stderr
    )


def test_damaged_bits_are_named_and_their_record_goes_on(trained: Any) -> None:
    (record,) = records("store", "answers", attacked(trained))
    entry = next(one for one in record["evals"] if one["metric"] == "fgsm.4")
    entry[answers.FIELD]["bits"] = entry[answers.FIELD]["bits"][:-4]
    result = runner.run("store", "answers", [record])
    assert json.loads(result.stdout) == record and result.exit_code == 1
    assert result.stderr.count("\n") == 1 and "The answers of fgsm.4 are damaged" in result.stderr


def test_what_is_no_record_and_failed_records_go_on(trained: Any) -> None:
    failed = {"schema": 1, "arch": {"name": "x"}, "error": {"tool": "rb-attack", "message": "no"}}
    text = runner.lines(failed) + "{\n" + runner.lines(attacked(trained))
    result = runner.run("store", "answers", text)
    passed, bad, found = map(json.loads, result.stdout.splitlines())
    assert result.exit_code == 1 and passed == failed
    assert bad["error"]["tool"] == "rb-store" and answers.LABELS in found


def test_an_edited_entry_stays_visible(trained: Any) -> None:
    record = attacked(trained)
    entry = next(one for one in record["evals"] if one["metric"] == "fgsm.4")
    entry["ci95"] = [0, 1]
    (found,) = records("store", "answers", record)
    checked = {
        one["metric"]: checksums.fits(found["checksums"][one["metric"]], one) for one in found["evals"]
    }
    assert checked["acc"] and not checked["fgsm.4"]
