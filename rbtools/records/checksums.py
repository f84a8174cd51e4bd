"""Checksums of the entries of `evals`, which show later changes of an entry (field `checksums` of a record).

A checksum shows damage and edits, but it does not prove who wrote the entry, because an editor can compute a
new checksum. A checksum covers the result and its protocol. It does not cover the cost, the device and other
labels, which may differ between two runs. A checksum depends on values and not on their spelling: it ignores
the order of fields and the difference between `1` and `1.0`, so other programs may rewrite a record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from rbtools.records import schema

FIELD = "checksums"
_DIGITS = 16  # hexadecimal digits


def of(entry: Mapping[str, Any]) -> str:
    """Return the checksum of an entry: 64 bits of BLAKE2b, computed from its JSON with sorted keys."""
    fields = {name: entry[name] for name in _counted(tuple(entry))}
    try:
        text = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
        # the text may contain a whole number written as a float
        if b".0," in text or b".0}" in text or b".0]" in text or _EXPONENT in text:
            text = orjson.dumps(_plain(fields), option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer beyond 64 bits
        text = json.dumps(_plain(fields), sort_keys=True, separators=(",", ":")).encode()
    return hashlib.blake2b(text, digest_size=_DIGITS // 2).hexdigest()


_EXPONENT = orjson.dumps(1e16)[1:-2]  # "e+"; older versions of orjson write "e"


@lru_cache(maxsize=4096)
def _counted(names: tuple[str, ...]) -> tuple[str, ...]:
    """The fields of the entry that the checksum covers."""
    return tuple(name for name in names if name == "metric" or schema.role(name) in ("protocol", "result"))


def _plain(value: Any) -> Any:
    """The value, with all whole numbers as integers."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def of_all(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the field `checksums` of a record for new entries, or {} if there are no new entries."""
    return {FIELD: {entry["metric"]: of(entry) for entry in entries}} if entries else {}


def known(record: Mapping[str, Any]) -> dict[str, Any]:
    """Map each metric to its checksum in the record; empty if the field is missing or not valid."""
    sums = record.get(FIELD)
    return dict(sums) if isinstance(sums, Mapping) else {}
