"""Conditions that records must meet, such as `aa.8 >= .4`, judged by the ends of confidence intervals."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from xml.sax.saxutils import quoteattr

from rbtools.errors import RbError, UsageError
from rbtools.records import expr, schema
from rbtools.records.expr.tokens import tokenize

_HOLDS: dict[str, Callable[[float, float], bool]] = {
    ">=": lambda value, limit: value >= limit,
    ">": lambda value, limit: value > limit,
    "<=": lambda value, limit: value <= limit,
    "<": lambda value, limit: value < limit,
}
# Characters that XML 1.0 (section 2.2) does not have or that terminals obey, and marks of direction.
_NO_XML = re.compile(
    "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


@dataclass(frozen=True)
class Assertion:
    """A metric, a field or an expression that has to be at least, or at most, `limit`.

    point: the value itself is compared, in place of an end of its interval.
    """

    text: str
    value: expr.Expression
    sign: str
    limit: float
    point: bool = False

    def problem(self, record: Mapping[str, Any]) -> str | None:
        """Why the record does not meet it, as a sentence; None if it does.

        A metric that it lacks does not meet it, nor one without an interval unless `point`; a field of the
        record, such as arch.params, is exact.
        """
        name = self.value.text
        try:
            value = self.value.number(record)
        except RbError as wrong:
            return f"{self.text} does not hold: {wrong}"
        if value is None:
            return f"{self.text} does not hold: the record has no {name}."
        if self.point or not self._is_measured(record):
            held, words = _HOLDS[self.sign](value, self.limit), f"{name} is {value:.6g}"
            return None if held else f"{self.text} does not hold: {words}."
        entry = _entry(record, name)
        ends = _interval(entry)
        if ends is None:
            return (
                f"{self.text} cannot be told: {name} is {value:.6g}, without an interval. 'point:{self.text}'"
                " compares the value itself."
            )
        if not math.isclose(value, entry.get("value") or 0.0, rel_tol=1e-6, abs_tol=1e-9):
            return (
                f"{self.text} cannot be told: {name} is {value:.6g} in metrics, but"
                f" {entry.get('value')} in its entry in evals."
            )
        end = ends[0] if self.sign in (">=", ">") else ends[1]
        if _HOLDS[self.sign](end, self.limit):
            return None
        side = "lower" if self.sign in (">=", ">") else "upper"
        return (
            f"{self.text} does not hold: {name} is {value:.6g} [{ends[0]:.6g}, {ends[1]:.6g}], and the"
            f" {side} end of the interval counts."
        )

    def _is_measured(self, record: Mapping[str, Any]) -> bool:
        """Whether the value depends on a metric, which has a sampling error."""
        metrics = record.get("metrics") or {}
        return any(expr.is_glob(name) or name in metrics for name in self.value.names)


def _entry(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    entries = [entry for entry in record.get("evals") or () if entry.get("metric") == name]
    return entries[-1] if entries else {}


def _interval(entry: Mapping[str, Any]) -> tuple[float, float] | None:
    for name, ends in entry.items():
        if schema.is_interval(name) and isinstance(ends, list) and len(ends) == 2:
            return float(ends[0]), float(ends[1])
    return None


def assertion(text: str, option: str = "--assert", *, point: bool = False) -> Assertion:
    """Parse `aa.8 >= .4`. Raises UsageError that names the option."""
    try:
        signs = [token for token in tokenize(text) if token.kind == "sign" and token.text in _HOLDS]
        if len(signs) != 1:
            raise RbError(f"'{text}' has {len(signs)} of >=, >, <= and <.")
        (sign,) = signs
        left, right = text[: sign.at].strip(), text[sign.at + len(sign.text) :].strip()
        value, limit = expr.compile(left), expr.compile(right)
        if limit.names or not value.names:
            raise RbError(f"'{text}' compares '{left}' with '{right}'.")
        number = limit.number({})
        if number is None:
            raise RbError(f"'{right}' is no number.")
    except RbError as wrong:
        raise UsageError(
            f"{option}: {wrong} Expected a metric or an expression, a comparison and a number, such as"
            " 'aa.8 >= .4'. Give the option once for each condition."
        ) from None
    return Assertion(text.strip(), value, sign.text, float(number), point)


class Verdict(NamedTuple):
    """Whether a record, by its name, meets an assertion; `problem` says why not."""

    record: str
    assertion: str
    problem: str | None


def verdicts(
    records: Sequence[tuple[str, Mapping[str, Any]]], assertions: Sequence[Assertion]
) -> list[Verdict]:
    """The verdict on each named record and each assertion."""
    return [Verdict(name, one.text, one.problem(record)) for name, record in records for one in assertions]


def to_junit(results: Sequence[Verdict], suite: str = "rb-rank") -> str:
    """The verdicts in JUnit's XML: a test case for each record (`classname`) and assertion (`name`)."""
    failures = sum(result.problem is not None for result in results)
    count = f'tests="{len(results)}" failures="{failures}"'
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuites {count}>"]
    lines.append(f"  <testsuite name={_attribute(suite)} {count}>")
    for result in results:
        case = f"<testcase classname={_attribute(result.record)} name={_attribute(result.assertion)}"
        if result.problem is None:
            lines.append(f"    {case}/>")
        else:
            lines.append(f"    {case}><failure message={_attribute(result.problem)}/></testcase>")
    return "\n".join([*lines, "  </testsuite>", "</testsuites>"]) + "\n"


def _attribute(text: str) -> str:
    return quoteattr(_NO_XML.sub("?", text))
