"""Files that take longer to write than one process runs: a later run continues a partial file."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from rbtools.errors import RbError
from rbtools.store.files import cannot_write

HINT = "Free some space, or name another folder."


class ResumableFile:
    """A file of a header and rows of equal length, open for appending.

    rows: how many whole rows it has; a partial row, left by an interruption, is cut off.
    """

    def __init__(self, path: Path, descriptor: int, head: bytes, row: int) -> None:
        self._path, self._descriptor, self._head, self._row = path, descriptor, head, row
        size = os.fstat(descriptor).st_size
        self.rows = max(size - len(head), 0) // row
        if os.pread(descriptor, len(head), 0) != head:
            self.rows = 0
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, head, 0)
        os.ftruncate(descriptor, len(head) + self.rows * row)

    def append(self, rows: bytes) -> None:
        """Write whole rows at the end."""
        at = len(self._head) + self.rows * self._row
        view = memoryview(rows)
        try:
            while view:
                done = os.pwrite(self._descriptor, view, at)
                view, at = view[done:], at + done
        except OSError as error:
            raise cannot_write(self._path, error, HINT) from error
        self.rows += len(rows) // self._row


@contextlib.contextmanager
def resumable_write(path: Path, head: bytes, row: int, rows: int) -> Iterator[ResumableFile]:
    """A file that becomes `path` once it has all its rows; until then it is `path`.part.

    Raises RbError if it cannot be written, or another process is writing it.
    """
    aside = path.with_name(path.name + ".part")
    try:
        os.makedirs(path.parent, exist_ok=True)
        descriptor = os.open(aside, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise cannot_write(path, error, HINT) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.stat(aside)  # its writer may just have finished and renamed it
        except OSError:
            raise RbError(f"{aside} is being written by another process. Wait for it, or end it.") from None
        file = ResumableFile(path, descriptor, head, row)
        yield file
        if file.rows == rows:
            os.fsync(descriptor)
            os.replace(aside, path)
    finally:
        os.close(descriptor)
