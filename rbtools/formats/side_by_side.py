"""Several files that list the same things under the same ids, read together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)


def side_by_side(readers: Mapping[K, Iterator[tuple[str, Any]]]) -> Iterator[tuple[str, dict[K, Any], bool]]:
    """(id, reader -> value, whether all readers had it) as soon as an id is complete, then what is not.

    One item of each is read in turn: where all files have one order, no more than one id is held.
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
            found = waiting.setdefault(index, {})
            found[name] = value
            if len(found) == len(readers):
                yield index, waiting.pop(index), True
    for index, found in waiting.items():
        yield index, found, False
