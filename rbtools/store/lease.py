"""Leases: claims on work in progress, by locks of files (flock), which work on a network file system too.

A lease is a file that its holder has locked. However the holder ends, the system gives the lock back at once.
Results do not depend on leases: where a file system has no locks, or keeps them to one machine, two processes
may compute the same result, and one has wasted its time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from rbtools.plain_files import NoPlainFile, is_plain


class Lease:
    """A claim that this process holds until `release`: a file and the handle that has it locked."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path, self.handle = path, handle

    def in_place(self) -> bool:
        """Whether it is the file of that name, which its former holder or a user may have removed."""
        try:
            return os.path.samestat(os.fstat(self.handle), os.stat(self.path))
        except OSError:
            return False

    def release(self) -> None:
        """Remove the file and give the lock back. The file of another lease is left alone."""
        if self.in_place():
            with contextlib.suppress(OSError):
                self.path.unlink()
        os.close(self.handle)


def claim(path: Path) -> Lease | None:
    """Take the lease at `path`, or return None if another process holds it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return _taken(path, os.O_CREAT)


def _taken(path: Path, create: int) -> Lease | None:
    """The lease at `path`; None if another process holds it. Raises OSError, also where there is no file and
    none is to be made (O_CREAT)."""
    while True:
        if os.path.lexists(path) and not is_plain(path):
            raise NoPlainFile(path)
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | create, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:
            pass  # a file system without locks
        lease = Lease(path, handle)
        if lease.in_place():
            return lease
        os.close(handle)  # its holder released it between our two calls


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
    """Whether a process holds this lease; True too where that cannot be seen."""
    try:
        lease = _taken(path, 0)
    except (FileNotFoundError, NoPlainFile):
        return False
    except OSError:
        return True
    if lease is not None:
        os.close(lease.handle)
    return lease is None


def take_away(path: Path) -> bool:
    """Remove a lease that nobody holds; False where somebody does. Raises OSError."""
    try:
        lease = _taken(path, 0)
    except FileNotFoundError:
        return True
    if lease is not None:
        lease.release()
    return lease is not None
