"""Examples of a split chosen by their numbers: `--indices 0-999`, or `--indices FILE`."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rbtools.errors import RbError, near

EXPECTED = (
    "whole numbers from 0 on, separated by spaces, commas or line ends, or JSON: a list of them, or an object"
    " of such lists, one of which is named: FILE:KEY"
)
MOST = 10**7  # examples of a range: a mistyped one must not fill the memory
_RANGES = re.compile(r"\d{1,18}(-\d{1,18})?(,\d{1,18}(-\d{1,18})?)*")


@dataclass(frozen=True)
class Indices:
    """Chosen examples, in ascending order. `name` is "sha256:" and the hash of their numbers."""

    numbers: tuple[int, ...]
    name: str


def read(text: str, size: int) -> Indices:
    """The examples that a text names, of a split that has `size`: numbers and ranges (`0-999,1500`), or FILE,
    or FILE:KEY for one list of several.

    Their order means nothing. NAS-Bench-201's split files are objects of lists, each perhaps in
    a pair with the name of its type: ["int", ["0", "3", ...]]. Raises RbError where the file is something
    else, or names an example twice or one that there is not.
    """
    source, numbers = _listed(text)
    if numbers[0] < 0 or numbers[-1] >= size:
        wrong = numbers[0] if numbers[0] < 0 else numbers[-1]
        raise RbError(
            f"{source} names the example {wrong}, and the split has {size}."
            f" Expected numbers from 0 to {size - 1}."
        )
    for one, other in itertools.pairwise(numbers):
        if one == other:
            raise RbError(f"{source} names the example {one} twice. Expected each once.")
    return of(numbers)


def check(text: str) -> None:
    """Raise RbError where no split could be read through this file, before anybody asks for one."""
    _listed(text)


def _listed(text: str) -> tuple[str, list[int]]:
    """What names them, for a message, and the numbers in ascending order, at least one."""
    if _RANGES.fullmatch(text) and not Path(text).exists():
        return f"--indices {text}", _spelled_out(text)
    path, key = _parts(text)
    try:
        content = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise RbError(f"The file of indices {path} cannot be read ({reason}). Expected {EXPECTED}.") from None
    numbers = sorted(_numbers(path, _chosen(path, content, key)))
    if not numbers:
        raise RbError(f"The file of indices {path} is empty. Expected {EXPECTED}.")
    return f"The file of indices {path}", numbers


def _spelled_out(text: str) -> list[int]:
    """The numbers of `0-999,1500` in ascending order."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if high >= MOST:
            raise RbError(f"--indices {text} names the example {high}. Expected numbers below {MOST}.")
        if high < low:
            raise RbError(f"--indices {text} has the range {part}, which is empty. Write {high}-{low}.")
        if len(numbers) + high - low >= MOST:
            raise RbError(f"--indices {text} names more than {MOST} examples. Expected each once.")
        numbers.extend(range(low, high + 1))
    return sorted(numbers)


def of(numbers: Sequence[int]) -> Indices:
    """Examples by their numbers, in ascending order."""
    digest = hashlib.sha256(" ".join(map(str, numbers)).encode()).hexdigest()
    return Indices(tuple(numbers), f"sha256:{digest}")


def _parts(text: str) -> tuple[Path, str | None]:
    whole = Path(text).expanduser()
    file, colon, key = text.rpartition(":")
    if not colon or whole.exists():
        return whole, None
    return Path(file).expanduser(), key


def _chosen(path: Path, content: str, key: str | None) -> list[Any]:
    """What stands in the file as a list of numbers or texts."""
    if content.lstrip()[:1] not in ("{", "["):
        if key is not None:
            raise RbError(
                f"The file of indices {path} is no JSON object, so it has no '{key}'. Leave it out."
            )
        return content.replace(",", " ").split()
    try:
        found: Any = json.loads(content)
    except ValueError as error:
        raise RbError(f"The file of indices {path} is not JSON ({error}). Expected {EXPECTED}.") from None
    if isinstance(found, dict):
        known, first = ", ".join(map(str, found)), next(iter(found), "")
        if key is None:
            raise RbError(f"The file of indices {path} has several lists: {known}. Name one: {path}:{first}.")
        if key not in found:
            raise RbError(f"The file of indices {path} has no '{key}'.{near(key, found)} It has: {known}.")
        found = found[key]
    elif key is not None:
        raise RbError(f"The file of indices {path} is one list, so it has no '{key}'. Leave it out.")
    if isinstance(found, list) and len(found) == 2 and isinstance(found[1], list):
        found = found[1]
    if not isinstance(found, list):
        raise RbError(f"The file of indices {path} holds no list there. Expected {EXPECTED}.")
    return found


def _numbers(path: Path, values: list[Any]) -> list[int]:
    numbers = []
    for value in values:
        try:
            if isinstance(value, bool) or not isinstance(value, int | str):
                raise ValueError
            numbers.append(int(value))
        except ValueError:
            raise RbError(f"The file of indices {path} holds {value!r}. Expected {EXPECTED}.") from None
    return numbers
