"""Prints messages for people on standard error.

All stages of a pipe write their messages to one terminal. A status line is erased before any other message is
printed. Only one process of a pipe shows a status line at a time, so that processes do not overwrite each
other's lines.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rbtools.errors import one_line
from rbtools.registry import param, rare_param

if TYPE_CHECKING:
    from rbtools.cli.events import Log

_ERASE = "\r\x1b[2K"
_SECONDS_BETWEEN_PAINTS = 0.1
_SECONDS_BETWEEN_LINES = 60.0  # of progress, if there is no terminal
_RECORDS = " Expected a file of records; use rb-convert to read published tables."
_NAMED_LINES = 8  # the most invalid lines that are reported one by one


_rare_message = partial(rare_param, group="Messages and help")


@dataclass(frozen=True)
class Messages:
    """The options for messages, from which every tool creates its `Terminal`."""

    quiet: bool = param(
        False, "Print only warnings and errors on stderr.", flags=("--quiet", "-q"), group="Messages and help"
    )
    verbose: bool = _rare_message(
        False, "Print more on stderr, such as the time of each stage in seconds.", flags=("--verbose", "-v")
    )
    log: str | None = _rare_message(None, "Append events to FILE, one JSON object per line.", metavar="FILE")
    config: str | None = _rare_message(
        None,
        "YAML file with defaults for options, or none.  [default: rbtools.yaml in the working directory,"
        " which overrides rbtools/config.yaml in XDG_CONFIG_HOME]",
        metavar="FILE",
    )


class Terminal:
    """Messages of one tool: lines `tool: text`, a status line on a terminal, and events for programs."""

    def __init__(
        self, tool: str, *, quiet: bool = False, verbose: bool = False, log: Log | None = None
    ) -> None:
        self.tool, self.quiet, self.verbose, self.log = tool, quiet, verbose, log
        self.listeners: list[Callable[[dict[str, Any], dict[str, Any] | None], None]] = []
        self.terminal = _is_terminal()
        self._painted = 0.0 if self.terminal else time.monotonic()
        self._lock: int | None = None
        self._said: set[str] = set()
        self._wrong_lines = 0

    def say(self, text: str) -> None:
        if not self.quiet:
            self._line(text)

    def once(self, text: str) -> None:
        """Print a line, but only once. A line that begins with "warning:" is printed even with `-q`."""
        if text not in self._said:
            self._said.add(text)
            (self._line if text.startswith("warning: ") else self.say)(text)

    @property
    def wants_details(self) -> bool:
        return bool(self.verbose or self.log is not None or self.listeners)

    def detail(self, text: str) -> None:
        if self.verbose:
            self._line(text)

    def warn(self, text: str) -> None:
        self.tell({"event": "warning", "text": text})
        self._line(f"warning: {text}")

    def error(self, text: str) -> None:
        self.tell({"event": "error", "text": text})
        self._line(f"error: {text}")

    def wrong_line(self, text: str, more: str = "more lines are not records", hint: str = _RECORDS) -> None:
        """Report a line that is not a record, or that a tool cannot use. Without `-v`, only the first lines
        are printed, because a file of another kind may contain thousands. `more` describes the other lines.
        """
        self._wrong_lines += 1
        if self.verbose or self._wrong_lines <= _NAMED_LINES:
            self.error(text)
            return
        self.tell({"event": "error", "text": text})
        if self._wrong_lines == _NAMED_LINES + 1:
            self._line(f"error: {more}; they are not listed here (-v lists all).{hint}")

    def tell(self, event: dict[str, Any], record: dict[str, Any] | None = None) -> None:
        """Pass an event to the log and the listeners; `record` is the record that the event is about."""
        if self.log is not None:
            self.log.tell(**event)
        for listener in self.listeners:
            listener(event, record)

    def status(self, text: str) -> None:
        """Show a status line on the terminal, if no other stage of the pipe shows one. Without a terminal,
        print the text at most once a minute, for the first time after one minute. With `-q`, print nothing.
        """
        now = time.monotonic()
        wait = _SECONDS_BETWEEN_PAINTS if self.terminal else _SECONDS_BETWEEN_LINES
        if self.quiet or now - self._painted < wait or (self.terminal and not self._mine()):
            return
        self._painted = now
        if not self.terminal:
            self._line(text)
            return
        width = shutil.get_terminal_size().columns
        _write((_ERASE + f"{self.tool}: {one_line(text)}")[: width + len(_ERASE) - 1])

    def clear(self) -> None:
        """Erase the status line, so that other stages of the pipe can show a status line."""
        if self._lock is not None:
            _write(_ERASE)
            os.close(self._lock)
            self._lock = None

    def _line(self, text: str) -> None:
        start = _ERASE if self.terminal else ""
        _write(f"{start}{self.tool}: {one_line(text)}\n")  # names in it may come from untrusted files

    def _mine(self) -> bool:
        """True if this process may show the status line, because it holds a lock on the terminal."""
        if self._lock is not None:
            return True
        try:
            lock = os.open(os.ttyname(2), os.O_WRONLY | os.O_NOCTTY)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return False
        self._lock = lock
        return True


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb"
    except (AttributeError, ValueError):
        return False
