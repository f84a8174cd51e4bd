"""The tokens of an expression, and the errors that point into it."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from rbtools.errors import RbError

NAMES_RULE = "A hyphen or * without spaces belongs to the name ('apgd-ce.8'); with spaces it calculates"
KEYWORDS = frozenset(("and", "or", "not", "in", "true", "false", "null"))

_CLOSING = {"(": ")", "[": "]"}
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_CLASS = r"\[!?[\w.-]+\]"  # of a glob: [13], [1-3]
# Ends in a letter, digit or glob, so that "acc- 0.1" is a name and a minus.
_REST = rf"(?:(?:[\w.*?-]|{_CLASS})*(?:[\w*?]|{_CLASS}))?"
_NAME = re.compile(rf"in(?=\[)|(?:[^\W\d]|[*?]){_REST}")
_CLASSED = re.compile(_CLASS + _REST)  # only where an argument or an item begins: elsewhere it is a list
_SIGN = re.compile(r"\*\*|&&|\|\||[=!<>]=|[-+*/<>()\[\],=&|!%^]")
_INSTEAD = {
    "**": "; there are no powers: multiply, or use sqrt()",
    "^": "; there are no powers: multiply, or use sqrt()",
    "=": "; equality is written ==",
    "&": "; write 'and'",
    "&&": "; write 'and'",
    "|": "; write 'or'",
    "||": "; write 'or'",
    "!": "; write 'not'",
    "%": "; write a fraction, 0.8 for 80%",
}


def is_bare(text: str) -> bool:
    """Whether an item is only a name or a glob, so that it needs no evaluation."""
    return any(form.fullmatch(text) for form in (_NAME, _CLASSED)) and text not in KEYWORDS


class Token(NamedTuple):
    """`kind` is number, text, name, glob, sign (keywords too) or end; `at` its place in `source`, from 0."""

    kind: str
    text: str
    source: str
    at: int


def tokenize(text: str) -> list[Token]:
    """Split an expression into tokens, the last one of kind "end". After a value `*` multiplies; elsewhere it
    begins a glob. Raises RbError for an invalid token.
    """
    tokens: list[Token] = []
    at = 0
    while True:
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it always matches, if only the empty text
        if at == len(text):
            return [*tokens, Token("end", "", text, at)]
        begins = not tokens or tokens[-1].text in ("(", ",")
        token, at = _next(text, at, bool(tokens) and _is_value(tokens[-1]), begins)
        tokens.append(token)


def _is_value(token: Token) -> bool:
    return token.kind not in ("sign", "end") or token.text in (")", "]", "true", "false", "null")


def _next(text: str, at: int, after_value: bool, begins: bool) -> tuple[Token, int]:
    here = Token("sign", text[at], text, at)
    if here.text in "'\"":
        end = text.find(here.text, at + 1)
        if end < 0:
            raise syntax_error(here, f"the quoted text has no end; close it with {here.text}")
        return here._replace(kind="text", text=text[at + 1 : end]), end + 1
    if match := _NUMBER.match(text, at):
        return _number(here._replace(kind="number", text=match[0])), match.end()
    match = _NAME.match(text, at) or (_CLASSED.match(text, at) if begins else None)
    if match and not (after_value and here.text == "*"):
        kind = "sign" if match[0] in KEYWORDS else "glob" if any(s in match[0] for s in "*?[") else "name"
        return here._replace(kind=kind, text=match[0]), match.end()
    if (match := _SIGN.match(text, at)) and match[0] not in _INSTEAD:
        return here._replace(text=match[0]), match.end()
    word = match[0] if match else here.text
    raise syntax_error(here, f"{word!r} is no operator{_INSTEAD.get(word, '')}")


def _number(token: Token) -> Token:
    end = token.at + len(token.text)
    following = token.source[end : end + 1]
    if following.isalnum() or following in ("_", "."):
        word = token.text + following
        raise syntax_error(token, f"'{word}' is neither a number nor a name, which begins with a letter")
    if not math.isfinite(float(token.text)):
        raise syntax_error(token, "the number is too large")
    return token


def syntax_error(token: Token, message: str) -> RbError:
    """The error for an expression that does not parse; `^` marks the place."""
    return RbError(f"Expression {_pointed(token, 'does not parse')}: {message}.")


def value_error(token: Token, message: str) -> RbError:
    """The error for an expression that has no value for this record."""
    return RbError(f"Expression {_pointed(token, 'has no value')}: {message}.")


def _pointed(token: Token, verb: str, around: int = 40) -> str:
    text, at = token.source, token.at
    before, after = text[max(0, at - around) : at], text[at : at + around]
    shown = f"{'...' * (at > around)}{before}^{after}{'...' * (at + around < len(text))}"
    line = "".join(character if character.isprintable() else " " for character in shown)
    return f"'{line}' {verb} at the ^ (character {at + 1})"


def items(text: str) -> list[str]:
    """The items of a list such as `acc, mean(fgsm.*, pgd20.*)`; empty ones are left out.

    A comma inside parentheses, brackets or quotes does not separate.
    """
    parts, start, depth, quote = [], 0, 0, ""
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in _CLOSING:
            depth += 1
        elif character in _CLOSING.values():
            depth -= 1
        elif character == "," and depth <= 0:
            parts.append(text[start:at])
            start = at + 1
    return [item.strip() for item in [*parts, text[start:]] if item.strip()]
