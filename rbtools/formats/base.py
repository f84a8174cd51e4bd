"""The common parts of all formats: sources of published results, units, and the writing of files."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import orjson

from rbtools.errors import RbError
from rbtools.formats import numbers
from rbtools.plain_files import not_utf8, streamed

if TYPE_CHECKING:
    from rbtools.formats.conversion_report import ConversionReport

Record = dict[str, Any]
RESULTS = ("metrics", "evals", "checksums", "examples", "schema")  # fields of a record that contain results


class Broken(RbError):
    """Raised for an unreadable file; the message continues a sentence that begins with the file's name."""


class Published(NamedTuple):
    """A published file or folder, or standard input (if `path` is None)."""

    path: Path | None
    name: str

    def read(self, most: int = -1) -> bytes:
        """The bytes of the source, at most `most`. Raises Broken if the file is compressed or in UTF-16."""
        with contextlib.nullcontext(sys.stdin.buffer) if self.path is None else streamed(self.path) as stream:
            content = stream.read(most)
        if other := not_utf8(content, self.path or "FILE"):
            raise Broken(other)
        return content

    @property
    def folder(self) -> bool:
        return self.path is not None and self.path.is_dir()


class Unit(NamedTuple):
    """The content of one record as the format represents it, and its position in the source."""

    where: str
    content: Any


class Bad(NamedTuple):
    """A unit that cannot be converted to a record. `problem` is a complete sentence."""

    where: str
    problem: str
    text: str


class Document(NamedTuple):
    """A file to write, with its path inside a folder ("" if the format is a single file) and its content."""

    path: str
    content: bytes


class Format(Protocol):
    """A registered format. `one_file` is False if the format is a folder of files."""

    name: ClassVar[str]
    one_file: ClassVar[bool]

    def units(self, source: Published, report: ConversionReport) -> Iterator[Unit | Bad]:
        """Yields the units of a file. Raises Broken or RbError if the file has a different format."""

    def record(self, unit: Any, report: ConversionReport, where: str) -> Record:
        """Convert a unit to a record. Raises RbError, with a complete sentence, if this is impossible."""

    def unit(self, record: Record) -> Any:
        """Convert a record to a unit, as far as the format can express it. Raises RbError like `record`."""

    def documents(self, units: Iterable[Unit], report: ConversionReport) -> Iterator[Document]:
        """Yields the files of these units. If units have the same place in a file, the last is written."""


def leaves(value: Record, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted path, value) for every value that is not null, including those in nested objects."""
    for key, item in value.items():
        if isinstance(item, dict) and item:
            yield from leaves(item, f"{above}{key}.")
        elif item is not None:
            yield f"{above}{key}", item


def own_part(value: object) -> dict[str, Any]:
    """A copy of the format's own field in a record; empty if the field is not an object."""
    return dict(value) if isinstance(value, dict) else {}


def as_text(value: object) -> str:
    """The text of an unreadable unit, for the error record of this unit."""
    value = value._asdict() if hasattr(value, "_asdict") else value
    try:
        return orjson.dumps(numbers.plain(value), option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # half of a surrogate pair, which JSON can express but UTF-8 cannot
        return ascii(value)
