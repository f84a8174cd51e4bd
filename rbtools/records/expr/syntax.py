"""From the text of an expression to Python's syntax tree: names of metrics are no names of Python, so each is
replaced by one before Python parses the text."""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_right
from itertools import pairwise
from typing import NamedTuple

from rbtools.errors import RbError, shown

NAMES_RULE = "A hyphen or * without spaces belongs to the name ('apgd-ce.8'); with spaces it calculates"
_KEYWORDS = {"true": "True", "false": "False", "null": "None"} | {w: w for w in ("and", "or", "not", "in")}
_CLASS = r"\[!?[\w.-]+\]"  # of a glob: [13], [1-3]
# Ends in a letter, digit or glob, so that "acc- 0.1" is a name and a minus.
_REST = rf"(?:(?:[\w.*?-]|{_CLASS})*(?:[\w*?]|{_CLASS}))?"
_NAME = rf"(?:in(?=\[)|(?:[^\W\d]|[*?]){_REST})"
_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_TOKEN = re.compile(
    rf"""\s*(?:(?P<text>'[^']*'|"[^"]*")|(?P<number>{_NUMBER})|(?P<name>{_NAME})|(?P<sign>\*\*|//|[=!<>]=|\S))"""
)
_CLASSED = re.compile(rf"\s*(?P<name>{_CLASS}{_REST})")  # where an argument begins: elsewhere it is a list
_AFTER_VALUE = re.compile(r"\s*(?P<sign>\*\*|\*)")  # where a value ends, * multiplies
_BARE = re.compile(f"{_NAME}|{_CLASS}{_REST}")
_EXPECTED = (
    "Expected names, numbers, quoted texts, functions, + - * /, == != < <= > >=, in [...], and, or, not, such"
    " as acc > 0.8 and arch.none == 0"
)


class Token(NamedTuple):
    """`kind` is text, number, name (globs too), word (of the language) or sign; `at` its place, from 0."""

    kind: str
    text: str
    at: int


def tokens(text: str) -> list[Token]:
    """The tokens of an expression, valid or not."""
    found: list[Token] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        before = found[-1] if found else Token("sign", "(", 0)
        special = None
        if before.kind in ("text", "number", "name") or before.text in (")", "]"):
            special = _AFTER_VALUE.match(text, at)
        elif before.text in ("(", ","):
            special = _CLASSED.match(text, at)
        match = special or _TOKEN.match(text, at)
        assert match is not None and match.lastgroup is not None
        at, word = match.end(), match[match.lastgroup]
        found.append(
            Token("word" if word in _KEYWORDS else match.lastgroup, word, match.start(match.lastgroup))
        )
    return found


class ParsedText:
    """The syntax tree of an expression, `body`. Raises RbError if it does not parse."""

    def __init__(self, text: str) -> None:
        self.text, self._tokens, words = text, tokens(text), []
        self._starts: list[int] = []
        self._names: dict[str, str] = {}
        at = 0
        for kind, word, _ in self._tokens:
            if kind == "name":
                name = f"_{len(self._names)}"
                self._names[name] = word
                word = name
            word = "$" if word == "#" else word  # which would begin a comment
            words.append(ascii(word[1:-1]) if kind == "text" else _KEYWORDS.get(word, word))
            self._starts.append(at)
            at += len(words[-1]) + 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.body = ast.parse(" ".join(words), mode="eval").body
        except SyntaxError as wrong:
            number = bisect_right(self._starts, (wrong.offset or 1) - 1) - 1
            is_inside = 0 < (wrong.offset or 0) < at
            where = f"'{self._tokens[number].text}'" if is_inside else "the end"
            raise self.error(f"found {where}: {wrong.msg}") from None
        except (ValueError, RecursionError, MemoryError):
            raise self.error("it is too long or nests too deep") from None

    def name(self, node: ast.AST) -> str:
        """The name or glob that a node is; empty if it is something else."""
        return self._names[node.id] if isinstance(node, ast.Name) else ""

    def part(self, node: ast.expr) -> str:
        """A node as it was written."""
        first = self._tokens[bisect_right(self._starts, node.col_offset) - 1]
        last = self._tokens[bisect_right(self._starts, (node.end_col_offset or 1) - 1) - 1]
        return self.text[first.at : last.at + len(last.text)]

    def error(self, message: str) -> RbError:
        """The error for an expression that is not of this language."""
        return RbError(f"Expression '{shown(self.text)}' does not parse: {message}. {_EXPECTED}.")


def is_bare(text: str) -> bool:
    """Whether an item is only a name or a glob, so that it needs no evaluation."""
    return _BARE.fullmatch(text) is not None and text not in _KEYWORDS


def items(text: str) -> list[str]:
    """The items of a list such as `acc, mean(fgsm.*, pgd20.*)`; empty ones are left out.

    A comma inside parentheses, brackets or quotes does not separate.
    """
    cuts, depth = [-1], 0
    for _, sign, at in tokens(text):
        depth += (sign in ("(", "[")) - (sign in (")", "]"))
        if sign == "," and depth <= 0:
            cuts.append(at)
    parts = (text[start + 1 : end] for start, end in pairwise([*cuts, len(text)]))
    return [item.strip() for item in parts if item.strip()]
