"""The examples of a split that are used: `--indices LIST|FILE` or `--n N`."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError, near
from rbtools.lazy import np, torch
from rbtools.plain_files import read_text

if TYPE_CHECKING:
    from torch import Tensor

EXPECTED = (
    "whole numbers, counted from 0, separated by spaces, commas or line breaks; or JSON, either a list of"
    " numbers or an object of lists, one of which is selected with FILE:KEY"
)
ORDER = 2  # version of the order of `subset`, which is part of the keys of results
MOST = 10**7  # the largest range of examples, so that a mistyped range does not fill the memory
_RANGES = re.compile(r"\d{1,18}(-\d{1,18})?(,\d{1,18}(-\d{1,18})?)*")


@dataclass(frozen=True)
class Indices:
    """The numbers of chosen examples. `name` is "sha256:" and the hash of the numbers.

    The numbers are in ascending order or, with `in_order`, in the order of evaluation.
    """

    numbers: tuple[int, ...]
    name: str
    in_order: bool = False


def read(text: str, size: int) -> Indices:
    """The examples that `text` selects from a split of `size` examples.

    It contains numbers and ranges (`0-999,1500`), or is FILE, or is FILE:KEY if the file has several lists.
    The order of the numbers is ignored. NAS-Bench-201's split files are JSON objects of lists, and each list
    may be a pair with the name of its type: ["int", ["0", "3", ...]]. Raises RbError if the file is in
    another format, or if an example occurs twice or is outside the split.
    """
    source, numbers = _listed(text)
    if numbers[0] < 0 or numbers[-1] >= size:
        wrong = numbers[0] if numbers[0] < 0 else numbers[-1]
        raise RbError(
            f"{source} names the example {wrong}, but the split has {size} examples."
            f" Expected numbers from 0 to {size - 1}."
        )
    for number, other in itertools.pairwise(numbers):
        if number == other:
            raise RbError(f"{source} names the example {number} twice. Expected each example once.")
    return of(numbers)


def check(text: str) -> None:
    """Raise RbError if the text is invalid for splits of every size."""
    _listed(text)


def _listed(text: str) -> tuple[str, list[int]]:
    """The source of the numbers, for messages, and at least one number, in ascending order."""
    if _RANGES.fullmatch(text) and not os.path.exists(text):  # a long list is not a valid path
        numbers: list[int] = []
        for part in text.split(","):
            first, _, last = part.partition("-")
            low, high = int(first), int(last or first)
            if high >= MOST:
                raise RbError(f"--indices {text} names the example {high}. Expected numbers below {MOST}.")
            if high < low:
                raise RbError(f"--indices {text} has the range {part}, which is empty. Write {high}-{low}.")
            if len(numbers) + high - low >= MOST:
                raise RbError(f"--indices {text} names more than {MOST} examples. Name each example once.")
            numbers.extend(range(low, high + 1))
        return f"--indices {text}", sorted(numbers)
    path, key = _parts(text)
    try:
        content = read_text(path, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "it is not a text file"
        raise RbError(f"The file of indices {path} cannot be read ({reason}). Expected {EXPECTED}.") from None
    numbers = sorted(_numbers(path, _chosen(path, content, key)))
    if not numbers:
        raise RbError(f"The file of indices {path} is empty. Expected {EXPECTED}.")
    return f"The file of indices {path}", numbers


def of(numbers: Sequence[int], *, in_order: bool = False) -> Indices:
    """The examples with these numbers, in ascending order or, with `in_order`, in the order of evaluation."""
    texts = ("in order",) * in_order + tuple(map(str, numbers))
    digest = hashlib.sha256(" ".join(texts).encode()).hexdigest()
    return Indices(tuple(numbers), f"sha256:{digest}", in_order)


def _parts(text: str) -> tuple[Path, str | None]:
    path = Path(text).expanduser()
    file, colon, key = text.rpartition(":")
    if not colon or path.exists():
        return path, None
    return Path(file).expanduser(), key


def _chosen(path: Path, content: str, key: str | None) -> list[Any]:
    if content.lstrip()[:1] not in ("{", "["):
        if key is not None:
            raise RbError(
                f"The file of indices {path} is not a JSON object, so it has no '{key}'. Leave out :{key}."
            )
        return content.replace(",", " ").split()
    try:
        value: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RbError(f"The file of indices {path} is not JSON ({error}). Expected {EXPECTED}.") from None
    if isinstance(value, dict):
        keys, first = ", ".join(map(str, value)), next(iter(value), "")
        if key is None:
            raise RbError(f"The file of indices {path} has several lists: {keys}. Name one: {path}:{first}.")
        if key not in value:
            raise RbError(f"The file of indices {path} has no '{key}'.{near(key, value)} It has: {keys}.")
        value = value[key]
    elif key is not None:
        raise RbError(f"The file of indices {path} is one list, so it has no '{key}'. Leave out :{key}.")
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], list):
        value = value[1]
    if not isinstance(value, list):
        raise RbError(f"The file of indices {path} does not contain a list. Expected {EXPECTED}.")
    return value


def _numbers(path: Path, values: list[Any]) -> list[int]:
    numbers = []
    for value in values:
        try:
            if isinstance(value, bool) or not isinstance(value, int | str):
                raise ValueError
            numbers.append(int(value))
        except ValueError:
            raise RbError(f"The file of indices {path} contains {value!r}. Expected {EXPECTED}.") from None
    return numbers


def subset(labels: Tensor, n: int, seed: int) -> Tensor:
    """The examples of `--n N`: the first `n` examples in a seeded order. They represent the split.

    In the first n examples each class has its share of the whole, up to one or two examples, so the accuracy
    on them estimates the accuracy on all. (With simple random sampling, the shares vary as well, so the usual
    intervals are a little too wide here.) Among classes of nearly equal size, each cycle contains one example
    of every class that is not exhausted yet. Smaller subsets are prefixes of larger subsets. The order
    depends only on integer hashes and not on the random generator of a library.

    Shape: labels int64 (N,) -> int64 (min(n, N),) indices into the split, on the CPU.

    Raises RbError if n is below 1.
    """
    if n < 1:
        raise RbError(f"The number of examples is {n}. Expected 1 or more; without it, all are used.")
    numbers, classes, sizes = np.unique(labels.cpu().numpy(), return_inverse=True, return_counts=True)
    by_class = np.lexsort((_hash(np.arange(len(classes), dtype=np.uint64), seed), classes))
    place = np.empty(len(classes))  # of an example within its class, from 0 on
    place[by_class] = np.arange(len(classes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # The order of the classes within a cycle does not depend on the hashes of the examples.
    turn = np.argsort(np.lexsort((numbers, _hash(numbers.astype(np.uint64), seed ^ 0x636C617373))))
    if not _nearly_equal(sizes):
        # Systematic sampling: each class is spread evenly over the order. The starts differ, because
        # otherwise a short prefix would contain mainly large classes.
        place = (place + ((turn + 0.5) / len(sizes))[classes]) / sizes[classes]
    return torch.from_numpy(np.lexsort((turn[classes], place))[:n].copy())


def _nearly_equal(sizes: np.ndarray) -> bool:
    """Whether every prefix of cycles through the classes estimates the accuracy on all examples with a bias
    of at most half a standard error, however much the accuracies of the classes differ.

    The bias is at most the distance (in total variation) between the shares in the prefix and in the whole,
    and the standard error at most 1 / (2 sqrt(n)). Cycles are kept for such data, because results in
    stores and publications have this order.
    """
    taken = np.minimum(sizes[:, None], np.unique(sizes))  # after as many cycles as the size of some class
    n = taken.sum(0)
    distance = np.abs(taken / n - (sizes / sizes.sum())[:, None]).sum(0) / 2
    return bool((distance * 2 * np.sqrt(n)).max(initial=0) <= 0.5)


def _hash(values: np.ndarray, seed: int) -> np.ndarray:
    """A 64-bit hash of (seed, value) for each value: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    start = _mix(np.array([seed % 2**64], dtype=np.uint64))
    return _mix((values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + start)


def _mix(bits: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser, a bijection of uint64. Overflowing products wrap around."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = bits ^ (bits >> np.uint64(31))
    return mixed
