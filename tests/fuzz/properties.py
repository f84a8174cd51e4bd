"""What must hold while rbtools reads an input of somebody else: a value or a sentence, and nothing else."""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from rbtools.errors import RbError

LONGEST_MESSAGE = 1500  # characters; what a person reads
SECONDS = 10  # of the processor, for one input
MEMORY = 2**31  # bytes of address space that one input may take beyond what the process has
REFUSED = (
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"),
    "open",
)
MAY_CHANGE = ("__pycache__", "rb-store")  # folders of Python's imports and of the test's results


def told(message: str) -> None:
    """Fail for a message that does not help: a finished sentence on one line is expected."""
    assert message[-1:] in (".", ")", "?") and "\n" not in message, f"no sentence: {message[:300]!r}"
    assert len(message) <= LONGEST_MESSAGE, f"a long message: {message[:300]!r}"
    accidents = ("Traceback", "bug in rbtools", "allocate")
    assert not any(word in message for word in accidents), f"an accident: {message[:300]!r}"


def new_file(name: str, data: bytes) -> Path:
    """A file in a folder of its own, below the test's."""
    path = Path(tempfile.mkdtemp(dir="."), name)
    path.write_bytes(data)
    return path


class _TooSlow(BaseException):
    """An input has used up its time; no `except Exception` may swallow this."""


@contextmanager
def bounded() -> Iterator[None]:
    """The block fails where it takes more than SECONDS or MEMORY."""

    def late(number: int, frame: Any) -> None:
        raise _TooSlow

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = resource.getrlimit(resource.RLIMIT_AS)
    former = signal.signal(signal.SIGPROF, late)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, limit[1]))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    except _TooSlow:
        raise AssertionError(f"more than {SECONDS} seconds of the processor") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)
        resource.setrlimit(resource.RLIMIT_AS, limit)


class Watch:
    """An audit hook that refuses programs, connections and changes of files, while it is on."""

    def __init__(self) -> None:
        self.on, self.met = False, ""
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: Any) -> None:
        if not self.on or event not in REFUSED:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int) or not flags & (os.O_WRONLY | os.O_RDWR):
                return  # a file that is open, or is read
        if not any(folder in str(arguments[0]) for folder in MAY_CHANGE):
            self.met = f"{event} {arguments!r:.200}"
            raise PermissionError(self.met)


watch = cache(Watch)  # a hook cannot be removed: one for the process


@contextmanager
def held() -> Iterator[None]:
    """The block reads a file: it ends with a value or an RbError that is a sentence, in bounded time and
    memory, starts nothing and writes only to the store."""
    watch().on, watch().met = True, ""
    try:
        with bounded():
            yield
    except RbError as wrong:
        told(str(wrong))
    finally:
        watch().on = False
    assert not watch().met, f"reading the file did {watch().met}"
