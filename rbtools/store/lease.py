"""Leases: files that a process locks (flock) while it works.

When the process ends, the system releases the lock at once. NFS shares locks between all machines. Other
network file systems may restrict locks to one machine, or not support locks. Without locks, two processes may
compute the same result, which only wastes time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from rbtools.plain_files import NoPlainFile, is_plain

_TRIES = 100  # attempts to lock a file before another process removes it


class Lease:
    """A lease that this process holds until `release`. `locked` is false if the file system has no locks."""

    def __init__(self, path: Path, handle: int, *, locked: bool) -> None:
        self.path, self.handle, self.locked = path, handle, locked

    def in_place(self) -> bool:
        """Whether the path still leads to this file. A former holder or a user may have removed the file."""
        try:
            return os.path.samestat(os.fstat(self.handle), os.stat(self.path))
        except OSError:
            return False

    def release(self) -> None:
        """Remove the file and release the lock. The file of another lease at this path is not removed."""
        if self.in_place():
            with contextlib.suppress(OSError):
                self.path.unlink()
        os.close(self.handle)


def claim(path: Path) -> Lease | None:
    """Acquire the lease at `path`, or return None if another process holds it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return _taken(path, make=True)


def _taken(path: Path, *, make: bool) -> Lease | None:
    """The lease at `path`, or None if another process holds it. Raises OSError if the file cannot be opened,
    and, without `make`, if the file does not exist."""
    for _ in range(_TRIES):
        if os.path.lexists(path) and not is_plain(path):
            raise NoPlainFile(path)
        handle, locked = _opened(path, os.O_CREAT if make else 0), True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:
            locked = False
        lease = Lease(path, handle, locked=locked)
        if lease.in_place():
            return lease
        os.close(handle)  # its holder released it between our two calls
    raise OSError(errno.ESTALE, "The path leads to a different file each time it is opened", str(path))


def _opened(path: Path, create: int) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | create, 0o666)
    except PermissionError:  # another user's file can be locked without write access
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)


def wait(
    path: Path,
    check_cancelled: Callable[[], None],
    done: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> Lease | None:
    """Wait until the lease is acquired. Returns None as soon as `done()` is true."""
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
    """Whether a process holds this lease. Also returns True if this is unknown."""
    try:
        lease = _taken(path, make=False)
    except (FileNotFoundError, NoPlainFile):
        return False
    except OSError:
        return True
    if lease is None:
        return True
    os.close(lease.handle)
    return not lease.locked


def take_away(path: Path) -> bool:
    """Remove a lease that no process holds. Returns False if a process may hold the lease. Raises OSError."""
    try:
        lease = _taken(path, make=False)
    except FileNotFoundError:
        return True
    if lease is None:
        return False
    if not lease.locked:
        os.close(lease.handle)
        return False
    lease.release()
    return True
