"""bench/fuzz_files.py: a few inputs for each way in, and that what is wrong there is found."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = str(Path(__file__).resolve().parents[2] / "bench")
EACH = 25


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("fuzz_files")


def names() -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCH)
        return list(importlib.import_module("fuzz").FILES)


@pytest.mark.parametrize("name", names())
def test_no_input_ends_a_reader(module: Any, name: str) -> None:
    rolled = importlib.import_module("fuzz_pickles").Rolled
    target = module.TARGETS[name]()
    for seed in range(EACH):
        target.check(target.make(rolled(seed)))


def test_every_target_can_be_named(module: Any) -> None:
    assert list(module.TARGETS) == names()


def test_a_file_that_is_written_elsewhere_is_a_finding(module: Any) -> None:
    class Writes(module.Files):  # type: ignore[misc,name-defined]
        def make(self, chance: Any) -> bytes:
            return b""

        def read(self, data: bytes, folder: Path) -> None:
            if data:
                (folder.parent / "new").write_bytes(data)

    with pytest.raises(AssertionError, match="outside its folder"):
        Writes().check(b"x")
