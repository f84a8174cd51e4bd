"""Several records as one: of one model what all of them say, of several the mean of each metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from rbtools.records import metric_name as metric_names
from rbtools.records import results
from rbtools.scoring.same_model import COURSE, FOUND

Record = Mapping[str, Any]
_OWN = ("value", "metric", "tool", "contributions", "std", "records")


def united(old: Record, new: Record) -> dict[str, Any]:
    """Two records of one model as one, with the metrics of both.

    Of a metric that both have, the value of more images counts; of as many, or where neither entry says how
    many, that of `new`. So does what else the records say.
    """
    sides = [
        (record.get("metrics") or {}, {one["metric"]: one for one in record.get("evals") or []})
        for record in (old, new)
    ]
    (before, entries), (after, later) = sides
    kept = {
        name
        for name in {**before, **entries}
        if (name in before and name not in after)
        or (name in before and _images(entries.get(name)) > _images(later.get(name)))
        or (name not in after and name not in later)
    }
    found = {**old, **new}
    metrics = [(name, before[name]) for name in before if name in kept]
    metrics += [(name, value) for name, value in after.items() if name not in kept]
    evals = [one for one in old.get("evals") or [] if one["metric"] in kept]
    evals += [one for one in new.get("evals") or [] if one["metric"] not in kept]
    parts = {"metrics": dict(metrics), "evals": evals}
    return {**found, **{name: part for name, part in parts.items() if name in found}}


def _images(entry: Record | None) -> int:
    """How many images an entry is of, on both sides of a difference; -1 where it does not say."""
    n = (entry or {}).get("n")
    counts: list[Any] = n if isinstance(n, list) else [n]
    return sum(counts) if all(type(one) is int for one in counts) else -1


def merged(records: Sequence[Record], about: Mapping[str, Any]) -> dict[str, Any]:
    """The mean of records: all fields that they agree in, and `about` under "aggregated".

    The entry of a metric has its mean as `value`, the deviation of a sample as `std` (null for one
    record), the number of `records` that have it, and what their entries agree in.
    """
    common = shared([{k: v for k, v in record.items() if k not in FOUND} for record in records])
    train = common.get("train")
    if isinstance(train, dict):
        common["train"] = {name: value for name, value in train.items() if name not in COURSE}
    seeds = [record["train"]["seed"] for record in records if "seed" in (record.get("train") or {})]
    counted = {"records": len(records), **({"seeds": seeds} if len(set(map(str, seeds))) > 1 else {})}
    entries = [_entry(name, records) for name in metric_names.names(records)]
    return {
        "schema": 1,
        "arch": {},
        **common,
        "metrics": {entry["metric"]: entry["value"] for entry in entries if entry["value"] is not None},
        "aggregated": {**about, **counted},
        "evals": entries,
    }


def _entry(name: str, records: Sequence[Record]) -> dict[str, Any]:
    values, entries = [], []
    for record in records:
        value = (record.get("metrics") or {}).get(name)
        if value is not None:
            values.append(value)
            entries += [one for one in record.get("evals") or [] if one.get("metric") == name]
    protocol = shared([{k: v for k, v in results.protocol(one).items() if k not in _OWN} for one in entries])
    spread = {"std": stdev(values) if len(values) > 1 else None, "records": len(values)}
    if not values:
        return {"tool": "rb-rank", "metric": name, "value": None, "reason": "no record has it", **spread}
    return {"tool": "rb-rank", "metric": name, **protocol, "value": fmean(values), **spread}


def shared(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What objects agree in, objects inside them likewise."""
    if not values:
        return {}
    first, *others = values
    found: dict[str, Any] = {}
    for name, value in first.items():
        theirs = [other.get(name) for other in others]
        if isinstance(value, Mapping) and all(isinstance(one, Mapping) for one in theirs):
            found[name] = shared([value, *[one for one in theirs if isinstance(one, Mapping)]])
        elif all(name in other for other in others) and all(one == value for one in theirs):
            found[name] = value
    return found
