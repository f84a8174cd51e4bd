"""Checks the value of a field against its type, its choices, its bounds and its rule."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
from collections.abc import Callable
from typing import Any

from rbtools.errors import RbError, near, shown

MOST = 2**63 - 1  # the largest whole number in a record

# The values of `check`: a rule for a number, and its text.
RULES: dict[str, tuple[Callable[[float], bool], str]] = {
    "positive": (lambda value: value > 0, "above 0"),
    "non-negative": (lambda value: value >= 0, "0 or more"),
    "count": (lambda value: value >= 1, "1 or more"),
    "fraction": (lambda value: 0 <= value <= 1, "from 0 to 1"),
    "below one": (lambda value: 0 <= value < 1, "at least 0 and below 1"),
    "share": (lambda value: 0 <= value < 1, "a share of at least 0 and below 1"),
    "quality": (lambda value: 1 <= value <= 100, "from 1 to 100"),
}


def check_field(field: dataclasses.Field[Any], value: Any, label: str, norm: Any, eps: Any) -> Any:
    """Return the value of a field, converted by `plain`. Raises RbError if the value is out of range. The
    method's `norm` and `eps` limit its distances."""
    choices = field.metadata.get("choices")
    if value is None and (field.default is None or "None" in str(field.type)):
        return None
    if choices and isinstance(value, str | None) and value not in choices:
        raise RbError(f"{label} is '{value}'.{near(str(value), choices)} Choose from: {', '.join(choices)}.")
    value = plain(field, value, label)
    check_number(field, value, label)
    if isinstance(value, float | int) and (field.name == "eps" or field.metadata.get("unit") == "eps"):
        # a default step may be 2.5 eps; attacks that search within any distance have a larger default
        larger = field.default if field.name == "eps" else 2.5 * eps if isinstance(eps, float | int) else 0.0
        most = max(1.0, larger if isinstance(larger, float | int) else 0.0)
        # searches on a lattice round eps up
        if value < 0 or (norm == "linf" and value > most * (1 + 1e-5)):
            expected = "0 to 1 (pixels are in [0, 1])" if norm == "linf" else "0 or more"
            hint = f"; {value:g}/255 is {field.name}={value:g} / 255" if 1 < value <= 255 else ""
            raise RbError(f"{label} is {value:g}. Expected {expected}{hint}.")
    return value


_KINDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "bool": (lambda value: {True: True, False: False}[value], "True or False"),
    "int": (operator.index, "a whole number"),
    "float": (float, "a number"),
    "str": (operator.methodcaller("__str__"), "a string"),
}


def plain(field: dataclasses.Field[Any], value: Any, label: str) -> Any:
    """Convert a number, a string or a switch to the type of its field. Raises RbError for another type."""
    kind = kind_of(field)
    if kind not in _KINDS or type(value).__name__ == kind or (kind, type(value)) == ("float", int):
        return value
    made, expected = _KINDS[kind]
    wrong = isinstance(value, str) != (kind == "str") or (isinstance(value, bool) and kind != "bool")
    with contextlib.suppress(TypeError, ValueError, KeyError, OverflowError):
        if not wrong:
            return made(value)
    raise RbError(f"{label} is {shown(repr(value))}. Expected {expected}.")


def check_number(field: dataclasses.Field[Any], value: Any, label: str) -> None:
    """Raise RbError if a number is not finite, or if the field's `check` or `bounds` exclude it."""
    if not isinstance(value, int | float):
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise RbError(f"{label} is {value:g}. Expected a finite number.")
    if abs(value) > MOST and isinstance(value, int):
        raise RbError(f"{label} is {value}, which is too large. Expected {MOST} at most.")
    rule, bounds = field.metadata.get("check"), field.metadata.get("bounds")
    holds, words = RULES[rule] if rule else within(bounds) if bounds else (None, "")
    if holds is not None and not holds(value):
        raise RbError(f"{label} is {value:g}. It must be {words}.")


def within(bounds: str) -> tuple[Callable[[float], bool], str]:
    """Return the rule for bounds such as [1, inf) or (0, 1), and its description in words."""
    least, most = map(float, bounds[1:-1].split(","))
    low, high = (operator.gt, operator.ge)[bounds[0] == "["], (operator.lt, operator.le)[bounds[-1] == "]"]
    first = f"{least:.0f} or more" if bounds[0] == "[" else f"above {least:.0f}"
    last = f"{most:.0f} at most" if bounds[-1] == "]" else f"below {most:.0f}"
    words = first if most == math.inf else f"{first}, and {last}"
    return (lambda value: low(value, least) and high(value, most)), words


def kind_of(field: dataclasses.Field[Any]) -> str:
    """The name of the type of a field's values, such as int."""
    return str(getattr(field.type, "__name__", field.type)).removesuffix(" | None")
