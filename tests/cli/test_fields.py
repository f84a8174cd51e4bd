"""Records with fields that hold what no tool writes: one record fails, in words, and the others are done."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result


def run(words: str, records: list[dict[str, Any]]) -> Result:
    tool, *rest = words.split()
    command: Any = importlib.import_module(f"rbtools.cli.{tool}").main
    return CliRunner().invoke(command, rest, input="".join(json.dumps(record) + "\n" for record in records))


def put(record: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The record with a value at a dotted path."""
    head, _, rest = path.partition(".")
    return {**record, head: put(record.get(head) or {}, rest, value) if rest else value}


def one_fails(words: str, records: list[dict[str, Any]], message: str) -> None:
    """The second of three records has an error with these words; the others have none."""
    result = run(words, records)
    assert "Traceback" not in result.stderr and "bug in rbtools" not in result.stderr
    assert result.exit_code == 1 and message in result.stderr
    written = [json.loads(line) for line in result.stdout.splitlines()]
    assert ["error" in record for record in written] == [False, True, False]
    assert message in written[1]["error"]["message"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("train.config", "x", "The record's train.config is 'x'. Expected an object"),
        ("train.config", [0.1], "The record's train.config is [0.1]. Expected an object"),
        ("train.config.val", "0.1", "The record's train.config.val is '0.1'. Expected the share"),
        ("train.config.val", [0.1], "The record's train.config.val is [0.1]. Expected the share"),
        ("train.config.val", 10**30, "Expected the share of the training images"),
        ("train.config.val", -1, "Expected the share of the training images"),
        ("train.config.val", True, "Expected the share of the training images"),
    ],
)
def test_a_training_that_is_none(trained: Any, path: str, value: Any, message: str) -> None:
    good = trained["erm"]
    one_fails("ge acc --n 4", [good, put(good, path, value), good], message)


def test_a_result_that_is_not_finite_fails_its_record(trained: Any) -> None:
    good = trained["erm"]
    claimed = json.loads(run("attack fgsm --n 4", [good]).stdout)
    for entry in claimed["evals"]:
        if entry["metric"] == "acc":
            entry |= {"value": 1e308, "ci95": [-1e308, 1e308]}
    claimed["evals"] = [entry for entry in claimed["evals"] if entry["metric"] == "acc"]
    one_fails("ge acc --n 4", [good, claimed, good], "The result cannot be written: record.evals[")


def test_an_integer_beyond_64_bits_is_part_of_a_key(trained: Any) -> None:
    good = trained["erm"]
    large = put(good, "arch.index", 10**30)
    result = run("attack fgsm --n 4", [good, large])
    assert result.exit_code in (0, 1) and "bug in rbtools" not in result.stderr
    assert len(result.stdout.splitlines()) == 2
    assert json.loads(result.stdout.splitlines()[1])["arch"]["index"] == 10**30


@pytest.mark.parametrize(
    ("path", "value"),
    [("dataset", ["digits"]), ("train.method", {"a": 1}), ("train.epochs", [1]), ("arch.space", ["zoo"])],
)
def test_a_list_where_a_name_is_expected_is_no_row_of_a_table(path: str, value: Any) -> None:
    arch = {"space": "nasbench201", "index": 4}
    good = {"arch": arch, "dataset": "digits", "train": {"method": "pgd"}, "metrics": {"acc": 0.5}}
    result = run("search random --objective acc --budget 2 --runs 1", [good, put(good, path, value), good])
    assert result.exit_code == 1 and "Traceback" not in result.stderr
    named = "an architecture of the space" if path == "arch.space" else f"the {path}"
    assert f"line 2 has {named} {value!r}. Expected a name" in result.stderr
    assert json.loads(result.stdout)["metrics"] == {"acc": 0.5}
