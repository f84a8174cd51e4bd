"""The current call of a tool: the caller's streams, the options that were given, and the command line."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rbtools.plain_files import read_plain

if TYPE_CHECKING:
    from rbtools.cli.streams import Streams


_LARGEST = 2**26  # bytes of a file that is hashed for a label


@dataclass(frozen=True)
class ToolCall:
    """`given` maps the names of option values to the options as the user typed or passed them; `in_file`
    names the values that a configuration file sets. `streams` replaces the input and output of the shell.
    `words` is the command line, which a call from Python does not have."""

    tool: str = "rbtools"
    given: Mapping[str, str] = field(default_factory=dict)
    in_file: Collection[str] = ()
    streams: Streams | None = None
    words: Sequence[str] | None = None

    @property
    def label(self) -> str | None:
        """The command line as written to entries, with file names and short hashes instead of paths."""
        return None if self.words is None else shlex.join(map(_without_paths, self.words))


_SHELL = ToolCall()
_CURRENT: ContextVar[ToolCall] = ContextVar("call", default=_SHELL)


def current() -> ToolCall:
    return _CURRENT.get()


@contextlib.contextmanager
def under_way(call: ToolCall) -> Iterator[None]:
    """Make `call` the current call inside the block."""
    token = _CURRENT.set(call)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def _without_paths(word: str) -> str:
    """Change `--checkpoint=nets/a.pt` to `--checkpoint=a.pt@1a2b3c4d`, but keep 8/255 and names."""
    return "".join(_named(part) for part in re.split(r"([=:,])", word))


def _named(part: str) -> str:
    path = Path(os.path.expanduser(part))
    if path.is_file() and os.access(path, os.R_OK):
        small = path.stat().st_size <= _LARGEST  # the hash of a large file of weights is in the record
        return f"{path.name}@{hashlib.sha256(read_plain(path)).hexdigest()[:8]}" if small else path.name
    there = os.sep in part and path.exists()
    return path.name if there or part.startswith((os.sep, "~", f".{os.sep}", f"..{os.sep}")) else part
