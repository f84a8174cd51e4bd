"""Groups of records that agree in some fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rbtools.errors import UsageError
from rbtools.records import expr

Key = tuple[Any, ...]


def fields(names: Iterable[str]) -> list[Callable[[Mapping[str, Any]], Any]]:
    """Functions of a record that look up these fields (`arch.index`, `dataset`), or compute expressions.

    Each returns a hashable value, and raises RbError if the record has no such field.
    """

    def field(name: str) -> Callable[[Mapping[str, Any]], Any]:
        compiled = expr.compile(name)
        return lambda record: _hashable(compiled(record))

    return [field(name) for name in names]


def _hashable(value: object) -> Any:
    return repr(value) if isinstance(value, list | dict) else value


class Grouping:
    """Groups the records of a stream that agree in the fields `names`.

    A record that lacks a field agrees with the others that lack it: its value there is None.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._fields = [expr.compile(name) for name in names]
        self._places: dict[Key, list[int]] = {}
        self._keys: list[Key] = []
        self.lacking: dict[str, int] = {}
        self._reasons: dict[str, expr.MissingName] = {}

    def add(self, record: Mapping[str, Any]) -> Key:
        """Add the next record, and return its values of the fields."""
        if not self.names:
            return ()
        values = []
        for name, field in zip(self.names, self._fields, strict=True):
            try:
                values.append(_hashable(field(record)))
            except expr.MissingName as reason:
                values.append(None)
                self.lacking[name] = self.lacking.get(name, 0) + 1
                self._reasons[name] = reason
        key = tuple(values)
        self._places.setdefault(key, []).append(len(self._keys))
        self._keys.append(key)
        return key

    def check(self, option: str, count: int) -> None:
        """Raise UsageError for a field that none of `count` records has."""
        for name, lacking in self.lacking.items():
            if lacking == count:
                raise UsageError(f"{option}: no record has '{name}'.{self._reasons[name].hint}")

    def places(self) -> list[list[int]]:
        """The records of each group, by their places in the stream, groups in order of first occurrence."""
        return list(self._places.values())

    def keys(self) -> list[Key]:
        """The values of the fields of each group, in the same order."""
        return list(self._places)

    def alone(self) -> int:
        """How many groups have only one record."""
        return sum(len(places) == 1 for places in self._places.values())

    def described(self, place: int) -> dict[str, Any]:
        """The fields of an entry that describe a record's group: `within` and `compared`."""
        if not self.names:
            return {}
        key = self._keys[place]
        return {"within": dict(zip(self.names, key, strict=True)), "compared": len(self._places[key])}
