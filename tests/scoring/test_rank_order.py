"""Ranks: direction, ties, missing values, and keeping only the best."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtools.errors import RbError
from rbtools.scoring.rank_order import rank


def records(*values: Any) -> list[dict[str, Any]]:
    return [{"arch": {"name": str(place)}, "value": value} for place, value in enumerate(values)]


def summary(ranked: list[Any]) -> list[tuple[Any, Any, str]]:
    return [(entry.rank, entry.value, entry.record["arch"]["name"]) for entry in ranked]


def by(record: Any) -> Any:
    return record["value"]


def test_equals_share_a_rank_and_keep_their_order() -> None:
    found = rank(records(0.5, 0.9, 0.5, 0.1, 0.9), by)
    assert summary(found) == [(1, 0.9, "1"), (1, 0.9, "4"), (3, 0.5, "0"), (3, 0.5, "2"), (5, 0.1, "3")]


def test_lower_first() -> None:
    found = rank(records(0.5, -0.9, 3), by, higher=False)
    assert summary(found) == [(1, -0.9, "1"), (2, 0.5, "0"), (3, 3, "2")]


def test_missing_values_come_last_without_a_rank() -> None:
    for higher in (True, False):
        found = rank(records(None, 0.5, float("nan"), 0.5), by, higher=higher)
        assert summary(found) == [(1, 0.5, "1"), (1, 0.5, "3"), (None, None, "0"), (None, None, "2")]


@given(st.lists(st.one_of(st.none(), st.integers(-3, 3))), st.integers(1, 12), st.booleans())
def test_top_is_the_head_of_the_whole(values: list[int | None], top: int, higher: bool) -> None:
    whole = rank(records(*values), by, higher=higher)
    assert rank(iter(records(*values)), by, higher=higher, top=top) == whole[:top]
    for entry in whole:
        better = [
            v for v in values if v is not None and entry.value is not None and (v > entry.value) == higher
        ]
        if entry.rank is not None:
            assert entry.rank == 1 + len([v for v in better if v != entry.value])


def test_top_does_not_hold_the_stream() -> None:
    alive = 0
    most = 0

    class Counted(dict):  # type: ignore[type-arg]
        def __init__(self, value: int) -> None:
            nonlocal alive, most
            super().__init__(value=value)
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    best = rank((Counted((value * 7919) % 10_007) for value in range(5_000)), by, top=3)
    assert [entry.value for entry in best] == sorted(
        ((v * 7919) % 10_007 for v in range(5_000)), reverse=True
    )[:3]
    assert most < 20


def test_what_cannot_be_ranked() -> None:
    with pytest.raises(RbError, match="Cannot rank by 'trades', which is not a number"):
        rank(records(0.1, "trades"), by)
    with pytest.raises(RbError, match="It must be 1 or more"):
        rank(records(0.1), by, top=0)
