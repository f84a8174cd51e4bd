"""Splits an expression into tokens, and a list of expressions into items."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

NAMES_RULE = "A hyphen or * without spaces belongs to the name ('apgd-ce.8'); with spaces it is an operator"
KEYWORDS = {"true": "True", "false": "False", "null": "None"} | {w: w for w in ("and", "or", "not", "in")}
_CLASS = r"\[!?[\w.-]+\]"  # part of a glob: [13], [1-3]
# A name ends in a letter, digit or glob, so "acc- 0.1" is a name and a minus.
_REST = rf"(?:(?:[\w.*?-]|{_CLASS})*(?:[\w*?]|{_CLASS}))?"
_NAME = rf"(?:in(?=\[)|(?:[^\W\d]|[*?]){_REST})"
_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_TOKEN = re.compile(
    rf"""\s*(?:(?P<text>'[^']*'|"[^"]*")|`(?P<exact>[^`]+)`|(?P<number>{_NUMBER})|(?P<name>{_NAME})|(?P<sign>\*\*|//|[=!<>]=|\S))"""
)
_CLASSED = re.compile(rf"\s*(?P<name>{_CLASS}{_REST})")  # only at the start of an argument; else a list
_AFTER_VALUE = re.compile(r"\s*(?P<sign>\*\*|\*)")  # after a value, * multiplies
_BARE = re.compile(f"{_NAME}|{_CLASS}{_REST}")


class Token(NamedTuple):
    """`kind` is "text", "number", "name" (also of a glob), "exact" (a name in backticks, or one that is
    known), "word" (a keyword) or "sign" (an operator or bracket); `at` is the position of its first
    character, from 0."""

    kind: str
    text: str
    at: int


def tokens(text: str, known: Sequence[str] = ()) -> list[Token]:
    """The tokens of an expression, which need not be valid. Names that are `known` need no backticks."""
    found: list[Token] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        before = found[-1] if found else Token("sign", "(", 0)
        special = None
        if before.kind in ("text", "number", "name", "exact") or before.text in (")", "]"):
            special = _AFTER_VALUE.match(text, at)
        elif here := [name for name in known if text[at:].lstrip().startswith(name)]:
            name = max(here, key=len)
            at = text.index(name, at)
            found.append(Token("exact", name, at))
            at += len(name)
            continue
        elif before.text in ("(", ","):
            special = _CLASSED.match(text, at)
        match = special or _TOKEN.match(text, at)
        assert match is not None and match.lastgroup is not None
        at, kind, word = match.end(), match.lastgroup, match[match.lastgroup]
        found.append(Token("word" if kind == "name" and word in KEYWORDS else kind, word, match.start(kind)))
    return found


def is_bare(text: str) -> bool:
    """True if an item is only a name or a glob, which needs no evaluation."""
    return _BARE.fullmatch(text) is not None and text not in KEYWORDS


def items(text: str) -> list[str]:
    """Return the items of a list such as `acc, mean(fgsm.*, pgd20.*)`; commas inside brackets or backticks do
    not separate."""
    cuts, depth = [-1], 0
    for _, sign, at in tokens(text):
        depth += (sign in ("(", "[")) - (sign in (")", "]"))
        if sign == "," and depth <= 0:
            cuts.append(at)
    parts = (text[start + 1 : end] for start, end in pairwise([*cuts, len(text)]))
    return [without_backticks(item) for item in parts if item.strip()]


def without_backticks(item: str) -> str:
    """Return the item, without blanks around it, and without backticks if it is only a name."""
    kinds = [(token.kind, token.text) for token in tokens(item)]
    return kinds[0][1] if len(kinds) == 1 and kinds[0][0] == "exact" else item.strip()
