"""Stamps: the changes that they show, and the cases in which they are not reliable."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

from rbtools.store.checksum import RESOLUTION_SECONDS, stamp

NOW_NS = 1_700_000_000_123_456_789
OLD: dict[str, int] = {
    "st_size": 7,
    "st_mtime_ns": NOW_NS - 10**15 - 1,
    "st_ctime_ns": NOW_NS - 10**14 - 1,
    "st_ino": 3,
    "st_dev": 4,
}


def status(**fields: int) -> Any:
    return SimpleNamespace(**{**OLD, **fields})


@pytest.mark.parametrize("field", OLD)
def test_a_stamp_changes_with_each_field(field: str) -> None:
    assert stamp(status(**{field: OLD[field] + 1})).text != stamp(status()).text


@pytest.mark.parametrize(
    ("fields", "settled"),
    [
        ({}, True),
        ({"st_mtime_ns": NOW_NS + 10**12}, True),  # a time that anybody may set
        ({"st_ctime_ns": NOW_NS - int(RESOLUTION_SECONDS * 5e8)}, False),
        ({"st_ctime_ns": NOW_NS + 10**12}, False),
        ({"st_ino": 0}, False),
        ({"st_ctime_ns": 0}, False),
        ({"st_ctime_ns": OLD["st_mtime_ns"]}, True),  # written once, and never touched since
        ({"st_ctime_ns": 10**18, "st_mtime_ns": 10**18}, False),  # no time of change of its own
        ({"st_ctime_ns": 10**18 + 3 * 10**7, "st_mtime_ns": 10**18 + 3 * 10**7}, False),
        ({"st_ctime_ns": 10**18}, True),
    ],
)
def test_a_stamp_under_which_a_file_may_change_is_not_believed(
    fields: dict[str, int], settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW_NS / 1e9)
    assert stamp(status(**fields)).settled is settled


def test_a_new_file_is_not_settled() -> None:
    with open("file", "w") as stream:
        assert not stamp(os.fstat(stream.fileno())).settled
