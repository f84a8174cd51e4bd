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
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

_PAUSE_SECONDS = 0.02


def count() -> int:
    """How many cores this process may use: those of its affinity, limited by the processor time of its
    cgroups; at least one."""
    affine = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if affine else os.cpu_count() or 1
    limit = cgroup_cores()
    return max(cores if limit is None else min(cores, int(limit)), 1)


@cache
def cgroup_cores(root: str = "/") -> float | None:
    """The processor time that the control groups of this process allow it, in cores; None without a limit.

    The least quota of its groups and of those above them, in version 2 (`cpu.max`) and 1
    (`cpu.cfs_quota_us`). In a container whose own group is mounted at the top, the path of the group does not
    exist, and the top is read. `root` is the folder that contains `proc` and `sys`. See the kernel's
    admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst.
    """
    quotas = []
    for line in _text(Path(root, "proc/self/cgroup")).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            mounts = ["", "unified"]
        elif "cpu" in controllers.split(","):
            mounts = [controllers, "cpu"]
        else:
            continue
        for mount in mounts:
            top = Path(root, "sys/fs/cgroup", mount)
            own = top.joinpath(*(part for part in group.split("/") if part not in ("", "..")))
            for folder in (own, *own.parents):
                if folder.is_relative_to(top):
                    quotas.append(_quota(folder))
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(folder: Path) -> float | None:
    """The quota of one control group, in cores; None if it has none."""
    words = _text(folder / "cpu.max").split() or [
        *_text(folder / "cpu.cfs_quota_us").split(),
        *_text(folder / "cpu.cfs_period_us").split(),
    ]
    if len(words) != 2 or not all(word.isascii() and word.isdigit() and int(word) for word in words):
        return None  # "max" in version 2, -1 in version 1
    return int(words[0]) / int(words[1])


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def asked() -> int | None:
    """The threads that OMP_NUM_THREADS and MKL_NUM_THREADS ask for, the smaller of both; None where neither
    is a number. Of a list, which has a number for each level of nesting, the first counts."""
    said = (os.environ.get(name, "").split(",")[0].strip() for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    numbers = (int(word) for word in said if word.isascii() and word.isdigit() and len(word) < 10)
    return min((number for number in numbers if number), default=None)


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
        with contextlib.ExitStack() as gate:
            while not _taken(gate, folder / "gate"):
                check_cancelled()
                time.sleep(_PAUSE_SECONDS)
            wanted = min(threads, count())
            while wanted:
                for core in range(count()):
                    if wanted and _taken(tokens, folder / f"core-{core}"):
                        wanted -= 1
                if wanted:
                    check_cancelled()
                    time.sleep(_PAUSE_SECONDS)
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

    On failure the file is closed, because a process may retry for hours.
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
