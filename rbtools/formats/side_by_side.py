"""Several files that list the same things under the same ids, read together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)


def side_by_side(readers: Mapping[K, Iterator[tuple[str, Any]]]) -> Iterator[tuple[str, dict[K, Any], bool]]:
    """(id, reader -> value, whether all readers had it): complete ids at once, the others at the end.

    One item of each reader is read in turn: if all files have the same order, only one id is in memory.
    """
    waiting: dict[str, dict[K, Any]] = {}
    going = dict(readers)
    while going:
        for name, reader in list(going.items()):
            item = next(reader, None)
            if item is None:
                del going[name]
                continue
            index, value = item
            values = waiting.setdefault(index, {})
            values[name] = value
            if len(values) == len(readers):
                yield index, waiting.pop(index), True
    for index, values in waiting.items():
        yield index, values, False
