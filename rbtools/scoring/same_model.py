"""Which records are of the same model, and which differ in nothing but their seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

# What a tool found out about a model or said of it. All else tells which model it is.
FOUND = frozenset("schema metrics evals error rank band rank_ci95 ranking pareto stored".split())
# What a training cost and how it went.
COURSE = frozenset(
    "seconds_per_epoch passes prepared device threads history checkpoints validation trained_on batchnorm"
    " stopped_after processes".split()
)
SHORT = {"seed": "train.seed"}


def described(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record without what was found out: what makes it this model and no other."""
    kept = {name: value for name, value in record.items() if name not in FOUND}
    if isinstance(kept.get("train"), Mapping):
        kept["train"] = {name: value for name, value in kept["train"].items() if name not in COURSE}
    return kept


def digest(description: Mapping[str, Any]) -> int:
    """64 bits of a description; the order of its keys does not matter."""
    try:
        text = orjson.dumps(description, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer beyond 64 bits
        text = json.dumps(description, sort_keys=True).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def model(record: Mapping[str, Any]) -> int:
    """The digest that records of the same model have in common."""
    return digest(described(record))


def without(record: Mapping[str, Any], over: Sequence[str]) -> int:
    """The digest that records have in common which differ in the fields `over` alone (`seed`, `dataset`).

    Their weights differ then, and so do fields that rbtools does not know.
    """
    kept = {name: record[name] for name in ("arch", "dataset", "train") if name in record}
    kept = described(kept)
    for name in over:
        _drop(kept, SHORT.get(name, name).split("."))
    return digest(kept)


def has(record: Mapping[str, Any], field: str) -> bool:
    """Whether the record has what `without` would leave out by that name."""
    place: Any = record
    for name in SHORT.get(field, field).split("."):
        if not isinstance(place, Mapping) or name not in place:
            return False
        place = place[name]
    return True


def _drop(place: dict[str, Any], path: list[str]) -> None:
    """Take a field out, leaving whoever else holds the same objects as they were."""
    head, *rest = path
    if not rest:
        place.pop(head, None)
    elif isinstance(place.get(head), Mapping):
        place[head] = dict(place[head])
        _drop(place[head], rest)
