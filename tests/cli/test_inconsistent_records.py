"""Tools that read all records and write something else warn of records that contradict themselves."""

from __future__ import annotations

import copy

import pytest

from rbtools.cli.sink import Inconsistent
from tests.records.test_consistency import HONEST, PLANTED
from tests.runner import Record, entry, model, run

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
    result = run(tool, SINKS[tool], given)
    assert result.exit_code == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if "inconsistent" in line]
    assert [line.split()[2] for line in lines] == [f"net{number}" for number in range(len(FALSE))]
    assert "checksum does not match" in lines[-1] and "net99" not in result.stderr
    assert "no entry" not in result.stderr


@pytest.mark.parametrize("tool", SINKS)
def test_many_are_counted(tool: str) -> None:
    result = run(tool, SINKS[tool], [named(FALSE[-1], number) for number in range(8)])
    assert result.stderr.count("is inconsistent") == 5
    assert "warning: and 3 more inconsistent records; rb-verify --inconsistent names them.\n" in result.stderr


def test_metrics_without_an_entry_are_one_line_in_all() -> None:
    some = [named({**HONEST, "metrics": {**HONEST["metrics"], "mine": 1.0}}, number) for number in range(9)]
    result = run("rank", "--by acc", some)
    assert result.stderr == (
        "rb-rank: warning: 9 records with metrics that have no entry in evals (net0: mine): nothing says how"
        " they were measured.\n"
    )
    assert run("rank", "--by acc", [model("a", metrics={"acc": 0.5})]).stderr == ""
