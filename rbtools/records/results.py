"""Adds results to a record, with one entry per metric; a change of the protocol is never silent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeGuard

from rbtools.errors import RbError
from rbtools.records import checksums, schema

LATER: Any = object()  # placeholder for a value that is known only after the work


def short_dataset(name: str) -> str:
    """Return the name of a data set in tables and figures; for a path, its last part."""
    kind, _, path = name.partition(":")
    with_path = kind in ("imagefolder", "npz", "parquet")
    return path.rstrip("/").rpartition("/")[2] or name if with_path else name


def at(value: object, path: Iterable[str]) -> Any:
    """Return the value at a path in nested objects, such as ("train", "seed"), or None if it is missing."""
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def is_number(value: object) -> TypeGuard[float]:
    """True if the value is a number; true and false are not numbers."""
    return type(value) is float or (isinstance(value, (int, float)) and not isinstance(value, bool))


def interval(entry: object, field: str = "ci95") -> tuple[float, float] | None:
    """Return the two ends of an interval, or None if the entry has no valid interval."""
    ends = entry.get(field) if isinstance(entry, Mapping) else None
    if isinstance(ends, (list, tuple)) and len(ends) == 2 and is_number(ends[0]) and is_number(ends[1]):
        return ends[0], ends[1]
    return None


def counts(entry: Mapping[str, Any]) -> list[int]:
    """Return an entry's numbers of images, one for each side of a difference, or [] if they are unknown."""
    n = entry.get("n")
    sides: list[Any] = n if isinstance(n, list) else [n]
    return sides if all(type(side) is int for side in sides) else []


def by_metric(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Map each metric to its entry; if a metric has several entries, to the last entry."""
    return {entry["metric"]: entry for entry in record.get("evals") or ()}


def last_entry(record: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """Return the last entry of the metric, or {} if the metric has no entry."""
    entries = (entry for entry in reversed(record.get("evals") or ()) if entry.get("metric") == metric)
    return next(entries, {})


def protocol(fields: Mapping[str, Any], of: Literal["record", "train", "entry"] = "entry") -> dict[str, Any]:
    """Return the fields that decide whether two entries are comparable (or two records are one model)."""
    return {name: value for name, value in fields.items() if schema.role(name, of) == "protocol"}


def add(record: dict[str, Any], entry: dict[str, Any], *, replace: bool = False) -> dict[str, Any]:
    """Return the record with this entry in `evals` and its value in `metrics` (None removes the metric).

    A metric of the same name is replaced; if its protocol differs, RbError is raised, unless `replace` is
    true. The checksums of all other entries are unchanged, so that an edited entry can still be detected.
    """
    name = entry["metric"]
    evals, metrics = list(record.get("evals", [])), dict(record.get("metrics", {}))
    if not replace:
        refuse(record, entry)
    evals = [old for old in evals if old.get("metric") != name] + [entry]
    metrics.pop(name, None)
    if entry["value"] is not None:
        metrics[name] = entry["value"]
    sums = {**checksums.known(record), name: checksums.of(entry)}
    return {**record, "metrics": metrics, "evals": evals, checksums.FIELD: sums}


def refuse(record: dict[str, Any], entry: dict[str, Any]) -> None:
    """Raise RbError if the record contains this metric with another protocol.

    Before the measurement, a field of the entry may have the value LATER, which is equal to every value.
    """
    for old in record.get("evals", []):
        if old.get("metric") == entry["metric"] and (differs := difference(old, entry)):
            raise RbError(
                f"The record already has '{entry['metric']}', measured differently: {differs}."
                " Keep both with --as NAME, or overwrite with --force."
            )


def add_implicit(record: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """Like `add`, but if the record contains the metric with another protocol, the metric is unchanged.

    If only the number of images differs, the result of more images is kept. If the new result is the same but
    lacks the details of the old result (--detail), nothing changes.
    """
    old = last_entry(record, entry["metric"])
    if old and protocol(old) == protocol(entry):
        if "detail" in old and "detail" not in entry:
            return record
    elif old:
        alike = {**protocol(old), "n": 0} == {**protocol(entry), "n": 0}
        if not (alike and isinstance(old.get("n"), int) and entry.get("n", 0) > old["n"]):
            return record
    return add(record, entry, replace=True)


def difference(
    old: Mapping[str, Any], new: Mapping[str, Any], sides: tuple[str, str] = ("there", "here")
) -> str:
    """Return the fields in which two protocols differ, in words such as `steps 20 there and 40 here`."""

    def shown(fields: dict[str, Any], key: str) -> str:
        return repr(fields[key]) if key in fields else "absent"

    before, after = protocol(old), protocol(new)
    fields = [
        key
        for key in {**before, **after}
        if (key in before) != (key in after) or before.get(key) != after.get(key)
        if after.get(key) is not LATER
    ]
    first, second = sides
    return ", ".join(f"{key} {shown(before, key)} {first} and {shown(after, key)} {second}" for key in fields)


def edited(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the entries whose values differ from the values in `metrics`."""
    metrics = record.get("metrics") or {}
    for entry in record.get("evals") or ():
        metric, value = metrics.get(entry["metric"]), entry.get("value")
        if metric is None or value is None:
            continue
        if not math.isclose(metric, value, rel_tol=1e-6, abs_tol=1e-9):
            yield entry


def forget_evaluations(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record without the results of its old weights, which a new training run replaces.

    The removed results are entries with a `split` (unless they were measured `on` fresh weights), the seconds
    per epoch of the old training run, and scores. Measures of the architecture are kept.
    """
    stale = {entry.get("metric") for entry in record.get("evals", []) if _of_weights(entry)}
    if not stale:
        return record
    evals = [entry for entry in record["evals"] if not _of_weights(entry)]
    metrics = {name: value for name, value in record.get("metrics", {}).items() if name not in stale}
    result = {**record, "metrics": metrics, "evals": evals}
    if checksums.FIELD in record:
        sums = checksums.known(record)
        result[checksums.FIELD] = {name: text for name, text in sums.items() if name not in stale}
    return result


def _of_weights(entry: dict[str, Any]) -> bool:
    if entry.get("on") == "init":
        return False
    return "split" in entry or entry.get("metric") == "seconds_per_epoch" or entry.get("tool") == "rb-score"
