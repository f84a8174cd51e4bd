"""The call of a tool that is under way: who made it, and what was given."""

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
    """A call of a tool.

    given: the options on the command line or among the keywords, by the names of their values, as they are
    typed; in_file: those that only a configuration sets. streams: where records come from and go to, if not
    the shell's.
    """

    tool: str = "rbtools"
    given: Mapping[str, str] = field(default_factory=dict)
    in_file: Collection[str] = ()
    streams: Streams | None = None


_SHELL = ToolCall()
_CURRENT: ContextVar[ToolCall] = ContextVar("call", default=_SHELL)


def current() -> ToolCall:
    """The call that is under way in this thread."""
    return _CURRENT.get()


@contextlib.contextmanager
def under_way(call: ToolCall) -> Iterator[None]:
    """Make this the current call inside the block."""
    token = _CURRENT.set(call)
    try:
        yield
    finally:
        _CURRENT.reset(token)
