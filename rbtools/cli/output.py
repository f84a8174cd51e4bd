"""Standard output, which only carries records.

When a process starts, it redirects its standard output to standard error, and writes records to a private
copy of standard output. Therefore, output of libraries is never mixed with records.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import stat
import sys
from typing import IO

from rbtools.errors import RbError
from rbtools.records.sheet_cells import UNSEEN
from rbtools.store import files

DONE, FAILED = 0, 1  # the exit status of a command that did its work; the others are in cli/exit_status.py


# Characters that steer a terminal, except those of bold type and line ends.
_STEERING = re.compile(rf"(?!\x1b\[[01]m|\r\n)[\r{UNSEEN}]")


class Stop(RbError):
    """Ends the whole run with status 1; records that were finished before are already written."""


class ReaderGone(BaseException):
    """Ends the run with status 141, because the reader of standard output has closed the pipe."""


class Terminated(BaseException):
    """Ends the run with status 143, because the process received SIGTERM."""


class RecordWriter:
    """Writes each line to standard output completely and without buffering."""

    _handle: int | None = None
    _stream: IO[str] | None = None
    _diverted = False

    def __init__(self) -> None:
        if _is_descriptor(sys.__stdout__, 1) and sys.stdout is sys.__stdout__:
            self._handle = files.STANDARD_OUTPUT = os.dup(1)
            os.dup2(2 if _open(2) else os.open(os.devnull, os.O_WRONLY), 1)
        elif sys.stdout is None:
            raise Stop(
                "Standard output is closed, so records cannot be written. Send them to a file or a pipe."
            )
        else:  # a test or an embedding program replaced sys.stdout
            self._stream = sys.stdout
            sys.stdout = sys.stderr

    def divert(self, handle: int) -> None:
        """Write all following records to this file descriptor (`--in-place`)."""
        self.close()
        self._handle, self._stream = handle, None
        self._diverted = True

    def close(self) -> None:
        """Restore standard output, which is only needed if the process continues."""
        if self._stream is not None:
            sys.stdout = self._stream
        elif self._handle is not None and not self._diverted:
            with contextlib.suppress(OSError):
                os.dup2(self._handle, 1)
                os.close(self._handle)
            self._handle, files.STANDARD_OUTPUT = None, 1

    def line(self, text: bytes) -> None:
        """Write one line. Raises ReaderGone if the pipe is closed, and Stop if writing fails (full disk).

        Control characters, which records may contain, are always escaped in JSON; in other text, they are
        escaped on a terminal.
        """
        data = text + b"\n"
        if self.is_terminal() or (text.startswith(b'{"') and not text.isascii()):
            words = data.decode("utf-8", "surrogateescape")
            words = _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", words)
            data = words.encode("utf-8", "surrogateescape")
        if self._stream is not None:
            self._stream.write(data.decode())
            self._stream.flush()
            return
        assert self._handle is not None
        try:
            while data:
                data = data[os.write(self._handle, data) :]
        except BrokenPipeError:
            raise ReaderGone from None
        except OSError as error:
            raise Stop(
                f"Cannot write to standard output: {error.strerror}. Free some space, or write elsewhere,"
                " and run the same command again. Results in the store are not computed again."
            ) from None

    def poll(self) -> None:
        """Raise ReaderGone if the reader of standard output has closed the pipe. The check writes nothing."""
        if self._handle is None or not hasattr(select, "poll"):
            return
        watch = select.poll()
        watch.register(self._handle, 0)
        if any(event & select.POLLERR for _, event in watch.poll(0)):
            raise ReaderGone

    def is_terminal(self) -> bool:
        return self._handle is not None and os.isatty(self._handle)

    def width(self) -> int:
        """The width in columns: at most 120 on a terminal; without a terminal, $COLUMNS or 200."""
        if self.is_terminal() and self._handle is not None:
            return min(os.get_terminal_size(self._handle).columns or 80, 120)
        columns = os.environ.get("COLUMNS", "")
        return int(columns) if columns.isdecimal() and int(columns) > 0 else 200

    def same_file(self, path: str | int) -> bool:
        """True if records are written to this file, which is a path or a file descriptor."""
        if self._handle is None:
            return False
        with contextlib.suppress(OSError):
            ours, theirs = os.fstat(self._handle), os.stat(path)
            return stat.S_ISREG(ours.st_mode) and os.path.samestat(ours, theirs)
        return False


def may_be_bold() -> bool:
    """False if TERM is dumb or NO_COLOR is set, so that a terminal receives no escape codes."""
    return os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


def _is_descriptor(stream: IO[str] | None, number: int) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return stream is not None and stream.fileno() == number and _open(number)
    return False


def _open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError as error:
        return error.errno != errno.EBADF
    return True
