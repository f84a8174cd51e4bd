"""Groups of records that have the same values of some fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rbtools.errors import UsageError
from rbtools.records import expr

Key = tuple[Any, ...]


def field(name: str) -> Callable[[Mapping[str, Any]], Any]:
    """Returns a function that looks up a field in a record (`arch.index`) or computes an expression. The
    function returns a hashable value, and raises MissingName if the record has no such field."""
    compiled = expr.compile(name)

    def value(record: Mapping[str, Any]) -> Any:
        found = compiled(record)
        return repr(found) if isinstance(found, list | dict) else found

    return value


@dataclass(frozen=True)
class Groups:
    """Groups of records that have the same values of the fields `names`. `keys` contains the values of each
    record, None if missing. `places` contains the indices of each group's records, with groups in order of
    first occurrence. `lacking` contains the number of records that lack each field."""

    names: list[str]
    keys: list[Key]
    places: dict[Key, list[int]]
    lacking: dict[str, int]

    def described(self, place: int) -> dict[str, Any]:
        """The fields `within` and `compared` in the entry of a record."""
        if not self.names:
            return {}
        key = self.keys[place]
        return {"within": dict(zip(self.names, key, strict=True)), "compared": len(self.places[key])}


def grouped(records: Sequence[Mapping[str, Any]], names: Sequence[str], option: str) -> Groups:
    """Group the records with the same values of the fields `names`; without fields, there is one group.
    Records that lack a field count as equal in this field. Raises UsageError, which names the option, if a
    field is missing in all records."""
    columns: list[list[Any]] = []
    lacking: dict[str, int] = {}
    for name in names:
        look_up, reason = field(name), None
        column: list[Any] = []
        for record in records:
            try:
                column.append(look_up(record))
            except expr.MissingName as missing:
                column.append(None)
                lacking[name], reason = lacking.get(name, 0) + 1, missing
        if reason is not None and lacking[name] == len(records):
            raise UsageError(f"{option}: no record has '{name}'.{reason.hint}")
        columns.append(column)
    keys = list(zip(*columns, strict=True)) if names else [()] * len(records)
    places: dict[Key, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return Groups(list(names), keys, places, lacking)


def in_order(keys: Sequence[Key]) -> list[Key]:
    """Sort keys by their values: None first, then numbers, then strings."""

    def order(value: object) -> tuple[int, Any]:
        if value is None:
            return 0, 0
        return (1, value) if isinstance(value, int | float) else (2, str(value))

    return sorted(keys, key=lambda key: [order(value) for value in key])
