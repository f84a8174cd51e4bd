"""Claims on work in progress: one holder at a time; those of the dead are taken over, live ones never."""

from __future__ import annotations

import errno
import fcntl
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rbtools.store import Store, digest, lease

UNITS = [{"unit": number} for number in range(3)]
KEYS = [digest(unit) for unit in UNITS]
LEASE = Path("leases/one")
START = "import sys, time\nfrom pathlib import Path\nfrom rbtools.store import Store, lease\n"
WAIT_SECONDS = 120.0  # far longer than these tests take, even on a busy machine


def process(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", START + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def held() -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lease; a line of input makes it release."""
    code = (
        f"mine = lease.claim(Path({str(LEASE)!r}))\n"
        "print('held' if mine else 'not held', flush=True)\n"
        "sys.stdin.readline(); mine.release(); print('released', flush=True); sys.stdin.readline()\n"
    )
    with process(code) as other:
        assert other.stdout.readline() == "held\n"
        yield other
        other.kill()


def say(other: subprocess.Popen[str]) -> str:
    other.stdin.write("\n")
    other.stdin.flush()
    return other.stdout.readline()


def test_a_dead_holder_of_this_host_is_taken_over_at_once(held: subprocess.Popen[str]) -> None:
    held.send_signal(signal.SIGKILL)
    held.wait(WAIT_SECONDS)
    assert LEASE.exists() and not lease.is_alive(LEASE)
    mine = lease.claim(LEASE)
    assert mine is not None and lease.is_alive(LEASE)
    mine.release()


def test_a_live_holder_keeps_it(held: subprocess.Popen[str]) -> None:
    assert lease.claim(LEASE) is None and lease.is_alive(LEASE) and not lease.take_away(LEASE)
    assert say(held) == "released\n"
    assert not LEASE.exists() and not lease.is_alive(LEASE) and lease.take_away(LEASE)


def test_a_lease_that_was_removed_is_not_deleted_by_its_old_holder(held: subprocess.Popen[str]) -> None:
    LEASE.unlink()
    mine = lease.claim(LEASE)
    assert mine is not None and say(held) == "released\n"
    assert lease.is_alive(LEASE)
    mine.release()
    assert not LEASE.exists()


def test_a_lease_that_is_released_while_we_take_it_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    real, first = fcntl.flock, lease.claim(LEASE)
    assert first is not None

    def late(handle: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        first.release()  # between our opening the file and our locking it
        real(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    mine = lease.claim(LEASE)
    assert mine is not None and mine.in_place()
    mine.release()


def test_where_a_file_system_has_no_locks_everybody_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    for _ in range(2):
        assert lease.claim(LEASE) is not None
    assert lease.is_alive(LEASE) and not lease.take_away(LEASE)  # nobody can see whether it is free


def test_a_lease_is_held_inside_and_given_back_after_an_error() -> None:
    store = Store("rb-store")
    with pytest.raises(ZeroDivisionError), store.claimed(KEYS[0], lambda: False, pytest.fail):
        assert [path.name for path in store.files("leases")] == [KEYS[0]]
        raise ZeroDivisionError
    assert not list(store.files("leases"))


def test_work_that_others_finish_while_we_wait_is_not_waited_for() -> None:
    store, waited = Store("rb-store"), 0
    theirs = lease.claim(store.path("leases", KEYS[1]) or Path())
    assert theirs is not None

    def check_cancelled() -> None:
        nonlocal waited
        waited += 1
        if waited == 2:
            store.keep_result(KEYS[1], UNITS[1], "theirs")

    with store.claimed(KEYS[1], lambda: store.result(KEYS[1]) is not None, check_cancelled):
        assert waited == 2
    theirs.release()
    assert not list(store.files("leases"))


def test_each_unit_is_computed_once_by_processes_that_share_a_store() -> None:
    code = (
        "from rbtools.execution.once import once\n"
        "from rbtools.execution.run import Run\n"
        "from rbtools.store import digest\n"
        "run = Run.of(store=Store('rb-store'))\n"
        "for number in range(12):\n"
        "    key = digest({'unit': number})\n"
        "    def compute():\n"
        "        time.sleep(0.005)\n"
        "        print(number, flush=True)\n"
        "        run.store.keep_result(key, {'unit': number}, number)\n"
        "        return number\n"
        "    once(run, key, lambda: run.store.result(key), compute, title='unit', unit='unit')\n"
    )
    others = [process(code) for _ in range(3)]
    computed = []
    for other in others:
        with other:
            computed += other.stdout.read().split()
            assert other.wait(WAIT_SECONDS) == 0
    assert sorted(map(int, computed)) == list(range(12))
