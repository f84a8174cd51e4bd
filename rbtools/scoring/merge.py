"""Merges records of one model into one record, and records of several models into means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from rbtools.errors import UsageError
from rbtools.records import answers, checksums, results
from rbtools.records import metric_name as metric_names
from rbtools.records.consistency import is_published
from rbtools.scoring import comparable
from rbtools.scoring.same_model import described

Record = Mapping[str, Any]


def united(old: Record, new: Record) -> dict[str, Any]:
    """Merge two records of one model, with the metrics of both. If both records have a metric, the value on
    more images is kept. If the numbers of images are equal or unknown, the value in `new` is kept. The other
    fields are also taken from `new`. Raises UsageError if the two values were measured differently."""
    before, after = (record.get("metrics") or {} for record in (old, new))
    entries, later = map(results.by_metric, (old, new))
    for name in entries.keys() & later.keys():
        _refuse(name, entries[name], later[name])
    images, others = (
        {name: sum(results.counts(entry)) for name, entry in some.items()} for some in (entries, later)
    )
    from_old = {
        name
        for name in {**before, **entries}
        if (name not in after and (name in before or name not in later))
        or (name in before and images.get(name, 0) > others.get(name, 0))
    }

    def chosen(ours: Record, theirs: Record) -> dict[str, Any]:
        kept = {name: value for name, value in ours.items() if name in from_old}
        return kept | {name: value for name, value in theirs.items() if name not in from_old}

    evals = [entry for entry in old.get("evals") or [] if entry["metric"] in from_old]
    evals += [entry for entry in new.get("evals") or [] if entry["metric"] not in from_old]
    parts = {
        "metrics": chosen(before, after),
        "evals": evals,
        checksums.FIELD: chosen(*map(checksums.known, (old, new))),
        answers.LABELS: answers.all_labels(old, new),
    }
    record = {**old, **new}
    return {**record, **{name: part for name, part in parts.items() if name in record}}


# Two values of one metric may differ in these fields.
_NO_SETTINGS = comparable.NO_QUESTION | {"n", "seed", "init_seed"}


def _refuse(name: str, old: Record, new: Record) -> None:
    """Raise UsageError if two entries of the metric have different settings, such as another number of steps:
    the one that is kept might be the weaker attack."""
    if is_published(old) or is_published(new):
        return
    first, second = ({key: v for key, v in one.items() if key not in _NO_SETTINGS} for one in (old, new))
    if differs := results.difference(first, second, ("in the first", "in the second")):
        raise UsageError(
            f"Two records of the same model contain {name}, but it was measured differently: {differs}. Leave"
            " one of them out, keep both as separate records (--no-merge), or measure one of them under"
            " another name (--as NAME)."
        )


class Unions:
    """Merges records of the same model; `count` is the number of records that were merged into earlier
    records. `images` maps each metric to its number of images, for the first merged record whose two parts
    had different numbers of images."""

    def __init__(self) -> None:
        self.count = 0
        self.images: dict[str, int] = {}

    def of(self, old: Record, new: Record) -> dict[str, Any]:
        self.count += 1
        record = united(old, new)
        if not self.images:
            counts, before, after = (set(images(one).values()) for one in (record, old, new))
            self.images = images(record) if len(counts) > 1 and before != after else {}
        return record


def images(record: Record) -> dict[str, int]:
    """Maps each metric that is a share of images to the number of images. PR and ProbAcc are left out if they
    are shares of the images that the model classifies correctly."""
    counts = {}
    for entry in record.get("evals") or ():
        name, n = str(entry.get("metric")), entry.get("n")
        stem = metric_names.parse(name).stem
        of_correct = entry.get("denominator") == "correct" or stem in ("pr", "probacc")
        if type(n) is int and metric_names.is_share(name) and not of_correct:
            counts[name] = n
    return counts


def mixed_images(records: Sequence[Record]) -> dict[str, tuple[int, int]]:
    """Maps each metric whose number of images differs between records to the smallest and largest number."""
    counts: dict[str, set[int]] = {}
    for record in records:
        for name, n in images(record).items():
            counts.setdefault(name, set()).add(n)
    return {name: (min(some), max(some)) for name, some in counts.items() if len(some) > 1}


def merged(records: Sequence[Record], about: Mapping[str, Any]) -> dict[str, Any]:
    """The mean of records, with the fields that are equal in all records, and `about` under "aggregated". The
    entry of a metric contains the mean as `value`, the sample standard deviation as `std` (null for one
    record), the number of `records` that have the metric, and the fields that are the same in all entries."""
    common = shared([described(record) for record in records])
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
        **checksums.of_all(entries),
    }


def _entry(name: str, records: Sequence[Record]) -> dict[str, Any]:
    values, entries = [], []
    for record in records:
        value = (record.get("metrics") or {}).get(name)
        if value is not None:
            values.append(value)
            entries += [entry for entry in record.get("evals") or [] if entry.get("metric") == name]
    spread = {"std": stdev(values) if len(values) > 1 else None, "records": len(values)}
    protocols = map(results.protocol, entries)
    protocol = shared([{key: v for key, v in fields.items() if key not in spread} for fields in protocols])
    if not values:
        return {"tool": "rb-rank", "metric": name, "value": None, "reason": "it is in no record", **spread}
    return {"tool": "rb-rank", "metric": name, **protocol, "value": fmean(values), **spread}


def shared(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields whose values are the same in all objects, also inside nested objects."""
    if not values:
        return {}
    first, *others = values
    common: dict[str, Any] = {}
    for name, value in first.items():
        other_values = [other.get(name) for other in others]
        if isinstance(value, Mapping) and all(isinstance(other, Mapping) for other in other_values):
            common[name] = shared([value, *[other for other in other_values if isinstance(other, Mapping)]])
        elif all(name in other for other in others) and all(other == value for other in other_values):
            common[name] = value
    return common
