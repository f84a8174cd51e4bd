"""Records with field values that no tool writes fail with a message, and the others are processed."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rbtools.cli.sink import Inconsistent
from tests import runner
from tests.records.test_consistency import HONEST, PLANTED
from tests.runner import Record, entry

GOOD: Record = {
    "arch": {"space": "nasbench201", "index": 4},
    "dataset": "cifar10",
    "train": {"method": "pgd"},
    "metrics": {"acc": 0.5, "aa.8": 0.25},
}


def run(words: str, given: list[Record]) -> Result:
    return runner.run(*words.split(" ", 1), given)


def put(record: Record, path: str, value: Any) -> Record:
    """The record with a value at a dotted path."""
    head, _, rest = path.partition(".")
    return {**record, head: put(record.get(head) or {}, rest, value) if rest else value}


def one_fails(words: str, given: list[Record], message: str) -> None:
    """The second of three records has an error with these words; the others have none."""
    result = run(words, given)
    assert "Traceback" not in result.stderr and "bug in rbtools" not in result.stderr
    assert result.exit_code == 1 and message in result.stderr
    written = runner.records(result)
    assert ["error" in record for record in written] == [False, True, False]
    assert message in written[1]["error"]["message"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("train.config", "x", "The record's train.config is 'x'. Expected an object"),
        ("train.config.val", "0.1", "The record's train.config.val is '0.1'. Expected the share"),
        ("train.config.val", 10**30, "Expected the share of the training images"),
    ],
)
def test_a_training_that_is_none(trained: Any, path: str, value: Any, message: str) -> None:
    good = trained["erm"]
    one_fails("ge acc --n 4", [good, put(good, path, value), good], message)


def test_a_result_too_large_to_calculate_with_fails_its_record(trained: Any) -> None:
    good = trained["erm"]
    claimed = runner.one(run("attack fgsm --n 4", [good]))
    claimed["evals"] = [{**runner.entry(claimed, "acc"), "value": 1e308, "ci95": [-1e308, 1e308]}]
    one_fails("ge acc --n 4", [good, claimed, good], 'has an entry "acc" in "evals" whose "value"')


@pytest.mark.parametrize(
    ("path", "value"),
    [("dataset", ["digits"]), ("train.method", {"a": 1}), ("train.epochs", [1]), ("arch.space", ["zoo"])],
)
def test_a_list_where_a_name_is_expected_is_no_row_of_a_table(path: str, value: Any) -> None:
    result = run("search random --objective acc --budget 2 --runs 1", [GOOD, put(GOOD, path, value), GOOD])
    assert result.exit_code == 1 and "Traceback" not in result.stderr
    named = "an architecture of the space" if path == "arch.space" else f"the {path}"
    assert f"line 2 has {named} {value!r}. Expected a name" in result.stderr
    assert json.loads(result.stdout)["metrics"] == GOOD["metrics"]


def record(name: str, **fields: Any) -> Record:
    return {"arch": {"space": "zoo", "name": name, "params": 5}, "dataset": "digits", **fields}


@pytest.mark.parametrize(
    "tool", ["rank --by acc", "corr --metric acc", "search random --objective acc --runs 1"]
)
def test_where_leaves_out_a_record_whose_field_is_of_another_kind(tool: str) -> None:
    good = [record(name, metrics={"acc": place / 10}) for place, name in enumerate("abcd")]
    odd = put(record("odd", metrics={"acc": 0.9}), "arch.params", [5])
    result = run(f"{tool} --where arch.params>3", [good[0], odd, *good[1:]])
    assert result.exit_code == 0 and "odd" not in result.stdout and result.stdout
    assert "1 record left out: a name in --where is missing." in result.stderr


@pytest.mark.parametrize("name", ["", "a/b", "..", "n" * 300])
@pytest.mark.parametrize("form", ["robustbench", "jung2023"])
def test_a_name_that_no_file_can_have_costs_its_record_alone(form: str, name: str) -> None:
    result = run(f"convert {form} --write out", [{**GOOD, "dataset": name}, GOOD])
    assert result.exit_code == 1 and "cannot be the name of a file" in result.stderr
    assert list(Path("out").rglob("*.json"))


@pytest.mark.parametrize("threat", [["Linf"], "../x", {"a": 1}])
def test_a_threat_model_that_is_none_costs_its_record_alone(threat: Any) -> None:
    result = run("convert robustbench --write out", [{**GOOD, "robustbench": {"threat": threat}}, GOOD])
    assert result.exit_code == 1 and "Unknown threat model" in result.stderr
    assert [path.parent.name for path in Path("out").rglob("*.json")] == ["Linf"]


SINKS = {
    "rank": "--by acc",
    "score": "--metric acc",
    "plot": "scatter --x acc --y pgd20.8 -o figure.svg",
}


def stale(record: Record) -> Record:
    """The record with a value and its interval changed by hand, which only the checksum shows."""
    record = copy.deepcopy(record)
    entry(record, "wci")["value"] = record["metrics"]["wci"] = 13.5
    return record


FALSE = [*(record for record, _ in PLANTED), stale(HONEST)]


def named(record: Record, number: int) -> Record:
    return {**record, "arch": {"name": f"net{number}"}}


@pytest.mark.parametrize("tool", SINKS)
def test_each_inconsistent_record_is_a_line_and_honest_ones_are_none(
    tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Inconsistent, "LINES", 100)
    given = [named(HONEST, 99), *(named(record, number) for number, record in enumerate(FALSE))]
    result = run(f"{tool} {SINKS[tool]}", given)
    assert result.exit_code == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if "inconsistent" in line]
    assert [line.split()[2] for line in lines] == [f"net{number}" for number in range(len(FALSE))]
