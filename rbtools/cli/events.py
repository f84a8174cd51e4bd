"""Events for programs: `--log FILE` has one JSON object a line.

Every event has `time` (UTC), `tool`, `pid` and `event`: start, record, epoch, warning, error or end. The
stages of a pipe may write one file: each line is appended at once.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import datetime, timezone

from rbtools import __version__
from rbtools.errors import UsageError
from rbtools.records import dumps


class Log:
    """A file that events are appended to. Raises UsageError where it cannot be opened."""

    def __init__(self, path: str, tool: str) -> None:
        self.tool, self.path = tool, path
        self.begun = time.monotonic()
        try:
            self._handle: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise UsageError(f"Cannot write the log {path}: {error.strerror}. Name another file.") from None
        self.tell("start", arguments=sys.argv[1:], version=__version__)

    def tell(self, event: str, **fields: object) -> None:
        """Append an event. If that fails, the log ends here and the run continues."""
        if self._handle is None:
            return
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = dumps({"time": now, "tool": self.tool, "pid": os.getpid(), "event": event, **fields})
        try:
            os.write(self._handle, line + b"\n")
        except OSError:
            self.close()

    def end(self, status: int) -> None:
        """The last event."""
        self.tell("end", status=status, seconds=round(time.monotonic() - self.begun, 3))
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


_log: Log | None = None


def opened(path: str | None, tool: str) -> Log | None:
    """The log of this process; None where no file is named."""
    global _log
    _log = None if path is None else Log(path, tool)
    return _log


def ended(status: int) -> None:
    """Write the last event of the log of this process, where there is one."""
    global _log
    if _log is not None:
        _log.end(status)
    _log = None
