"""Reads and writes the JSON of published files, and names of data sets and networks in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

import orjson

from rbtools.errors import RbError, shown
from rbtools.formats import numbers
from rbtools.formats.base import Broken, Record, Unit
from rbtools.formats.conversion_report import ConversionReport
from rbtools.formats.naming import described, simple
from rbtools.spaces import nasbench201, zoo

_LONGEST = 200  # the most bytes of a file name without suffixes


def parsed(text: bytes, *, exact: bool = True) -> Any:
    """Parse a JSON text. Numbers with a decimal point become Decimals, which keep the printed digits, or
    floats if `exact` is false, which need a quarter of the memory. Integers of 19 digits or more, which may
    have more than 64 bits, become Decimals. NaN and Infinity become `NotFinite`. Raises Broken."""
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
        if text.strip() and getattr(wrong, "pos", None) == 0:
            raise Broken("is not JSON, which begins with { or [; a table is read by rb-convert csv") from None
        raise Broken(f"is not complete JSON: {' '.join(str(wrong).split())}") from None


def dumps(value: object, *, indent: bool = False) -> bytes:
    """Encode a value as JSON bytes, with all digits of a Decimal."""
    options = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if indent else 0)
    return orjson.dumps(value, default=_digits, option=options)


def _digits(value: object) -> Any:
    if isinstance(value, Decimal):
        return orjson.Fragment(numbers.shown(value))
    raise TypeError(type(value).__name__)


def text_field(row: Mapping[str, Any], key: str) -> str:
    """The string in a required field of a row. Raises RbError if the field is missing or is not a string."""
    text = row.get(key)
    if not isinstance(text, str) or not text.strip():
        listed = ", ".join(map(str, list(row)[:8])) or "nothing"
        kind = shown(repr(text)) if key in row else f"missing (the row has: {listed})"
        raise RbError(f'The row\'s "{key}" is {kind}. Expected a string.')
    return text


def an_object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RbError(f"{what} is {numbers.kind(value)}. Expected an object.")
    return value


def latest(units: Iterable[Unit], key: Callable[[Any], Any], report: ConversionReport) -> list[Any]:
    """The contents of units by key. If several units have the same key, only the last unit is kept."""
    contents: dict[Any, Any] = {}
    for unit in units:
        name = key(unit.content)
        if name in contents:
            report.note("two records belong to the same row of the file; the last one is written", unit.where)
            del contents[name]
        contents[name] = unit.content
    return list(contents.values())


def file_name(text: str) -> str:
    """Returns a valid file name. Raises RbError if it would lead out of the folder or is too long."""
    if text in ("", ".", "..") or any(mark in text for mark in "/\\\0:") or len(text.encode()) > _LONGEST:
        raise RbError(
            f"'{shown(text)}' cannot be the name of a file. Expected a name without slashes and colons of at"
            f" most {_LONGEST} bytes."
        )
    return text


class NameMap:
    """Maps published names to names in records, and back. Unknown names are returned unchanged."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self.known = {simple(published): ours for published, ours in known.items()}
        self.published = {ours: published for published, ours in known.items()}

    def ours(self, published: str) -> str:
        return self.known.get(simple(published), published)

    def theirs(self, name: str) -> str:
        return self.published.get(name, name)


def cell(index: object, dataset: str | None) -> Record:
    """The field `arch` for a published id of NAS-Bench-201, including the isomorphism class. Raises RbError
    if the id is not in NAS-Bench-201."""
    if not (isinstance(index, int) or (isinstance(index, str) and index.isascii() and index.isdigit())):
        raise RbError(
            f"The architecture id is {index!r}. Expected a number from 0 to {nasbench201.SIZE - 1}, an index"
            " of NAS-Bench-201."
        )
    return described(nasbench201.arch(int(index)), dataset)


def class_of(arch: Mapping[str, Any]) -> int | None:
    """The representative of an architecture's isomorphism class, under which published files list the class;
    None for another space. Raises RbError if `arch` does not determine a cell."""
    if arch.get("space") != "nasbench201":
        return None
    index = nasbench201.index_of(nasbench201.to_string(nasbench201.ops_of(arch)))
    return nasbench201.classes()[index]


_ZOO = {"wideresnet": "wrn-{}", "wrn": "wrn-{}", "preactresnet": "preactresnet{}", "resnet": "resnet{}"}


def zoo_name(published: str) -> str | None:
    """The name of a published network in our model zoo, such as `wrn-34-10` for `WideResNet-34-10`; None if
    the zoo does not contain the network."""
    word = re.fullmatch(r"([A-Za-z]+)-?(\d+(?:-\d+)?)", published)
    form = _ZOO.get(word[1].lower()) if word else None
    if word is None or form is None:
        return None
    name = form.format(word[2])
    try:
        zoo.form(name)
    except RbError:
        return None
    return name
