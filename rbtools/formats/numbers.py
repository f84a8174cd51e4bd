"""Reads and writes published numbers exactly: strings and JSON numbers, percentages and fractions."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, NamedTuple

from rbtools.errors import RbError

SCALES = ("percent", "fraction")
NOTHING = ("", "-", "null", "none", "n/a")  # texts for a missing number
# A number with its spread, such as 85.3 ± 0.2, also in LaTeX's spelling; and a number with a decimal comma.
_SPREAD = re.compile(
    r"\$?([-+]?[\d.,/e]+(?:\s?%)?)\s*(?:±|\+/?-|\$?\\pm\$?)\s*(?:\d+(?:\.\d*)?|\.\d+)\s*(%?)\$?"
)
COMMA = re.compile(r"[+-]?(?:\d{1,3}(?:\.\d{3})+|\d*),\d+(?:\s*%)?")
UNROUNDED = 8  # numbers with this many decimals count as not rounded


class NotFinite(str):
    """The word NaN, Infinity or -Infinity in a place where JSON expects a number."""


class NoNumber(RbError):
    """Raised if a number cannot be read; the message is a clause."""


class Number(NamedTuple):
    """A published number, with its value for records and the text as it was printed."""

    value: float | int
    text: str
    decimals: int


def number(raw: object, *, percent: bool = False) -> Number | None:
    """Read a published number: a JSON number, or a string such as "85.34", "85.34 %", "8/255" or "85.3 ± 0.2"
    (without the spread). A minus may be U+2212.

    With `percent`, the number is divided by 100, exactly. Returns None for null and for strings such as
    "n/a". Raises NoNumber.
    """
    if raw is None:
        return None
    if isinstance(raw, NotFinite):
        raise NoNumber(f"a number is {raw}, which JSON does not allow")
    if isinstance(raw, str):
        return _of_text(raw, percent)
    if isinstance(raw, bool) or not isinstance(raw, (int, float, Decimal)):
        raise NoNumber(f"found {kind(raw)} where a number was expected")
    text = shown(raw)
    return Number(raw, text, 0) if isinstance(raw, int) and not percent else _scaled(text, percent)


@lru_cache(maxsize=4096)  # a cell is read three times: is it a number, which one, and does it survive
def _of_text(raw: str, percent: bool) -> Number | None:
    if raw.strip().lower() in NOTHING:
        return None
    text = raw.strip().replace("\u2212", "-")
    if spread := _SPREAD.fullmatch(text):
        text = spread[1] if spread[1].endswith("%") else spread[1] + spread[2]
    if text.endswith("%"):
        text, percent = text[:-1].rstrip(), True
    return _scaled(text, percent)


def _scaled(text: str, percent: bool) -> Number:
    exact, decimals = _exact(text)
    if percent:
        exact, decimals = exact.scaleb(-2), decimals + 2
    value = float(exact)
    if value in (float("inf"), float("-inf")):
        raise NoNumber(f"the number {text[:20]} is too large")
    return Number(value, text, decimals)


def _exact(text: str) -> tuple[Decimal, int]:
    top, slash, bottom = text.partition("/")
    try:
        if "_" in text:  # an underscore is Python's own notation
            raise InvalidOperation
        exact = Decimal(top) / Decimal(bottom) if slash else Decimal(top)
    except (InvalidOperation, ZeroDivisionError):
        hint = " (if the comma is a decimal separator, give --decimal ,)" if COMMA.fullmatch(text) else ""
        raise NoNumber(f"found '{text[:20]}' where a number was expected{hint}") from None
    if not exact.is_finite():
        raise NoNumber(f"a number is {text}, which is not finite")
    exponent = exact.as_tuple().exponent
    return exact, UNROUNDED if slash else max(0, -int(exponent))


def printed(value: float | int, *, percent: bool = False) -> Decimal:
    """The decimal that `number` converts to exactly this value."""
    exact = Decimal(repr(value))
    return Decimal(shown(exact.scaleb(2))) if percent else exact


def shown(value: float | int | Decimal) -> str:
    """The shortest representation of a float, or all digits of a Decimal, without an exponent if possible."""
    exact = value if isinstance(value, Decimal) else Decimal(repr(value))
    return f"{exact:f}" if -20 < exact.adjusted() < 20 else str(exact)


def kind(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return shown(value)
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else repr(value)


def plain(value: object) -> Any:
    """A published JSON value for a record: Decimals become floats, and NaN and infinity become null."""
    if isinstance(value, NotFinite):
        return None
    if isinstance(value, Decimal):
        return float(value) if abs(float(value)) != float("inf") else None
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value
