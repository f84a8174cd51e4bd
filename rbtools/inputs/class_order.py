"""Which classes of a network the classes of a data set are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rbtools.datasets import WITH_PATH
from rbtools.datasets.base import are_numbers
from rbtools.datasets.imagefolder import named
from rbtools.errors import RbError

if TYPE_CHECKING:
    from rbtools.inputs.data import Data

__all__ = ["named", "of_network", "sentence"]


def of_network(
    data: str, there: list[str], asked: list[str], names: Sequence[str], count: int | None
) -> list[str] | None:
    """The classes in the network's order, those of the data set by their names there; None if that is the
    data set's own order, or nothing tells another.

    there: the data set's classes. asked: --classes; may be empty. names, count: the network's classes, as far
    as they are known. Classes are matched by name; numbers are the network's, where it has more classes.
    Raises RbError for an unclear --classes.
    """
    if count is not None and len(names) != count:
        names = ()
    chosen = asked if asked and set(asked) <= set(there) else there
    if asked and len(chosen) != len(asked):
        raise _unclear(data, there, asked, f"a name of each of the {len(there)} classes for the network")
    words = asked or there
    known = _numbers(names)
    numbers = [known.get(_word(word), -1) for word in words]
    if not words or -1 in numbers:
        if are_numbers(words) and (asked or (_is_own(data) and (count or 0) > len(there))):
            numbers = [int(word) for word in words]
        elif asked and chosen is asked and count in (None, len(there)):
            numbers = [there.index(word) for word in words]
        elif asked:
            raise _unclear(data, there, asked, "numbers, because nothing tells those of the network")
        else:
            return None
    size = count or max(len(names), max(numbers) + 1)
    if len(set(numbers)) < len(numbers) or max(numbers) >= size:
        if asked:
            raise _unclear(data, there, asked, f"different classes from 0 to {size - 1}")
        return None
    by_index = dict(zip(numbers, chosen, strict=True))
    taken = {*chosen, *(name for name in names if list(names).count(name) > 1)}
    others = {index: name for index, name in enumerate(names) if name not in taken and index not in by_index}
    order = named({**by_index, **others}, size)
    return None if order == there else order


def sentence(order: list[str], data: Data) -> str:
    """What was done with the classes, for the user."""
    there = [(order[index], index) for index in data.about.present or range(len(order))]
    shown = ", ".join(f"{name} is {index}" for name, index in there[:6]) + (", ..." if len(there) > 6 else "")
    return f"{data.name}: {len(there)} of the network's {len(order)} classes, by its numbers: {shown}."


def _is_own(data: str) -> bool:
    """Whether it is the user's data set, whose numbers may be those of a network with more classes."""
    return data.partition(":")[0] in WITH_PATH


def _numbers(names: Sequence[str]) -> dict[str, int]:
    """The number of each name and of each synonym ("tabby, tabby cat") that is of one class only."""
    words: dict[str, set[int]] = {}
    for index, name in enumerate(names):
        for word in (name, *name.split(",")):
            words.setdefault(_word(word), set()).add(index)
    return {word: indices.pop() for word, indices in words.items() if len(indices) == 1}


def _word(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())


def _unclear(data: str, there: list[str], asked: list[str], expected: str) -> RbError:
    return RbError(
        f"--classes is {','.join(asked[:20])}, and the data set {data} has the classes"
        f" {', '.join(there[:20])}{', ...' if len(there) > 20 else ''}. Expected some of these, or {expected}."
    )
