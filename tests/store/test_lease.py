"""Claims on work in progress: one holder at a time; expired leases are taken over, live ones never."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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
    """Another process that holds the lease and renews it often; a line of input makes it release."""
    code = (
        "lease.HEARTBEAT_SECONDS = 0.05\n"
        f"mine = lease.claim(Path({str(LEASE)!r}))\n"
        "print('held' if mine else 'not held', flush=True)\n"
        "sys.stdin.readline(); mine.release(); print('released', flush=True); sys.stdin.readline()\n"
    )
    with process(code) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        yield other
        other.kill()


def say(other: subprocess.Popen[str]) -> str:
    assert other.stdin is not None and other.stdout is not None
    other.stdin.write("\n")
    other.stdin.flush()
    return other.stdout.readline()


def soon(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + WAIT_SECONDS
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def silent_for(seconds: float) -> None:
    then = time.time() - seconds
    os.utime(LEASE, (then, then))


def somebody(**changes: object) -> bytes:
    """The lease of another host's process, or of whatever `changes` say."""
    token = json.dumps({"host": "elsewhere", "pid": 1, "token": "x", **changes}).encode()
    LEASE.parent.mkdir(exist_ok=True)
    LEASE.write_bytes(token)
    return token


def test_a_lease_has_one_holder_until_it_is_released() -> None:
    first = lease.claim(LEASE)
    assert first is not None and lease.claim(LEASE) is None
    first.release()
    assert not LEASE.exists()
    second = lease.claim(LEASE)
    assert second is not None
    second.release()


def test_a_dead_holder_of_this_host_is_taken_over_at_once(held: subprocess.Popen[str]) -> None:
    held.send_signal(signal.SIGKILL)
    held.wait(WAIT_SECONDS)
    assert LEASE.exists() and not lease.is_alive(LEASE)
    mine = lease.claim(LEASE)
    assert mine is not None and LEASE.read_bytes() == mine.token
    mine.release()


@pytest.mark.parametrize(
    ("seconds", "taken"), [(0, False), (40, False), (61, True), (10_000, True), (-10_000, True)]
)
def test_a_holder_elsewhere_is_taken_over_after_a_minute_of_silence(seconds: float, taken: bool) -> None:
    token = somebody(pid=2**22 + 1)  # no process of this host has that number
    silent_for(seconds)
    mine = lease.claim(LEASE)
    assert (mine is not None) is taken
    if mine is None:
        assert LEASE.read_bytes() == token
    else:
        mine.release()


def test_a_container_of_the_same_name_is_not_this_host() -> None:
    somebody(host=lease.HOST, space="another", pid=2**22 + 1)
    assert lease.claim(LEASE) is None
    somebody(host=lease.HOST, space=lease.SPACE, pid=2**22 + 1)
    mine = lease.claim(LEASE)
    assert mine is not None
    mine.release()


@pytest.mark.parametrize("token", [b"", b"{", b"[1]", b'{"host": 1}', b"\xff\x00", b"[" * 10**5])
def test_a_lease_that_names_nobody_ends_by_silence_alone(token: bytes) -> None:
    somebody()
    LEASE.write_bytes(token)
    assert lease.claim(LEASE) is None
    silent_for(61)
    mine = lease.claim(LEASE)
    assert mine is not None
    mine.release()


def test_a_heart_beats_for_a_lease(held: subprocess.Popen[str]) -> None:
    silent_for(100)
    assert soon(lambda: time.time() - LEASE.stat().st_mtime < 50)
    assert lease.claim(LEASE) is None


def test_a_lease_that_was_lost_is_not_deleted_by_its_old_holder(held: subprocess.Popen[str]) -> None:
    held.send_signal(signal.SIGSTOP)
    silent_for(100)
    mine = lease.claim(LEASE)
    assert mine is not None
    silent_for(100)
    held.send_signal(signal.SIGCONT)
    assert say(held) == "released\n"
    assert LEASE.read_bytes() == mine.token
    assert time.time() - LEASE.stat().st_mtime > 50  # nor did it renew our lease
    mine.release()
    assert not LEASE.exists()


def test_a_heart_does_not_keep_a_lost_lease_alive() -> None:
    mine = lease.claim(LEASE)
    assert mine is not None
    silent_for(100)
    lease.touch_all()
    assert time.time() - LEASE.stat().st_mtime < 50
    token = somebody()
    silent_for(100)
    lease.touch_all()
    assert time.time() - LEASE.stat().st_mtime > 50
    mine.release()
    assert LEASE.read_bytes() == token


def test_whoever_was_quicker_in_taking_over_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    somebody()
    silent_for(100)
    real = os.rename

    def late(source: Path, target: Path) -> None:
        somebody(token="quicker")  # between our look at the lease and our taking it away
        real(source, target)

    monkeypatch.setattr(os, "rename", late)
    assert not lease.take_away(LEASE)
    assert json.loads(LEASE.read_bytes())["token"] == "quicker"
    assert [path.name for path in LEASE.parent.iterdir()] == [LEASE.name]


def test_a_full_disk_leaves_no_empty_lease() -> None:
    # Others would wait for nobody. A limit on the size of files fails writes as a full disk does.
    code = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "try:\n"
        f"    lease.claim(Path({str(LEASE)!r}))\n"
        "except OSError as error:\n"
        "    print(type(error).__name__)\n"
    )
    with process(code) as other:
        assert other.stdout is not None and other.stdout.read() == "OSError\n"
    assert LEASE.parent.is_dir() and not LEASE.exists()


def nobody_waits() -> None:
    raise AssertionError("there is nothing to wait for")


def test_a_lease_is_held_inside_and_given_back_after_an_error() -> None:
    store = Store("rb-store")
    with pytest.raises(ZeroDivisionError), store.claimed(KEYS[0], lambda: False, nobody_waits):
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
            assert other.stdout is not None
            computed += other.stdout.read().split()
            assert other.wait(WAIT_SECONDS) == 0
    assert sorted(map(int, computed)) == list(range(12))


def test_a_file_of_gigabytes_in_the_place_of_a_lease(tmp_path: Path) -> None:
    """It is not read: a lease is a line."""
    (tmp_path / "l").write_bytes(b"x")
    os.truncate(tmp_path / "l", 2**40)
    assert lease.claim(tmp_path / "l") is None
    os.utime(tmp_path / "l", (1, 1))
    held = lease.claim(tmp_path / "l")
    assert held is not None
    held.release()
