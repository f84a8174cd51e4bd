"""Events for programs: `--log FILE` writes JSON Lines, and `--tensorboard DIR` writes curves.

Every event has `time` (UTC), `tool`, `pid` and `event`: start, record, epoch, warning, error or end. The
stages of a pipe may write to the same file, because each line is appended in one operation.
"""

from __future__ import annotations

import os
import re
import sys
import time
from datetime import datetime, timezone
from typing import Any

from rbtools import __version__
from rbtools.errors import UsageError
from rbtools.records import dumps


class Log:
    """A file to which events are appended. Raises UsageError if the file cannot be opened."""

    def __init__(self, path: str, tool: str) -> None:
        self.tool, self.path = tool, path
        self.begun = time.monotonic()
        try:
            self._handle: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise UsageError(f"Cannot write the log {path}: {error.strerror}. Name another file.") from None
        self.tell("start", arguments=sys.argv[1:], version=__version__)

    def tell(self, event: str, **fields: object) -> None:
        """Append an event. If writing fails, the log is closed, and the run continues."""
        if self._handle is None:
            return
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = dumps({"time": now, "tool": self.tool, "pid": os.getpid(), "event": event, **fields})
        try:
            os.write(self._handle, line + b"\n")
        except OSError:
            self.close()

    def end(self, status: int) -> None:
        self.tell("end", status=status, seconds=round(time.monotonic() - self.begun, 3))
        self.close()

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


_log: Log | None = None


def opened(path: str | None, tool: str) -> Log | None:
    global _log
    _log = None if path is None else Log(path, tool)
    return _log


def ended(status: int) -> None:
    global _log
    if _log is not None:
        _log.end(status)
    _log = None


class Board:
    """A folder of TensorBoard event files, with a subfolder for each training run.

    Each epoch is written when it ends. If a training run was found in the store, its curves are written from
    the stored history. Raises UsageError if tensorboard is not installed, or if the folder cannot be created.
    """

    def __init__(self, folder: str) -> None:
        try:
            from tensorboard.summary import Writer
        except ImportError:
            raise UsageError(
                "--tensorboard DIR needs the package tensorboard, which is not installed:"
                " pip install 'rbtools[tensorboard]'."
            ) from None
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"Cannot write curves to {folder}: {error.strerror}. Name another folder with --tensorboard."
            ) from None
        self.folder, self._make = folder, Writer
        self._writers: dict[str, Any] = {}
        self._written: dict[str, int] = {}  # number of written epochs of each training run

    def hear(self, event: dict[str, Any], record: dict[str, Any] | None) -> None:
        if event["event"] == "epoch":
            values = {key: value for key, value in event.items() if key not in _NAMES}
            self._write(_name(event), event["epoch"], values)
        elif event["event"] == "record" and record is not None and "train" in record:
            train = record["train"]
            training = {"arch": record["arch"].get("name"), **train}
            for epoch in range(self._written.get(_name(training), 0), train["epochs"]):
                values = {key: rest[epoch] for key, rest in train["history"].items() if epoch < len(rest)}
                self._write(_name(training), epoch + 1, values)

    def _write(self, name: str, epoch: int, values: dict[str, float]) -> None:
        if name not in self._writers:
            self._writers[name] = self._make(os.path.join(self.folder, name))
        for key, value in values.items():
            self._writers[name].add_scalar(key, value, epoch)
        self._writers[name].flush()
        self._written[name] = epoch

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


_NAMES = ("event", "arch", "method", "seed", "epoch", "epochs")


def _name(what: dict[str, Any]) -> str:
    name = f"{what.get('arch') or 'network'}-{what['method']}-seed{what['seed']}"
    return re.sub(r"[^\w.-]+", "-", name)
