"""Streaming JSON parser: yields the members of the outer objects and lists one after another. Only one member
is in memory at a time. Numbers with a point become Decimals, which keep the printed digits; NaN and Infinity,
which are not JSON but occur, become `NotFinite`.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Hashable, Iterator, Mapping
from decimal import Decimal
from typing import IO, Any, TypeVar

from rbtools.errors import RbError

CHUNK = 1 << 20
_BLANK = re.compile(r"[ \t\n\r]*")
_SHOWN = 40
_AFTER = tuple(" \t\n\r,:]}")  # what may follow a number
_PART = re.compile(r"(\.\d*)?([eE][-+]?\d*)?")  # how a truncated number may go on
_ESCAPE = len('u1234"')
_WORDS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")

Path = tuple[str | int, ...]


class NotFinite(str):
    """The word NaN, Infinity or -Infinity where a number should be."""


class Broken(RbError):
    """The text ends or is invalid here; the members before are valid."""


def loads(text: bytes) -> Any:
    """Parse one JSON text, with numbers as in this module. Raises Broken."""
    ((_, value),) = members(io.BytesIO(text), 0)
    return value


def members(stream: IO[bytes], depth: int, *, exact: bool = True) -> Iterator[tuple[Path, Any]]:
    """(path, value) of each member `depth` levels deep in objects and lists, in the order of the text. Values
    less deep have a shorter path. With `exact` False numbers are floats: a matrix of them takes a tenth of
    the memory. Raises Broken after the last valid member.
    """
    text = _Text(stream, exact)
    yield from _walk(text, depth, ())
    if text.next():
        raise text.wrong("there is text after the end of the JSON value")


def _walk(text: _Text, depth: int, path: Path) -> Iterator[tuple[Path, Any]]:
    opening = text.next()
    if not (opening or path):
        raise Broken("is empty: it holds no JSON at all")
    if depth == 0 or opening not in ("{", "["):
        yield path, text.value(path)
        return
    text.skip()
    closing, count = ("}" if opening == "{" else "]"), 0
    while text.next() != closing:
        if count:
            text.take(",", path)
        key: str | int = count
        if opening == "{":
            key = text.value(path)
            if not isinstance(key, str):
                raise text.wrong(f"{_shown(key)} stands where a key was expected")
            text.take(":", path)
        yield from _walk(text, depth - 1, (*path, key))
        count += 1
    text.skip()


class _Text:
    """The text of a stream, of which only the part being parsed is in memory."""

    def __init__(self, stream: IO[bytes], exact: bool) -> None:
        # read1 returns what a pipe has at the moment: the first members need not wait for a whole chunk.
        self.read = getattr(stream, "read1", stream.read)
        self.decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        floats = Decimal if exact else float
        self.parse = json.JSONDecoder(parse_float=floats, parse_constant=NotFinite).raw_decode
        self.held, self.at, self.line, self.ended = "", 0, 1, False

    def more(self) -> None:
        """Read more text, and drop the parsed part."""
        data = self.read(max(CHUNK, len(self.held) - self.at))
        self.line += self.held.count("\n", 0, self.at)
        try:
            self.held, self.at = self.held[self.at :] + self.decode(data, not data), 0
        except UnicodeDecodeError:
            raise self.wrong("it is not UTF-8") from None
        self.ended = not data

    def next(self) -> str:
        """The next character that is not blank, without taking it; empty at the end."""
        while True:
            blank = _BLANK.match(self.held, self.at)
            assert blank is not None  # the pattern also matches an empty text
            self.at = blank.end()
            if self.at < len(self.held):
                return self.held[self.at]
            if self.ended:
                return ""
            self.more()

    def skip(self) -> None:
        self.at += 1

    def take(self, wanted: str, path: Path) -> None:
        if (character := self.next()) != wanted:
            wrong = self.wrong(f"'{character}' stands where '{wanted}' was expected")
            raise wrong if character else self.cut(path)
        self.skip()

    def value(self, path: Path) -> Any:
        """The value that begins here. A number at the end of the text in memory may continue: read more."""
        if not self.next():
            raise self.cut(path)
        while True:
            try:
                value, end = self.parse(self.held, self.at)
            except (ValueError, RecursionError) as wrong:
                if self.ended:
                    raise (self.cut(path) if self._ends_at(wrong) else self.wrong(_reason(wrong))) from None
            else:
                after = self.held[end : end + 1]
                if not isinstance(value, (int, float, Decimal)) or after in _AFTER:
                    self.at = end
                    return value
                if self.ended and (path or after):  # a number may continue: a truncated one is invalid
                    raise self.cut(path) if _PART.fullmatch(self.held, end) else self.wrong(_no_number(after))
                if self.ended:
                    self.at = end
                    return value
            self.more()

    def _ends_at(self, wrong: Exception) -> bool:
        """Whether more text could complete the value."""
        unread = self.held[wrong.pos if isinstance(wrong, json.JSONDecodeError) else 0 :].strip()
        if "Unterminated" in str(wrong) or ("escape" in str(wrong) and len(unread) < _ESCAPE):
            return True
        return any(word.startswith(unread) for word in _WORDS) or _PART.fullmatch(unread) is not None

    def cut(self, path: Path) -> Broken:
        after = f" after {'.'.join(map(str, path))}" if path else ""
        return Broken(f"is cut off: it ends{after} in the middle{self._place()}")

    def wrong(self, why: str) -> Broken:
        return Broken(f"is not JSON: {why}{self._place()}")

    def _place(self) -> str:
        """The line of the error, unless it is the first."""
        line = self.line + self.held.count("\n", 0, self.at)
        return f", in line {line}" if line > 1 else ""


def _reason(wrong: Exception) -> str:
    if isinstance(wrong, json.JSONDecodeError):
        return wrong.msg[:1].lower() + wrong.msg[1:]
    return "it is nested too deeply" if isinstance(wrong, RecursionError) else str(wrong)


def _no_number(after: str) -> str:
    return f"'{after}' stands in a number"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


K = TypeVar("K", bound=Hashable)


def side_by_side(readers: Mapping[K, Iterator[tuple[str, Any]]]) -> Iterator[tuple[str, dict[K, Any], bool]]:
    """(id, reader -> value, whether all readers had it): complete ids at once, the others at the end.

    One item of each reader is read in turn: if all files have the same order, only one id is in memory.
    """
    waiting: dict[str, dict[K, Any]] = {}
    going = dict(readers)
    while going:
        for name, reader in list(going.items()):
            item = next(reader, None)
            if item is None:
                del going[name]
                continue
            index, value = item
            values = waiting.setdefault(index, {})
            values[name] = value
            if len(values) == len(readers):
                yield index, waiting.pop(index), True
    for index, values in waiting.items():
        yield index, values, False
