"""The parts that formats share: sources of published results, units, and the writing of files."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import orjson

from rbtools.errors import RbError, shown
from rbtools.formats import numbers
from rbtools.plain_files import not_utf8, streamed

if TYPE_CHECKING:
    from rbtools.formats.conversion_report import ConversionReport

Record = dict[str, Any]
RESULTS = ("metrics", "evals", "checksums", "examples", "schema")  # fields of a record of results
_LONGEST = 200  # the most bytes of a file's name, less room for suffixes


class Broken(RbError):
    """A file that cannot be read; the message goes on after the file's name."""


class Published(NamedTuple):
    """A published file or folder, or standard input (`path` None)."""

    path: Path | None
    name: str

    def read(self, most: int = -1) -> bytes:
        """Its bytes, at most `most`. Raises Broken for a file that is compressed or in UTF-16."""
        with contextlib.nullcontext(sys.stdin.buffer) if self.path is None else streamed(self.path) as stream:
            content = stream.read(most)
        if other := not_utf8(content, self.path or "FILE"):
            raise Broken(other)
        return content

    @property
    def folder(self) -> bool:
        return self.path is not None and self.path.is_dir()


class Unit(NamedTuple):
    """The content of one record in the format's own terms, and its place in the source."""

    where: str
    content: Any


class Bad(NamedTuple):
    """A unit that cannot become a record. `problem` is a finished sentence."""

    where: str
    problem: str
    text: str


class Document(NamedTuple):
    """A file to write: its path inside a folder ("" where the format is one file) and its content."""

    path: str
    content: bytes


class Format(Protocol):
    """A registered format. `one_file` is False where it is a folder of files."""

    name: ClassVar[str]
    one_file: ClassVar[bool]

    def units(self, source: Published, report: ConversionReport) -> Iterator[Unit | Bad]:
        """The units of a file. Raises Broken or RbError for one that is not of this format."""

    def record(self, unit: Any, report: ConversionReport, where: str) -> Record:
        """The record of a unit. Raises RbError, a finished sentence, for a unit that has none."""

    def unit(self, record: Record) -> Any:
        """The unit of a record, with all that the format can express. Raises RbError likewise."""

    def documents(self, units: Iterable[Unit], report: ConversionReport) -> Iterator[Document]:
        """Files of these units; of two units with the same place in a file the last one is written."""


def text_field(row: Mapping[str, Any], key: str) -> str:
    """A text that a row must have. Raises RbError."""
    text = row.get(key)
    if not isinstance(text, str) or not text.strip():
        listed = ", ".join(map(str, list(row)[:8])) or "nothing"
        kind = f"that is {text!r}" if key in row else f"missing (the row has: {listed})"
        raise RbError(f'The row\'s "{key}" is {kind}. Expected a text.'.replace("is that is", "is"))
    return text


def leaves(value: Record, above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of all that is inside objects and not null."""
    for key, item in value.items():
        if isinstance(item, dict) and item:
            yield from leaves(item, f"{above}{key}.")
        elif item is not None:
            yield f"{above}{key}", item


def inside(record: object, path: str) -> Any:
    """The value at a dotted path; None where there is none."""
    for key in path.split("."):
        record = record.get(key) if isinstance(record, dict) else None
    return record


def own_part(value: object) -> dict[str, Any]:
    """A copy of the format's own field of a record; empty where that is no object."""
    return dict(value) if isinstance(value, dict) else {}


def an_object(value: object, what: str) -> dict[str, Any]:
    """Raises RbError where the value is no JSON object."""
    if not isinstance(value, dict):
        raise RbError(f"{what} is {numbers.kind(value)}. Expected an object.")
    return value


def parsed(text: bytes, *, exact: bool = True) -> Any:
    """The value of a JSON text. Numbers with a point become Decimals, which keep the printed digits, or with
    `exact` False floats, which take a quarter of the memory; whole numbers of 19 digits and more become
    Decimals, since they may have more than 64 bits. NaN and Infinity, which are not JSON but occur, become
    `NotFinite`. Raises Broken.
    """
    try:
        return json.loads(
            text.decode("utf-8-sig"),
            parse_float=Decimal if exact else float,
            parse_int=lambda digits: int(digits) if len(digits) < 19 else Decimal(digits),
            parse_constant=numbers.NotFinite,
        )
    except UnicodeDecodeError:
        raise Broken("is not UTF-8") from None
    except (ValueError, ArithmeticError, RecursionError) as wrong:
        raise Broken(f"is no complete JSON: {' '.join(str(wrong).split())}") from None


def dumps(value: object, *, indent: bool = False) -> bytes:
    """JSON bytes, with all digits of a Decimal."""
    options = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if indent else 0)
    return orjson.dumps(value, default=_digits, option=options)


def _digits(value: object) -> Any:
    if isinstance(value, Decimal):
        return orjson.Fragment(numbers.shown(value))
    raise TypeError(type(value).__name__)


def as_text(value: object) -> str:
    """The text of an unreadable unit, for its error record."""
    value = value._asdict() if hasattr(value, "_asdict") else value
    try:
        return dumps(numbers.plain(value)).decode()
    except TypeError:  # half of a surrogate pair, which JSON can write but UTF-8 cannot
        return ascii(value)


def latest(units: Iterable[Unit], key: Callable[[Any], Any], report: ConversionReport) -> list[Any]:
    """The units' contents; of several with an equal key only the last."""
    contents: dict[Any, Any] = {}
    for unit in units:
        name = key(unit.content)
        if name in contents:
            report.note("two records stand for the same row of the file; the last one is written", unit.where)
            del contents[name]
        contents[name] = unit.content
    return list(contents.values())


def file_name(text: str) -> str:
    """A valid name of a file. Raises RbError for one that leaves the folder, or is too long."""
    if text in ("", ".", "..") or any(mark in text for mark in "/\\\0:") or len(text.encode()) > _LONGEST:
        raise RbError(
            f"'{shown(text)}' cannot be the name of a file. Expected one without slashes and colons, of at"
            f" most {_LONGEST} bytes."
        )
    return text
