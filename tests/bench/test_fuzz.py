"""bench/fuzz.py: a few inputs of every target that needs no training, and that what is wrong is found."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = str(Path(__file__).resolve().parents[2] / "bench")
EACH = 12


def modules() -> tuple[Any, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCH)
        return importlib.import_module("fuzz_targets"), importlib.import_module("fuzz_grammar").Chance


TARGETS, CHANCE = modules()
FILES = [name for name in TARGETS.TARGETS if name not in ("records", "checkpoints")]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("records")
    TARGETS.golden.inputs(folder)  # the files that command lines name
    return TARGETS.Records(TARGETS.golden.table(), folder)


@pytest.mark.parametrize(
    ("number", "words"),
    [(n, " ".join(TARGETS.COMMANDS[n])) for n in TARGETS.LIGHT],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_changed_record_ends_a_tool(records: Any, number: int, words: str) -> None:
    chance = CHANCE(number)
    records.check(records.input(number, [records.changed(chance) for _ in range(10)]))


def test_what_a_tool_loses_or_breaks_is_a_finding(records: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    number = TARGETS.COMMANDS.index(["rank", "--by", "acc"])
    records.check(records.input(number, []))
    with pytest.raises(AssertionError, match="loses 1 records"):
        records.check(records.input(number, []).replace(b'"mark": "good"', b'"mark": "bad"', 1))

    def broken(*args: Any, **options: Any) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("rbtools.commands.rank.write", broken)
    with pytest.raises(AssertionError, match="KeyError"):
        records.check(records.input(number, []))


@pytest.mark.parametrize("name", FILES)
def test_no_input_ends_a_reader(name: str) -> None:
    target = TARGETS.TARGETS[name]()
    for seed in range(EACH):
        target.check(target.make(CHANCE(seed)))


def test_a_file_that_is_written_elsewhere_is_a_finding() -> None:
    class Writes(TARGETS.Files):  # type: ignore[misc,name-defined]
        def make(self, chance: Any) -> bytes:
            return b""

        def read(self, data: bytes, folder: Path) -> None:
            if data:
                (folder.parent / "new").write_bytes(data)

    with pytest.raises(AssertionError, match="outside its folder"):
        Writes().check(b"x")
