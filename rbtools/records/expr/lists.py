"""Lists of expressions: where their commas are, and which items are names or globs by themselves."""

from __future__ import annotations

from rbtools.records.expr.tokens import is_word

_CLOSING = {"(": ")", "[": "]"}


def items(text: str) -> list[str]:
    """The items of a list such as `acc, mean(fgsm.*, pgd20.*)`; empty ones are left out.

    A comma inside parentheses, brackets or quotes separates nothing.
    """
    found, start, open_, quote = [], 0, 0, ""
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in _CLOSING:
            open_ += 1
        elif character in _CLOSING.values():
            open_ -= 1
        elif character == "," and open_ <= 0:
            found.append(text[start:at])
            start = at + 1
    return [item.strip() for item in [*found, text[start:]] if item.strip()]


def is_bare(item: str) -> bool:
    """Whether an item is nothing but a name or a glob, so that it needs no calculation."""
    return is_word(item)
