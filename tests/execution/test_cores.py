"""Core tokens: never more than cores, freed however a process ends, no open files left over while waiting."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from rbtools.execution import cores


class Enough(Exception):
    """The end of waiting."""


def after(times: int) -> Callable[[], None]:
    """A check that raises at its `times`-th call."""
    calls = iter(range(times))

    def check_cancelled() -> None:
        if next(calls, None) is None:
            raise Enough

    return check_cancelled


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cores, "count", lambda: 2)
    monkeypatch.setattr(cores, "_PAUSE_SECONDS", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def takes(store: str | None, threads: int) -> bool:
    """Whether so many cores are to be had at once."""
    try:
        with cores.held(store and Path(store), threads, after(2)):
            return True
    except Enough:
        return False


def test_no_more_cores_are_held_than_there_are() -> None:
    with cores.held(Path("store"), 1, after(0)):
        assert takes("store", 1) and not takes("store", 2)
        with cores.held(Path("store"), 1, after(0)):
            assert not takes("store", 1)
            assert takes("other", 2)  # the stages of another store have tokens of their own
            assert takes(None, 2)
    assert takes("store", 2)


def test_who_needs_more_than_there_are_gets_all() -> None:
    with cores.held(Path("store"), 16, after(0)):
        assert not takes("store", 1)
    assert takes("store", 16)


def test_a_core_is_given_back_by_who_fails() -> None:
    with pytest.raises(ZeroDivisionError), cores.held(Path("store"), 2, after(0)):
        raise ZeroDivisionError
    assert takes("store", 2)


def test_who_waits_for_two_cores_keeps_later_ones_from_the_first_that_is_free() -> None:
    passed: list[bool] = []

    def check_cancelled() -> None:
        passed.append(takes("store", 1))
        raise Enough

    with (
        cores.held(Path("store"), 1, after(0)),
        pytest.raises(Enough),
        cores.held(Path("store"), 2, check_cancelled),
    ):
        pass
    assert passed == [False]
    assert takes("store", 2)


def test_waiting_long_takes_no_memory() -> None:
    def grown(times: int) -> int:
        tracemalloc.start()
        with pytest.raises(Enough), cores.held(Path("store"), 1, after(times)):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    with cores.held(Path("store"), 2, after(0)):
        grown(10)
        # The least of three: other tests' threads may be at work in this process.
        assert min(grown(3000) for _ in range(3)) < grown(10) + 50_000
