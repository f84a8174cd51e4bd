"""Matches the classes of a data set with the classes of a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rbtools.datasets import WITH_PATH
from rbtools.datasets.base import MOST_CLASSES, are_numbers
from rbtools.datasets.imagefolder import named
from rbtools.errors import RbError

if TYPE_CHECKING:
    from rbtools.inputs.data import Data


def of_network(
    data: str, there: list[str], asked: list[str], names: Sequence[str], count: int | None
) -> list[str] | None:
    """The classes in the order of the network's outputs, with the names of the data set. Returns None if this
    is the order of the data set, or if no order is known.

    `there` contains the classes of the data set. `asked` is the value of --classes, and may be empty. `names`
    and `count` describe the classes of the network, as far as they are known. Classes are matched by name. If
    the network has more classes than the data set, a number in --classes is the number of a class of the
    network. Raises RbError if --classes is ambiguous.
    """
    if count is not None and len(names) != count:
        names = ()
    known, most = _numbers(names), count or MOST_CLASSES
    own, size = [known.get(_word(name), -1) for name in there], len(names)
    if -1 in own:
        own, size = [], 0
        by_number = are_numbers(there) and max(map(int, there)) < most
        if by_number and (asked or (data.partition(":")[0] in WITH_PATH and (count or 0) > len(there))):
            own = [int(name) for name in there]
        elif asked and count in (None, len(there)):
            own, size = list(range(len(there))), len(there)
    chosen, numbers = there, own
    if asked:
        places = {word: own.index(number) for word, number in known.items() if number in own}
        places |= {str(number): place for place, number in enumerate(own)}
        places |= {_word(name): place for place, name in enumerate(there)} if own else {}
        found = [places.get(_word(word), -1) for word in asked]
        if -1 not in found:
            chosen, numbers = [there[place] for place in found], [own[place] for place in found]
        elif len(asked) == len(there):
            numbers = [int(word) if are_numbers([word]) else known.get(_word(word), -1) for word in asked]
        else:
            numbers = []
    if len(set(numbers)) < max(len(numbers), 1) or not all(0 <= number < most for number in numbers):
        if asked:
            raise RbError(
                f"--classes is {','.join(asked[:20])}, but the data set {data} has the classes"
                f" {', '.join(there[:20])}{', ...' if len(there) > 20 else ''}. Expected names from this"
                " list, if their numbers in the network are known, or a number for each"
                f" class{f' from 0 to {count - 1}' if count else ''}."
            )
        return None
    size = count or max(size, *(number + 1 for number in numbers))
    by_index = dict(zip(numbers, chosen, strict=True))
    once = Counter(names)
    others = {index: name for index, name in enumerate(names) if once[name] == 1 and name not in there}
    order = named({**others, **by_index}, size, there)
    return None if order == there else order


def sentence(order: list[str], data: Data) -> str:
    there = [f"{order[index]} is {index}" for index in data.about.present or range(len(order))]
    more = f" and {len(there) - 6} more" if len(there) > 6 else ""
    return f"{data.name}: numbers of its classes in the network: {', '.join(there[:6])}{more}."


def _numbers(names: Sequence[str]) -> dict[str, int]:
    """The number of each class by name, and by each synonym ("tabby, tabby cat") of only one class."""
    words: dict[str, set[int]] = {}
    for index, name in enumerate(names):
        for word in (name, *name.split(",")):
            words.setdefault(_word(word), set()).add(index)
    return {word: indices.pop() for word, indices in words.items() if len(indices) == 1}


def _word(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())
