"""Reads and writes JSON Lines strictly: a line that is not a record is reported, and never guessed.

orjson silently accepts duplicate keys and integers beyond 64 bits. If orjson would not write a line back byte
for byte, the standard library parses the line again; this never happens to lines that rbtools has written.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from rbtools.errors import RbError, shown
from rbtools.plain_files import not_utf8, streamed

SCHEMA = 1
STDIN = "standard input"
_LARGEST = 1e150  # largest measured number: squares and sums of larger ones may overflow
_INTEGERS = 2**63
_BOM = b"\xef\xbb\xbf"
_SHOWN = 60  # bytes of a line shown in a message
_BEGINNING = 1 << 13  # bytes of a stream that decide whether it is text
_NO_TEXT = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")  # bytes that no text file has
_OBJECT = re.compile(rb"\{\s*[\"}]")  # the beginning of a record, even if the rest is damaged


class BadLine(RbError):
    """The exception for a line that is not a record; `Line` contains the number of the line."""


class Line(NamedTuple):
    """One line of input: its place, its text, and its record or its problem.

    If `continues` is true, the line belongs to a JSON document over several lines, whose first line reports
    the error. `results` contains the numbers of the tool's results that belong to this shard; None means all.
    """

    source: str
    number: int
    text: bytes
    record: dict[str, Any] | None
    problem: str | None
    continues: bool = False
    results: tuple[int, ...] | None = None


def parse(text: bytes, *, whole: bool = True) -> dict[str, Any]:
    """Return the record on this line.

    If `whole` is false, the text does not end with a newline, and the line may be truncated. Raises BadLine
    if the line is not one JSON object with an `arch`, and for NaN, Infinity, duplicate keys, too many
    levels, or a newer schema than this version supports.
    """
    try:
        record: object = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadLine(_why_not_json(text, error, whole)) from None
    if not isinstance(record, dict):
        raise BadLine(f"is {_kind(record)}, not a JSON object. Expected one JSON object per line.")
    if not _says_all(record, text):
        record = _parse_slowly(text)
    schema = record.get("schema", SCHEMA)
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise BadLine(
            f"has schema {shown(repr(schema))}. Expected a whole number, such as {SCHEMA} for this version."
        )
    if schema > SCHEMA:
        raise BadLine(
            f"has schema {schema}, which is newer than schema {SCHEMA} of this version. Upgrade rbtools."
        )
    if "error" not in record:
        check_shape(record)
    return record


def parse_again(text: bytes) -> dict[str, Any]:
    """Return the record on a line that `parse` has already accepted, without checks and in half the time."""
    record: dict[str, Any] = orjson.loads(text)
    return record if _says_all(record, text) else _parse_slowly(text)


def _says_all(record: object, text: bytes) -> bool:
    """True if orjson has lost no duplicate key and no digit of a number.

    Also False for a line that is spelled in another way, except for spaces after colons and commas.
    """
    try:
        plain: bytes = orjson.dumps(record)
    except orjson.JSONEncodeError:
        raise BadLine(
            "nests lists and objects too deeply to be written. Expected at most about 250 levels."
        ) from None
    return plain == text or plain == text.replace(b'": ', b'":').replace(b", ", b",")


def check_shape(record: dict[str, Any]) -> None:
    """Raise BadLine if a field that every tool needs is missing or has the wrong type."""
    if "arch" not in record:
        listed = ", ".join(shown(key, 20) for key in list(record)[:8]) or "nothing"
        raise BadLine(
            f'is not a record: it has no "arch" (it has: {listed}). A record describes one model;'
            " rb-arch writes records."
        )
    if not isinstance(record["arch"], dict):
        kind = _kind(record["arch"])
        raise BadLine(f'has an "arch" that is {kind}. Expected an object as written by rb-arch.')
    for field, wanted in (("metrics", dict), ("evals", list), ("train", dict)):
        if field in record and not isinstance(record[field], wanted):
            words = "an object" if wanted is dict else "a list"
            raise BadLine(f'has a "{field}" that is {_kind(record[field])}. Expected {words}.')
    for name, value in record.get("metrics", {}).items():
        if not _is_number(value):
            wrong = "too large" if type(value) in (int, float) else _kind(value)
            raise BadLine(f'has a metric "{shown(name)}" that is {wrong}. Expected a number.')
    for entry in record.get("evals", ()):
        if not isinstance(entry, dict) or not isinstance(entry.get("metric"), str):
            raise BadLine('has an entry in "evals" that is not an object with a "metric".')
        if not _is_measured(entry):
            name = shown(entry["metric"])
            raise BadLine(
                f'has an entry "{name}" in "evals" whose "value" or "std" is not a number or too large, or'
                ' whose "ci95" is not a list of two numbers in increasing order.'
            )


def _is_measured(entry: dict[str, Any]) -> bool:
    """True if value, deviation and interval of an entry are numbers or missing."""
    if not (_is_number(entry.get("value")) and _is_number(entry.get("std"))):
        return False
    ends = entry.get("ci95")
    if ends is None:
        return True
    if type(ends) is not list or len(ends) != 2 or None in ends:
        return False
    return all(map(_is_number, ends)) and bool(ends[0] <= ends[1])


def _is_number(value: Any) -> bool:
    """True if the value is null, or a number with which calculations are safe."""
    kind = type(value)  # comparing types takes half the time of isinstance and excludes bool
    if kind is float:
        return bool(-_LARGEST <= value <= _LARGEST)
    return value is None or (kind is int and -_INTEGERS <= value < _INTEGERS)


def can_be_retried(record: dict[str, Any]) -> bool:
    """True if a failed record describes a model, unlike a record that replaces a bad line."""
    try:
        check_shape(record)
    except BadLine:
        return False
    return True


def _parse_slowly(text: bytes) -> dict[str, Any]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            counts = Counter(key for key, _ in items)
            twice = next(key for key, count in counts.items() if count > 1)
            raise BadLine(f'contains the key "{shown(twice)}" twice. Expected each key only once.')
        return result

    return dict(json.loads(text, object_pairs_hook=pairs))


def _why_not_json(text: bytes, error: orjson.JSONDecodeError, whole: bool) -> str:
    start = _start_of(text)
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as wrong:
        return f"is not UTF-8 (byte {wrong.start + 1}): {start}. Expected one JSON object per line."
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except BadLine as constant:
        return str(constant)
    except (ValueError, RecursionError):
        pass
    if not whole and text.lstrip()[:1] == b"{":
        return f"is cut off: it ends after {len(text)} bytes without a closing brace or a newline."
    return f"is not JSON: {error.msg} at column {error.colno}: {start}. Expected one JSON object per line."


def _over_lines(text: bytes) -> str:
    """The problem of a first line that is only a bracket, because the JSON is on several lines."""
    kind, way = ("object", ".") if text == b"{" else ("list", "'.[]'")
    return (
        f"begins a JSON {kind} over several lines. Expected one JSON object per line, as written"
        f" by jq -c {way} FILE."
    )


def _start_of(text: bytes) -> str:
    return repr(text[:_SHOWN].decode("utf-8", "replace") + ("..." if len(text) > _SHOWN else ""))


def _refuse_constant(name: str) -> None:
    raise BadLine(f"contains {name}, which is not valid JSON. Numbers in a record must be finite; use null.")


def _kind(value: object) -> str:
    names = {list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), "an object")


def lines(stream: Iterable[bytes], source: str = STDIN) -> Iterator[Line]:
    """Yield every line that is not blank, with its record or its problem.

    A byte order mark, CRLF and a missing last newline are accepted. A stream that begins with binary data,
    such as a file of weights, is one bad line, unless a line begins like a JSON object. If a JSON document
    has several lines, all its lines are bad lines, so that no line is lost.
    """
    judged, over_lines, first = 0, False, True
    for number, raw in enumerate(stream, start=1):
        text = (raw.removeprefix(_BOM) if number == 1 else raw).strip()
        if not text:
            continue
        if _OBJECT.match(text):
            judged = _BEGINNING
        if (number == 1 and not_utf8(text, "")) or _NO_TEXT.search(text[: max(_BEGINNING - judged, 0)]):
            yield Line(source, number, text[:_SHOWN], None, _not_text(text, source))
            return
        judged += len(raw)
        whole = raw.endswith(b"\n")
        try:
            line, over_lines = Line(source, number, text, parse(text, whole=whole), None), False
        except BadLine as wrong:
            line = Line(source, number, text, None, str(wrong), continues=over_lines)
            if first and whole and text in (b"{", b"["):
                line, over_lines = line._replace(problem=_over_lines(text)), True
        yield line
        first = False


def _not_text(text: bytes, source: str) -> str:
    if other := not_utf8(text, source if source != STDIN else "FILE"):
        return f"{other}."
    return (
        f"is binary data, not text: {_start_of(text)}. Expected one JSON object per line; the rest is not"
        " read. To evaluate the weights of a network, use --checkpoint FILE, or create a record of them with"
        " rb-arch --from-checkpoint FILE."
    )


def dumps(record: dict[str, Any]) -> bytes:
    """Return the record as one line of UTF-8 JSON without its newline. Raises ValueError for a number that is
    not finite, which orjson would write as null."""
    try:
        text = orjson.dumps(record)
    except TypeError:  # an integer beyond 64 bits, from another program
        return json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    if b"null" in text:
        _refuse_nonfinite(record, "record")
    return text


def _refuse_nonfinite(value: Any, where: str) -> None:
    keyed = isinstance(value, dict)
    for key, item in value.items() if keyed else enumerate(value):
        kind = type(item)  # first, because most values are texts and numbers
        if kind is float:
            if not math.isfinite(item):
                place = f"{where}.{key}" if keyed else f"{where}[{key}]"
                raise ValueError(f"{place} is {item}; records contain only finite numbers")
        elif kind is not str and kind is not int and isinstance(item, dict | list):
            _refuse_nonfinite(item, f"{where}.{key}" if keyed else f"{where}[{key}]")


def read(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a JSON Lines file. Raises RbError, which names the file and the line, for a bad
    line."""
    with streamed(path) as stream:
        for line in lines(stream, str(path)):
            if line.record is None:
                raise RbError(f"{path}: line {line.number} {line.problem}")
            yield line.record


def write(records: Iterable[dict[str, Any]], stream: IO[bytes]) -> None:
    """Write records to a binary stream, one per line."""
    stream.writelines(dumps(record) + b"\n" for record in records)
