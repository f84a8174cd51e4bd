"""The current call of a tool: the caller's streams, and the options that were given."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rbtools.cli.streams import Streams


@dataclass(frozen=True)
class ToolCall:
    """`given` maps the names of option values to the options as the user typed or passed them; `in_file`
    names the values that a configuration file sets. `streams` replaces the input and output of the shell."""

    tool: str = "rbtools"
    given: Mapping[str, str] = field(default_factory=dict)
    in_file: Collection[str] = ()
    streams: Streams | None = None


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
