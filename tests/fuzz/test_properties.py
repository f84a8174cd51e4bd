"""What a reader must not do is noticed, also where it goes on as if nothing had happened."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from rbtools.errors import RbError
from tests.fuzz.properties import held

WRONG = {
    "reading the file did os.system": lambda: os.system("true"),
    "reading the file did os.mkdir": lambda: os.mkdir("x"),
    "reading the file did open": lambda: Path("x").write_text("x"),
    "more than 0.1 seconds": lambda: sum(number for number in range(10**9)),
    "no sentence": lambda: (_ for _ in ()).throw(RbError("two\nlines.")),
}


@pytest.mark.parametrize("message", WRONG)
def test_it_fails(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.properties.SECONDS", 0.1)
    with pytest.raises(AssertionError, match=message), held(), contextlib.suppress(OSError):
        WRONG[message]()
    assert not os.path.exists("x")
