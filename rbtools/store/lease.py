"""Leases: claims on work in progress, by files that work on a network file system too.

A lease is a file made by exclusive creation; it names its host and process, and its holder touches it every
few seconds. A lease expires when it was not touched for a minute, when its process is on this host and has
ended, or when its time is a minute in the future, after an error of the clock. Results do not depend
on leases: if two processes hold the same one, both compute the same result and one has wasted its time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rbtools.plain_files import NoPlainFile, opened

SILENCE_SECONDS = 60.0
HEARTBEAT_SECONDS = 10.0
_LONGEST = 4096  # bytes


class Lease:
    """A claim that this process holds until `release`."""

    def __init__(self, path: Path, token: bytes) -> None:
        self.path, self.token = path, token
        with _held_lock:
            _held.add(self)

    def release(self) -> None:
        """Release the lease. A lease that another process has taken over is left alone."""
        with _held_lock:
            _held.discard(self)
        with contextlib.suppress(OSError):
            if _content(self.path) == self.token:
                self.path.unlink()


def claim(path: Path) -> Lease | None:
    """Take the lease at `path`, or return None if another process holds it. Raises OSError."""
    token = json.dumps({**myself(), "token": uuid.uuid4().hex}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(2):
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            if not take_away(path):
                return None
            continue
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(token)
        except OSError:  # the disk may be full: remove the empty lease, or it would block others
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        _start_heart()
        return Lease(path, token)
    return None


def wait(
    path: Path,
    check_cancelled: Callable[[], None],
    done: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> Lease | None:
    """Wait until the lease is acquired, or return None as soon as `done()` is true."""
    pause = 0.05
    while not done():
        lease = claim(path)
        if lease is not None:
            return lease
        check_cancelled()
        sleep(pause)
        pause = min(pause * 1.5, 2.0)
    return None


def is_alive(path: Path) -> bool:
    """Whether a process holds this lease; True too where it cannot be read whose it is."""
    try:
        return _looked_at(path) is None
    except (FileNotFoundError, NoPlainFile):
        return False
    except OSError:
        return True


def _looked_at(path: Path) -> bytes | None:
    """The content of a lease whose holder has ended; None for a live lease."""
    token = _content(path)
    silent = _now(path.parent) - path.stat().st_mtime
    return token if abs(silent) >= SILENCE_SECONDS or _holder_is_gone(token) else None


def take_away(path: Path) -> bool:
    """Remove a lease whose holder has ended; False where it is live. Raises OSError."""
    try:
        token = _looked_at(path)
    except FileNotFoundError:
        return True
    if token is None:
        return False
    aside = path.with_name(f".stale-{uuid.uuid4().hex}")
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return True
    try:
        # another process has acquired it already: this is the new holder's lease
        if _content(aside) != token:
            with contextlib.suppress(OSError):
                os.link(aside, path)
            return False
    finally:
        aside.unlink(missing_ok=True)
    return True


def _content(path: Path) -> bytes:
    """The content of a lease; at most the beginning of a long file, which is no lease. Raises OSError."""
    with opened(path) as stream:
        return stream.read(_LONGEST)


def _holder_is_gone(token: bytes) -> bool:
    """Whether the lease names a process of this host that has ended."""
    try:
        owner = json.loads(token)
    except (ValueError, RecursionError):
        return False  # being written, or damaged: it expires if nobody touches it
    return isinstance(owner, dict) and is_gone(owner)


def _now(folder: Path) -> float:
    """The file system's own clock, so that hosts need not agree on the time."""
    with tempfile.NamedTemporaryFile(prefix=".now-", dir=folder) as probe:
        return os.fstat(probe.fileno()).st_mtime


_held: set[Lease] = set()
_held_lock = threading.Lock()
_heart: threading.Thread | None = None
_heart_pid = 0


def _start_heart() -> None:
    global _heart, _heart_pid
    if _heart is None or _heart_pid != os.getpid():
        _heart_pid = os.getpid()
        _heart = threading.Thread(target=_beat, name="rbtools-leases", daemon=True)
        _heart.start()


def _beat() -> None:
    while True:
        time.sleep(HEARTBEAT_SECONDS)
        touch_all()


def touch_all() -> None:
    """Renew every lease that this process holds. One that another process took over is left alone."""
    with _held_lock:
        leases = list(_held)
    for lease in leases:
        with contextlib.suppress(OSError):
            if _content(lease.path) == lease.token:
                os.utime(lease.path)


# --- the process that owns a lease or a half-written file ---------------------------------------------


def _space() -> str:
    """The namespace of process numbers: containers of one host may share its host name."""
    try:
        return "".join(filter(str.isdigit, os.readlink("/proc/self/ns/pid")))
    except OSError:
        return ""


HOST, SPACE = socket.gethostname(), _space()
_HOST_IN_LABELS = re.sub(r"[^\w.]", "_", HOST)


def myself() -> dict[str, Any]:
    """The identity of this process, for others to look up."""
    return {"host": HOST, "space": SPACE, "pid": os.getpid()}


def label() -> str:
    """This process as a part of a file's name, without a hyphen."""
    return f"{_HOST_IN_LABELS}+{SPACE}+{os.getpid()}"


def from_label(text: str) -> dict[str, Any]:
    """The process that a label names; for an invalid label, one that counts as running."""
    host, _, numbers = text.partition("+")
    space, _, pid = numbers.partition("+")
    return {"host": HOST if host == _HOST_IN_LABELS else None, "space": space, "pid": pid}


def is_gone(owner: Mapping[str, Any]) -> bool:
    """Whether that is a process of this host that has ended.

    False if that is unknown: for another host, another container, or an invalid text.
    """
    try:
        if owner["host"] != HOST or owner.get("space", SPACE) != SPACE:
            return False
        os.kill(int(owner["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, KeyError, TypeError, ValueError, OverflowError):
        return False
    return False
