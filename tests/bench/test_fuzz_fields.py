"""bench/fuzz_fields.py: a few of its inputs, for every tool that reads tables of records."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = str(Path(__file__).resolve().parents[2] / "bench")
EACH = 15  # changed records for a command


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCH)
        fields, targets = (importlib.import_module(name) for name in ("fuzz_fields", "fuzz_targets"))
        pool = [record for record in targets.real_records() if "error" not in record]
        yield fields.Fields(pool, tmp_path_factory.mktemp("fields"))


def light() -> list[tuple[int, str]]:
    """The commands that neither compute with a network nor draw a figure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCH)
        module = importlib.import_module("fuzz_fields")
    skipped = {*range(len(module.EVALUATES)), *module.RARELY}
    return [(n, " ".join(words)) for n, words in enumerate(module.COMMANDS) if n not in skipped]


@pytest.mark.parametrize(("number", "words"), light(), ids=[words for _, words in light()])
def test_no_changed_field_ends_a_tool(target: Any, number: int, words: str) -> None:
    chance = importlib.import_module("fuzz_pickles").Rolled(number)
    target.check(target.input(number, [target.changed(chance) for _ in range(EACH)]))


def test_what_a_tool_loses_is_a_finding(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("fuzz_fields")
    number = module.COMMANDS.index(("rank",))
    target.check(target.input(number, []))
    with pytest.raises(AssertionError, match="loses 1 records"):
        target.check(target.input(number, []).replace(b'"mark": "good"', b'"mark": "bad"', 1))

    def broken(*args: Any, **options: Any) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("rbtools.commands.rank.write", broken)
    with pytest.raises(AssertionError, match="KeyError"):
        target.check(target.input(number, []))
