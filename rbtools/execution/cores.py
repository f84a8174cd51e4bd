"""The machine's cores, shared by the stages of a pipe.

A stage holds one token per thread while it computes; tokens are locked files that the stages of one store
share on this machine. The system frees a lock whenever its process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rbtools.execution.turns import pause

_PAUSE_SECONDS = 0.02


def count() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


@contextlib.contextmanager
def held(store: Path | None, threads: int, check_cancelled: Callable[[], None]) -> Iterator[None]:
    """Hold a core for each thread, all cores where there are fewer; wait until they are free.

    Waiting processes queue at a gate lock, so that one that needs many cores is not starved by those that
    need one. Without a store, stages share nothing.
    """
    folder = None if store is None else _folder(store)
    if folder is None:
        yield
        return
    with contextlib.ExitStack() as tokens:
        with _locked(folder / "gate", check_cancelled):
            wanted = min(threads, count())
            while wanted:
                for core in range(count()):
                    if wanted and _taken(tokens, folder / f"core-{core}"):
                        wanted -= 1
                if wanted:
                    check_cancelled()
                    pause(_PAUSE_SECONDS)
        yield


def _folder(store: Path) -> Path | None:
    """The folder of this store's tokens on this machine; None if it cannot be private to this user."""
    name = hashlib.sha256(os.path.realpath(store).encode()).hexdigest()[:16]
    base = Path(tempfile.gettempdir(), f"rbtools-{os.getuid()}")
    try:
        for folder in (base, base / name):
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                return None
    except OSError:
        return None
    return base / name


def _taken(locks: contextlib.ExitStack, path: Path) -> bool:
    """Try to add the lock of a file to `locks`; whether that succeeded.

    On failure nothing is added: the wait for a core may take hours.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            return False
        raise
    locks.callback(os.close, handle)
    return True


@contextlib.contextmanager
def _locked(path: Path, check_cancelled: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a file, however long that takes to get."""
    with contextlib.ExitStack() as lock:
        while not _taken(lock, path):
            check_cancelled()
            pause(_PAUSE_SECONDS)
        yield
