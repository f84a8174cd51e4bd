"""Errors that are the user's to mend, written as finished sentences.

A message says what was found, what was expected and what to do next. Any exception that is not an
`RbError` is a bug of rbtools and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RbError(Exception):
    """The work cannot be done as asked; `str(error)` is the whole message."""


class UsageError(RbError):
    """The command line itself is wrong (exit status 2)."""


class Pending(RbError):
    """Work that a dry run would have to do; nothing is wrong. `waiting`: for a training that comes first."""

    def __init__(self, message: str = "", *, waiting: bool = False) -> None:
        super().__init__(message)
        self.waiting = waiting


def one_line(text: str) -> str:
    """The text with line ends and what else could move a terminal's cursor as escapes."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def shown(text: str, most: int = 80) -> str:
    """A name from somebody's file as a message can have it: on one line, and not for ever."""
    line = one_line(text[: most + 1])
    return line if len(line) <= most else line[:most] + "..."


# What others call the same.
_SAME = {"normal": "gaussian", "autoattack": "aa", "standard": "erm", "natural": "erm"}


def near(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" with the nearest known names, or an empty string.

    That is another word for the same, then what ends in the name (`train.method`), then similar spellings.
    """
    plain: dict[str, str] = {}  # PGD is near to pgd
    for word in known:
        plain.setdefault(word.casefold(), word)
    text = name.casefold()
    if (same := _SAME.get(text)) in plain:
        close = [plain[str(same)]]
    else:
        ends = [word for word in plain if text.isidentifier() and word.endswith(f".{text}")]
        similar = difflib.get_close_matches(text, plain, n=3, cutoff=0.5)
        close = [plain[word] for word in dict.fromkeys([*ends, *similar])][:3]
    if not close:
        return ""
    return " Did you mean " + " or ".join(f"'{shown(word)}'" for word in close) + "?"


def unknown(kind: str, name: str, known: Iterable[str], error: type[RbError] = RbError) -> RbError:
    """Return the error for a `name` that is not among the `known` ones of this `kind`."""
    known = list(known)
    listed = ", ".join(shown(word) for word in known[:40]) + (", ..." if len(known) > 40 else "")
    return error(f"Unknown {kind} '{shown(name)}'.{near(name, known)} Known: {listed}.")
