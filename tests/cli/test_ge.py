"""rb-ge at the command line: any evaluation on train and on test, and the difference."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rbtools.cli.attack import main as attack
from rbtools.cli.ge import main

Record = dict[str, Any]
SOME = ["--n", "40", "--n-train", "60", "--device", "cpu"]


def run(arguments: list[str], *records: Record) -> Result:
    text = "".join(json.dumps(record) + "\n" for record in records)
    return CliRunner().invoke(main, arguments, input=text)


def one(result: Result) -> Record:
    assert result.exit_code == 0, result.stderr
    (line,) = result.stdout.splitlines()
    record: Record = json.loads(line)
    return record


@pytest.mark.parametrize(
    ("question", "names"),
    [
        (["acc"], ["acc"]),
        (["attack", "fgsm", "--eps", "4,8"], ["fgsm.4", "fgsm.8"]),
        (
            ["corrupt", "contrast,brightness", "--severity", "5"],
            ["corrupt.contrast.5", "corrupt.brightness.5"],
        ),
        (
            ["pr", "--gamma", "0.3", "--rho", "0.2", "--samples", "4"],
            ["pr.uniform.0.3", "probacc.uniform.0.3.0.2"],
        ),
    ],
    ids=["acc", "attack", "corrupt", "pr"],
)
def test_the_difference_comes_with_both_sides(
    question: list[str], names: list[str], trained: dict[str, Record]
) -> None:
    record = one(run([*question, *SOME], trained["erm"]))
    assert record["mine"] == {"kept": [1, 2]}
    metrics = record["metrics"]
    for name in names:
        assert metrics[f"ge.{name}"] == pytest.approx(metrics[f"train.{name}"] - metrics[name], abs=1e-12)
        (entry,) = [entry for entry in record["evals"] if entry["metric"] == f"ge.{name}"]
        assert entry["split"] == "train-test" and entry["tool"] == "rb-ge"
        low, high = entry["ci95"]
        assert -1 <= low < entry["value"] < high <= 1
        if question[0] != "pr":
            assert entry["n"] == [60, 40]
    assert [entry["metric"] for entry in record["evals"][-len(names) :]] == [f"ge.{name}" for name in names]


def test_an_evaluation_that_is_there_is_not_made_again(trained: dict[str, Record]) -> None:
    chosen = ["fgsm", "--eps", "8", "--n", "40", "--device", "cpu"]
    evaluated = one(CliRunner().invoke(attack, chosen, input=json.dumps(trained["erm"])))
    result = run(["attack", "fgsm", "--eps", "8", *SOME], evaluated)
    assert result.stderr == "rb-ge: 1 record: 1 computed, 1 found in the store.\n"
    assert one(result)["metrics"]["fgsm.8"] == evaluated["metrics"]["fgsm.8"]
    assert run(["attack", "fgsm", "--eps", "8", *SOME], evaluated).stderr.startswith(
        "rb-ge: 1 record: 0 computed, 2 found"
    )


def test_all_images_of_both_splits_are_the_default(trained: dict[str, Record]) -> None:
    record = one(run(["acc", "--device", "cpu"], trained["erm"]))
    assert record["evals"][-1]["n"] == [1442, 355]


def test_a_difference_can_be_named(trained: dict[str, Record]) -> None:
    metrics = one(run(["acc", "--as", "gap", *SOME], trained["erm"]))["metrics"]
    assert metrics["gap"] == pytest.approx(metrics["train.acc"] - metrics["acc"]) and "ge.acc" not in metrics


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["acc", "--split", "train"], "No such option '--split'"),
        (["accuracy"], "No such command 'accuracy'"),
        (["attack", "fgsm", "--eps", "-1"], "--eps is -1."),
        (["corrupt", "contrast", "--severity", "9"], "--severity is 9."),
        (["pr", "--gamma", "8"], "Did you mean 8/255?"),
        (["acc", "--n-train", "0"], "Invalid value for '--n-train'"),
    ],
)
def test_wrong_use_is_a_usage_error(arguments: list[str], message: str) -> None:
    result = run(arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert result.stderr.startswith("rb-ge: error: ")
