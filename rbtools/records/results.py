"""Puts results into a record: one entry per metric, and no silent change of protocol."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeGuard

from rbtools.errors import RbError
from rbtools.records import checksums, schema

LATER: Any = object()
"""Placeholder in an entry for a value that is known only after the work."""


def short_dataset(name: str) -> str:
    """A data set's name for tables and figures; for a path, its last part."""
    kind, _, path = name.partition(":")
    with_path = kind in ("imagefolder", "npz", "parquet")
    return path.rstrip("/").rpartition("/")[2] or name if with_path else name


def at(value: object, path: Iterable[str]) -> Any:
    """The value inside nested objects at a path such as ("train", "seed"); None if there is none."""
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def is_number(value: object) -> TypeGuard[float]:
    """Whether the value is a number, and not true or false."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def interval(entry: object, field: str = "ci95") -> tuple[float, float] | None:
    """The two ends of an interval; None if the entry has no valid interval."""
    ends = at(entry, (field,))
    if isinstance(ends, list | tuple) and len(ends) == 2 and all(map(is_number, ends)):
        return ends[0], ends[1]
    return None


def counts(entry: Mapping[str, Any]) -> list[int]:
    """The number of images of an entry, or of both sides of a difference; empty if unknown."""
    n = entry.get("n")
    sides: list[Any] = n if isinstance(n, list) else [n]
    return sides if all(type(side) is int for side in sides) else []


def by_metric(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Maps metrics to their entries; if a metric has several entries, to the last one."""
    return {entry["metric"]: entry for entry in record.get("evals") or ()}


def last_entry(record: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """The last entry of that metric; empty if there is none."""
    entries = (entry for entry in reversed(record.get("evals") or ()) if entry.get("metric") == metric)
    return next(entries, {})


def protocol(fields: Mapping[str, Any], of: Literal["record", "train", "entry"] = "entry") -> dict[str, Any]:
    """The part of an entry that decides whether another entry is comparable with it; for a record or its
    `train`, the part that identifies the model."""
    return {name: value for name, value in fields.items() if schema.role(name, of) == "protocol"}


def add(record: dict[str, Any], entry: dict[str, Any], *, replace: bool = False) -> dict[str, Any]:
    """Return the record with this entry in `evals` and its value in `metrics`.

    A metric of that name with the same protocol is replaced. With another protocol, this is an error that
    shows the difference, unless `replace` is true. A metric whose value is None is removed from `metrics`.
    The checksums of other entries stay as they are, so that an edited entry can still be detected.
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
    """Raise RbError if the record has this metric with another protocol than the entry.

    Before the work, a field of the entry may have the value LATER, which equals every value.
    """
    for old in record.get("evals", []):
        if old.get("metric") == entry["metric"] and (differs := difference(old, entry)):
            raise RbError(
                f"The record already has '{entry['metric']}', measured differently: {differs}."
                " Keep both with --as NAME, or overwrite with --force."
            )


def add_implicit(record: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """Like `add`, but a metric that is already there under another protocol stays as it is.

    A result of more examples under an otherwise equal protocol replaces the old one: clean accuracy on fifty
    images is replaced by clean accuracy on all images, which the latest attack used, too. If the new result
    is the same without the details of the old one (--detail), nothing changes.
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


def difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The fields in which the protocols of two entries differ, such as "steps 20 there and 40 here"."""

    def shown(fields: dict[str, Any], key: str) -> str:
        return repr(fields[key]) if key in fields else "absent"

    before, after = protocol(old), protocol(new)
    fields = [
        key
        for key in {**before, **after}
        if (key in before) != (key in after) or before.get(key) != after.get(key)
        if after.get(key) is not LATER
    ]
    return ", ".join(f"{key} {shown(before, key)} there and {shown(after, key)} here" for key in fields)


def edited(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The entries whose values differ from their metrics in `metrics`."""
    metrics = record.get("metrics") or {}
    for entry in record.get("evals") or ():
        metric, value = metrics.get(entry["metric"]), entry.get("value")
        if metric is None or value is None:
            continue
        if not math.isclose(metric, value, rel_tol=1e-6, abs_tol=1e-9):
            yield entry


def forget_evaluations(record: dict[str, Any]) -> dict[str, Any]:
    """The record without results of its old weights, for a training run that replaces them.

    These results are entries with a `split`, unless measured `on` fresh weights; the seconds per epoch of the
    former training run; and scores, which are computed from such results. Measures of the architecture stay.
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
