"""rb-corr: one stream, result sets side by side, every format, and what goes wrong."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests import runner
from tests.runner import Record


def record(index: int, dataset: str = "cifar10", **metrics: float) -> Record:
    arch = {"name": f"n{index}", "index": index}
    return {"schema": 1, "arch": arch, "dataset": dataset, "metrics": metrics}


FOUR = [record(0, acc=0.5, pgd=0.3), record(1, acc=0.6, pgd=0.2), record(2, acc=0.7, pgd=0.1)]
FOUR.append(record(3, acc=0.8, pgd=0.35))


def write(name: str, records: list[Record]) -> None:
    Path(name).write_text(runner.lines(*records))


run = partial(runner.run, "corr")


def lines(words: str, given: list[Record] | tuple[()] = ()) -> list[Record]:
    result = run(words, given)
    assert (result.exit_code, result.stderr) == (0, "")
    return runner.records(result)


def pairs(words: str, given: list[Record] | tuple[()] = ()) -> dict[tuple[str, str], float | None]:
    return {(one["row"], one["col"]): one["value"] for one in lines(words, given)}


def test_a_pair_as_it_is_written() -> None:
    result = run("--rows acc --cols pgd", FOUR)
    assert result.stdout == (
        '{"tool":"rb-corr","kind":"spearman","row":"acc","col":"pgd","value":0.2,"n":4}\n'
    )


def test_two_files_joined_by_a_field() -> None:
    write("ours.jsonl", FOUR)
    write("theirs.jsonl", [record(n, acc=1 - FOUR[n]["metrics"]["acc"]) for n in reversed(range(4))])
    words = "ours.jsonl theirs.jsonl --on arch.index --metric acc,pgd --rows ours:*"
    assert pairs(words) == {
        ("ours:acc", "ours:acc"): 1.0,
        ("ours:acc", "theirs:acc"): -1.0,
        ("ours:acc", "ours:pgd"): pytest.approx(0.2),
        ("ours:pgd", "ours:acc"): pytest.approx(0.2),
        ("ours:pgd", "theirs:acc"): pytest.approx(-0.2),
        ("ours:pgd", "ours:pgd"): 1.0,
    }


def test_only_records_that_both_sets_have_count() -> None:
    write("a.jsonl", FOUR)
    write("b.jsonl", [*FOUR[:3], record(9, acc=0.1)])
    found = lines("a.jsonl b.jsonl --on arch.index --rows a:acc --cols *:acc")
    assert [(one["col"], one["n"]) for one in found] == [("a:acc", 4), ("b:acc", 3)]


def test_the_last_of_equal_keys_counts_and_is_said() -> None:
    former = {**record(3, acc=0.0), "train": {"seed": 5}}
    write("a.jsonl", [former, *FOUR])
    write("b.jsonl", FOUR)
    result = run("a.jsonl b.jsonl --on arch.index --rows a:acc --cols b:acc")
    assert json.loads(result.stdout)["value"] == 1.0
    assert result.stderr == (
        "rb-corr: warning: 1 record with the same arch.index as another record of the set: only the last one"
        " counts. --aggregate seed takes the mean over seeds.\n"
    )


def test_means_over_seeds_come_first() -> None:
    some = [
        {**one, "train": {"seed": seed}, "metrics": {**one["metrics"], "pgd": one["metrics"]["pgd"] + shift}}
        for one in FOUR
        for seed, shift in ((0, -0.5), (1, 0.5))
    ]
    (pair,) = lines("--aggregate seed --rows acc --cols pgd", some)
    assert (pair["n"], pair["value"]) == (4, pytest.approx(0.2))


def test_data_sets_that_are_mixed_are_named() -> None:
    some = [*FOUR, *(record(i, "svhn", acc=i) for i in range(3))]
    result = run("--metric acc", some)
    assert result.stderr == (
        "rb-corr: warning: records of 2 data sets (cifar10, svhn) are correlated together. --join arch.name"
        " --by dataset keeps them apart.\n"
    )


def test_formats() -> None:
    assert run("--format csv", FOUR).stdout == "spearman,acc,pgd\nacc,1.0,0.2\npgd,0.2,1.0\n"
    assert run("--format md", FOUR).stdout == (
        "| spearman | clean | pgd |\n| --- | ---: | ---: |\n"
        "| clean | 1.0000 | 0.2000 |\n| pgd | 0.2000 | 1.0000 |\n"
    )


REFUSED = {
    "--metric 'mean(fgsm.*)'": "No record has the metrics or fields in 'mean(fgsm.*)'. They have: acc, pgd.",
    "--metric arch.name": "'arch.name' is the string 'n0'. Expected a number",
    "--kind pearson": "--kind is 'pearson'. Choose from: kendall, spearman.",
    "--on arch.index": "--on joins result sets, but there is only one.",
    "--by dataset": "--by splits records into sets, but nothing joins them. Add --join arch.name.",
    "--by dataset --on arch.index": "There is only one result set (cifar10).",
    "--by dataset --on arch.idx": "--on: There is no metric or field 'arch.idx'.",
    "--where 'acc > 0.65'": "2 records came in. A correlation needs 3 or more.",
}


@pytest.mark.parametrize("words", REFUSED)
def test_wrong_use_is_one_line(words: str) -> None:
    result = run(words, FOUR)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("rb-corr: error: ") and REFUSED[words] in result.stderr
