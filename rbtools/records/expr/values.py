"""Operators and functions on values, which do not depend on names, records or syntax.

Values are the values of JSON: numbers, strings, true, false and null. All numbers are finite.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rbtools.records.results import is_number
from rbtools.registry import imported

Number = int | float


class NoValue(Exception):
    """An operator or function has no result; the message is only part of a sentence."""


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    if isinstance(value, int | float):
        return "a number"
    return "a list" if isinstance(value, list) else "an object"


def number(value: object, taker: str) -> Number:
    """Return a finite number. Raises NoValue for any other value, including true and false."""
    if not is_number(value):
        raise NoValue(f"{taker} takes numbers, found {kind(value)}")
    return _finite(value)


def _finite(value: Number) -> Number:
    # Integers, too: values that are stored or compared later must fit a float.
    if not abs(value) <= sys.float_info.max:
        raise NoValue("the result is not a finite number")
    return value


def truth(value: object, taker: str) -> bool:
    """Return the value if it is true or false. Raises NoValue for any other value."""
    if not isinstance(value, bool):
        raise NoValue(f"{taker} takes conditions such as acc > 0.5, found {kind(value)}")
    return value


def calculate(sign: str, left: object, right: object) -> Number:
    """Apply an arithmetic operator. Raises NoValue if there is no finite result."""
    left, right = number(left, f"'{sign}'"), number(right, f"'{sign}'")
    try:
        result: Number = _ARITHMETIC[sign](left, right)
    except ZeroDivisionError:
        raise NoValue("division by 0") from None
    except OverflowError:
        raise NoValue("the result is not a finite number") from None
    return _finite(result)


def same(left: object, right: object) -> bool:
    """Compare two values as in JSON: 1 and 1.0 are equal, but 1 and true are not."""
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def compare(sign: str, left: Any, right: Any) -> bool:
    """Compare two values. Raises NoValue if `<` or `>` compares neither two numbers nor two strings."""
    if sign in ("in", "not in"):
        return any(same(left, item) for item in right) == (sign == "in")
    if sign in ("==", "!="):
        return same(left, right) == (sign == "==")
    if not (isinstance(left, str) and isinstance(right, str)):
        for value, other in ((left, right), (right, left)):
            if not is_number(value):
                raise NoValue(
                    f"'{sign}' compares two numbers or two strings, found {kind(value)} and {kind(other)}"
                )
    return _ORDER[sign](left, right)


def _mean(values: Sequence[Number]) -> Number:
    return math.fsum(values) / len(values)


def _total(values: Sequence[Number]) -> Number:
    return sum(values) if all(isinstance(value, int) for value in values) else math.fsum(values)


def _std(values: Sequence[Number]) -> Number:
    if len(values) < 2:
        raise NoValue("std() needs at least two values")
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) * (value - mean) for value in values) / (len(values) - 1))


def _log(values: Sequence[Number]) -> Number:
    if values[0] <= 0:
        raise NoValue(f"log() takes a number above 0, found {values[0]}")
    return math.log(values[0])


def _sqrt(values: Sequence[Number]) -> Number:
    if values[0] < 0:
        raise NoValue(f"sqrt() takes a number of 0 or more, found {values[0]}")
    return math.sqrt(values[0])


_OF_ONE: dict[str, Callable[[Sequence[Number]], Number]] = {
    "abs": lambda values: abs(values[0]),
    "log": _log,
    "sqrt": _sqrt,
}
_OF_MANY: dict[str, Callable[[Sequence[Number]], Number]] = {
    "mean": _mean,
    "min": min,
    "max": max,
    "sum": _total,
    "std": _std,
}
# Functions of a record and one value, as "module:function", loaded on use.
OF_RECORD = {
    "distance": "rbtools.spaces.nasbench201:distance",
    "optimality": "rbtools.scoring.optimality:optimality",
}
# Functions of a record and the names of some of its metrics, in the same form.
OF_METRICS = {
    "union": "rbtools.scoring.union:union",
    "union.common": "rbtools.scoring.union:common_union",
    "class.min": "rbtools.scoring.per_class:worst",
}
FUNCTIONS = (*_OF_MANY, "count", *_OF_ONE, *OF_RECORD, *OF_METRICS)


def takes_one(function: str) -> bool:
    """True if the function has exactly one argument; all other functions have one or more arguments."""
    return function in _OF_ONE or function in OF_RECORD or function == "class.min"


def of_record(function: str) -> Callable[[Mapping[str, Any], Any], Number]:
    """Load a function of a record and of a value or names, which raises RbError if data are missing."""
    loaded: Callable[[Mapping[str, Any], Any], Number] = imported((OF_RECORD | OF_METRICS)[function])
    return loaded


def call(function: str, values: Sequence[Any]) -> Number:
    """Apply a function. Raises NoValue for a value that the function does not accept."""
    if function == "count":
        return len(values)
    apply = _OF_ONE.get(function) or _OF_MANY[function]
    try:
        return _finite(apply([number(value, f"{function}()") for value in values]))
    except OverflowError:
        raise NoValue("the result is not a finite number") from None
