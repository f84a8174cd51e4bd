"""The entries of a ranking: single records or means over records, and the values that rank them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rbtools.errors import RbError, UsageError, near
from rbtools.records import expr, metric_name
from rbtools.records.held import HeldRecord
from rbtools.scoring import merge, rank_order, same_model
from rbtools.scoring.groups import grouped

Record = Mapping[str, Any]


@dataclass(eq=False)
class Contender:
    """An entry of the ranking.

    `members` contains the single records behind the entry, and `parts` the records that are averaged, which
    may be means over seeds. `values` contains the values by which the entry is ranked, None if missing.
    `points` contains the coordinates for the Pareto front. `paired` is the comparison with a reference, and
    `marks` contains fields that are written next to the rank.
    """

    record: Record
    members: list[Record]
    parts: list[Record] = field(default_factory=list)
    values: tuple[Any, ...] = ()
    points: tuple[Any, ...] = ()
    paired: dict[str, Any] | None = None
    marks: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def mean(cls, parts: Sequence[Contender], about: Mapping[str, Any]) -> Contender:
        records = [part.record for part in parts]
        members = [member for part in parts for member in part.members]
        return cls(merge.merged(records, about), members, records)


def one_of_each_model(
    records: Iterable[Record], unions: merge.Unions, *, weights: bool = False
) -> dict[int, Record]:
    """Maps the digest of each model to one record, in order of first occurrence; `unions` merges and counts
    further records. If `weights` is true, only records that name their checkpoint are merged, because rows of
    a table may not describe a model completely."""
    models: dict[int, Record] = {}
    for record in records:
        alone = weights and "checkpoint" not in record
        model = -1 - len(models) if alone else same_model.model(record)
        if model in models:
            merged = unions.of(models[model], record)
            record = record.changed(merged) if isinstance(record, HeldRecord) else merged
        models[model] = record
    return models


def averaged(contenders: Sequence[Contender], over: Sequence[str]) -> list[Contender]:
    """The means of the entries that differ only in the fields `over` (such as `seed`). Raises UsageError if a
    field is missing in all records."""
    for name in over if contenders else ():
        if not any(same_model.has(one.record, name) for one in contenders):
            hint = near(name, same_model.SHORT) or expr.MissingName(name, contenders[-1].record).hint
            raise UsageError(f"--aggregate: no record has '{name}'.{hint}")
    groups: dict[int, list[Contender]] = {}
    for one in contenders:
        groups.setdefault(same_model.without(one.record, over), []).append(one)
    return [Contender.mean(group, {"over": list(over)}) for group in groups.values()]


def averaged_by(
    contenders: Sequence[Contender], names: Sequence[str], option: str
) -> tuple[list[Contender], dict[str, int]]:
    """The means of the entries that have the same values of the fields `names`, and the number of records
    that lack each field. Raises UsageError, which names the `option`, if a field is missing in all
    records."""
    groups = grouped([one.record for one in contenders], names, option)
    means = [
        Contender.mean([contenders[place] for place in places], {"group": dict(zip(names, key, strict=True))})
        for key, places in groups.places.items()
    ]
    return means, groups.lacking


def values(
    records: Sequence[Record], keys: Sequence[rank_order.SortKey], option: str
) -> list[tuple[Any, ...]]:
    """The values by which each record is ranked; None if a value is missing. Raises UsageError if no record
    has a value, because the name is then probably misspelt."""
    columns = []
    for key in keys:
        value, column = expr.Expression(key.text, any_name=True), []
        reason: tuple[RbError, Record] | None = None
        for record in records:
            try:
                column.append(value(record))
            except RbError as wrong:
                column.append(None)
                reason = reason or (wrong, record)
        if reason is not None and all(one is None for one in column):
            why, lacking = reason
            if isinstance(why, expr.MissingName):
                known = dict.fromkeys(metric_name.names(records))
                raise UsageError(str(expr.MissingName(why.name, {**lacking, "metrics": known})))
            raise UsageError(f"{option}: {why}")
        columns.append(column)
    return list(zip(*columns, strict=True)) if keys else [()] * len(records)


def marked_bands(
    ranked: Sequence[rank_order.Ranked], ends: Sequence[tuple[float, float] | None], higher: bool
) -> list[int | None]:
    """The band of each ranked entry, None without a value. A value without an interval counts as exact."""
    known = {
        place: ends[place] or (entry.value, entry.value)
        for place, entry in enumerate(ranked)
        if entry.value is not None
    }
    bands = dict(zip(known, rank_order.bands([*known.values()], higher), strict=True))
    return [bands.get(place) for place in range(len(ranked))]
