"""Rankings of streams: records of one model are merged, and groups are ranked separately."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rbtools.errors import RbError, UsageError, near
from rbtools.records import dumps, expr, parse_again
from rbtools.scoring import merge, rank_order, same_model
from rbtools.scoring.groups import Grouping, Key

Read = tuple[bytes, dict[str, Any]]
SPARE = 5000  # additional entries to keep, since some of the first may be replaced


class Standing(NamedTuple):
    """A line, which takes a fifth of its record's memory, and the values that it is ranked by. points: the
    numbers of the Pareto front. group: the group that it is ranked in.
    """

    text: bytes
    values: tuple[Any, ...]
    points: tuple[Any, ...]
    group: Key


class Latest:
    """The entries of a stream, one for each model; `duplicates` counts the others.

    `unite` merges a model's entry with the next; without it the last counts. With `top`, only entries that
    can be among the first of their group are kept in memory: `lost` counts those whose model's earlier entry
    was dropped.
    """

    def __init__(
        self,
        higher: Sequence[bool],
        top: int | None = None,
        unite: Callable[[Standing, Standing], Standing] | None = None,
    ) -> None:
        self._higher, self._top, self._unite = higher, top, unite
        self._limit = None if top is None else 4 * (top + SPARE)
        self._entries: dict[int, Standing] = {}
        self._seen: set[int] = set()
        self._floor: dict[Key, Any] = {}  # for each group the value that an entry must exceed to be kept
        self._dropped: dict[Key, Any] = {}  # the best dropped entry of each group
        self.duplicates = self.lost = 0

    def add(self, model: int, entry: Standing) -> None:
        """Add an entry; an earlier one of the same model is merged into it.

        An entry without a value to rank by, such as another evaluation's (rb-store ls), is left out if its
        model's earlier entry was dropped.
        """
        if model in self._seen:
            self.duplicates += 1
            old = self._entries.pop(model, None)
            if old is not None and self._unite is not None:
                entry = self._unite(old, entry)
            elif old is None:
                self.lost += 1
                if entry.values and all(value is None for value in entry.values):
                    return
        else:
            self._seen.add(model)
        if entry.group in self._floor and (cost := self._cost(entry)) >= self._floor[entry.group]:
            self._drop(entry.group, cost)
            return
        self._entries[model] = entry
        if self._limit is not None and len(self._entries) > self._limit:
            self._prune()

    def _cost(self, entry: Standing) -> rank_order.Cost:
        return rank_order.costs(entry.values, self._higher)

    def _drop(self, group: Key, cost: rank_order.Cost) -> None:
        self._dropped[group] = min(cost, self._dropped.get(group, cost))

    def _prune(self) -> None:
        assert self._top is not None
        groups: dict[Key, list[tuple[rank_order.Cost, int]]] = {}
        for model, entry in self._entries.items():
            groups.setdefault(entry.group, []).append((self._cost(entry), model))
        for group, costs in groups.items():
            ordered = sorted(costs, key=lambda pair: pair[0])
            for cost, model in ordered[self._top + SPARE :]:
                self._drop(group, cost)
                del self._entries[model]
                self._floor[group] = ordered[self._top + SPARE - 1][0]
        self._limit = max(4 * (self._top + SPARE), 2 * len(self._entries))

    def entry(self, model: int) -> Standing:
        """The entry of a model that was not dropped."""
        return self._entries[model]

    def entries(self) -> dict[Key, list[Standing]]:
        """The entries of each group. Groups are sorted by their values if these can be ordered."""
        groups: dict[Key, list[Standing]] = {}
        for entry in self._entries.values():
            groups.setdefault(entry.group, []).append(entry)
        return {key: groups[key] for key in sorted_keys(groups)}

    def ranked(self) -> list[list[rank_order.Ranked]]:
        """The first `top` of each group, ranked; in input order without a sort key."""
        groups = []
        for group, entries in self.entries().items():
            if not self._higher:
                groups.append([rank_order.Ranked(None, None, entry) for entry in entries])
                continue
            ranked = rank_order.rank(entries, lambda entry: entry.values, higher=self._higher)[: self._top]
            lost = self._dropped.get(group)
            if lost is not None and (len(ranked) < (self._top or 0) or self._cost(ranked[-1].record) > lost):
                raise RbError(
                    f"More than {SPARE} of the first records are of the same models as later ones, which"
                    " count: the records after them were dropped. Leave out --top, or rank each file by"
                    " itself."
                )
            groups.append(ranked)
        return groups


def sorted_keys(keys: Iterable[Key]) -> list[Key]:
    """Keys in the order of their values: None first, then numbers, then texts."""

    def order(value: object) -> tuple[int, Any]:
        if value is None:
            return 0, 0
        return (1, value) if isinstance(value, int | float) else (2, str(value))

    return sorted(keys, key=lambda key: [order(value) for value in key])


def one_of_each_model(records: Iterable[Read], unions: merge.Unions, *, weights: bool = False) -> list[bytes]:
    """The text of one record of each model; `unions` merges the others, and counts them.

    `weights`: merge only records that name their checkpoint. Rows of a table may not describe their models
    well enough to distinguish them.
    """
    latest: dict[int, bytes] = {}
    for text, record in records:
        alone = weights and "checkpoint" not in record
        model = -1 - len(latest) if alone else same_model.model(record)
        if (old := latest.get(model)) is not None:
            text = dumps(unions.of(parse_again(old), record))
        latest[model] = text
    return list(latest.values())


class Merged(NamedTuple):
    """A merged record, and the records that it was made of."""

    record: dict[str, Any]
    members: list[dict[str, Any]]

    @classmethod
    def of(cls, texts: Sequence[bytes], about: Mapping[str, Any]) -> Merged:
        members = [parse_again(text) for text in texts]
        return cls(merge.merged(members, about), members)


def averaged(texts: Iterable[bytes], over: Sequence[str]) -> list[Merged]:
    """Merge records that differ only in the fields `over` (such as `seed`): see `merge.merged`.

    Raises UsageError for a field that no record has.
    """
    groups: dict[int, list[bytes]] = {}
    unknown = dict.fromkeys(over)
    for text in texts:
        record = parse_again(text)
        unknown = {name: None for name in unknown if not same_model.has(record, name)}
        groups.setdefault(same_model.without(record, over), []).append(text)
    if groups and unknown:
        name = next(iter(unknown))
        hint = near(name, same_model.SHORT) or expr.MissingName(name, record).hint
        raise UsageError(f"--aggregate: no record has '{name}'.{hint}")
    return [Merged.of(texts, {"over": list(over)}) for texts in groups.values()]


def grouped(
    texts: Iterable[bytes], fields: Sequence[str], option: str = "group"
) -> tuple[list[Merged], dict[str, int]]:
    """Merge records that agree in `fields`; also returns how many records lack each field.

    Raises UsageError, which names the `option`, for a field that no record has.
    """
    texts = list(texts)
    grouping = Grouping(fields)
    for text in texts:
        grouping.add(parse_again(text))
    grouping.check(option, len(texts))
    merged = []
    for key, places in zip(grouping.keys(), grouping.places(), strict=True):
        about = {"group": dict(zip(fields, key, strict=True))}
        merged.append(Merged.of([texts[place] for place in places], about))
    return merged, grouping.lacking


def marked_front(groups: Sequence[Sequence[rank_order.Ranked]], higher: Sequence[bool]) -> list[list[bool]]:
    """For each ranked entry of each group whether it is on the Pareto front of its group."""
    return [rank_order.front([entry.record.points for entry in group], higher) for group in groups]


def marked_bands(
    ranked: Sequence[rank_order.Ranked], ends: Sequence[tuple[float, float] | None], higher: bool
) -> list[int | None]:
    """The band of each ranked entry; an entry without a value has none, one without an interval counts as
    exact."""
    values = {
        place: ends[place] or (entry.value, entry.value)
        for place, entry in enumerate(ranked)
        if entry.value is not None
    }
    bands = dict(zip(values, rank_order.bands([*values.values()], higher), strict=True))
    return [bands.get(place) for place in range(len(ranked))]


class RankValues:
    """The values that records are ranked by, and the error for records that have none."""

    def __init__(self, keys: Sequence[rank_order.SortKey]) -> None:
        self.keys = list(keys)
        self._get: list[Callable[[Any], Any]] = [_getter(sort_key.text) for sort_key in keys]
        self.count = 0
        self.lacking = [0] * len(keys)
        self.names: dict[str, None] = {}
        self._reasons: dict[int, tuple[RbError, dict[str, Any]]] = {}

    @property
    def missing(self) -> int:
        """How many records lack the first value."""
        return self.lacking[0] if self.lacking else 0

    def of(self, record: dict[str, Any]) -> tuple[Any, ...]:
        """The values of a record; None for missing ones."""
        self.count += 1
        values: list[Any] = []
        for place, get in enumerate(self._get):
            try:
                values.append(get(record))
            except RbError as reason:
                values.append(None)
                self._reasons.setdefault(place, (reason, record))
            self.lacking[place] += values[-1] is None
        if None in values:
            self.names.update(dict.fromkeys(record.get("metrics", {})))
        return tuple(values)

    def forget(self, values: Sequence[Any]) -> None:
        """Undo the count of a record that was merged into another."""
        self.count -= 1
        for place, value in enumerate(values):
            self.lacking[place] -= value is None

    def check(self, option: str) -> None:
        """Raise UsageError if no record has a value: that is a wrong name, not a missing result."""
        for place, (reason, record) in self._reasons.items():
            if self.lacking[place] < self.count:
                continue
            if isinstance(reason, expr.MissingName):
                raise UsageError(str(expr.MissingName(reason.name, {**record, "metrics": self.names})))
            raise UsageError(f"{option}: {reason}")


def _getter(text: str) -> Callable[[Any], Any]:
    try:
        return expr.compile(text)
    except RbError:  # a metric may have any name
        return lambda record: (record.get("metrics") or {}).get(text)
