"""Checks whether records describe the same model, or differ only in their seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from rbtools.records import results
from rbtools.records.held import HeldRecord

SHORT = {"seed": "train.seed"}


def described(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that identify the model of a record, without results, costs and labels."""
    description = results.protocol(record, "record")
    if isinstance(description.get("train"), Mapping):
        description["train"] = results.protocol(description["train"], "train")
    return description


def digest(description: Mapping[str, Any]) -> int:
    """A 64-bit digest of a description, which does not depend on the order of the keys."""
    try:
        text = orjson.dumps(description, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer beyond 64 bits
        text = json.dumps(description, sort_keys=True).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def model(record: Mapping[str, Any]) -> int:
    return record.model if isinstance(record, HeldRecord) else digest(described(record))


def without(record: Mapping[str, Any], over: Sequence[str]) -> int:
    """A digest that is the same for records that differ only in the fields `over` (such as `seed`). The
    digest depends only on architecture, data set and training, because records with different seeds also have
    different weights and may differ in fields that rbtools does not know."""
    description = described({name: record[name] for name in ("arch", "dataset", "train") if name in record})
    for name in over:
        _drop(description, SHORT.get(name, name).split("."))
    return digest(description)


def has(record: Mapping[str, Any], field: str) -> bool:
    """Whether the record has a field that `without` would ignore."""
    return without(record, [field]) != without(record, [])


def _drop(place: dict[str, Any], path: list[str]) -> None:
    """Remove the field at a path. Objects on the path are copied, because records may share them."""
    head, *rest = path
    if not rest:
        place.pop(head, None)
    elif isinstance(place.get(head), Mapping):
        place[head] = dict(place[head])
        _drop(place[head], rest)
