"""Conditions that records must meet, such as `aa.8 >= .4`, judged by the ends of confidence intervals."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from xml.sax.saxutils import quoteattr

from rbtools.errors import RbError, UsageError
from rbtools.records import expr, results, schema
from rbtools.records.expr.tokens import tokenize

_HOLDS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
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

        A record that lacks the metric, or (unless `point`) its interval, does not meet it. A field of the
        record, such as arch.params, is exact.
        """
        name = self.value.text
        try:
            value = self.value.number(record)
        except RbError as wrong:
            return f"{self.text} does not hold: {wrong}"
        if value is None:
            return f"{self.text} does not hold: the record has no {name}."
        # Only metrics have a sampling error; fields of the record are exact.
        metrics = record.get("metrics") or {}
        is_measured = any(expr.is_glob(used) or used in metrics for used in self.value.names)
        if self.point or not is_measured:
            held = _HOLDS[self.sign](value, self.limit)
            return None if held else f"{self.text} does not hold: {name} is {value:.6g}."
        entry = results.last_entry(record, name)
        intervals = (ends for field, ends in entry.items() if schema.is_interval(field))
        ends = next((ends for ends in intervals if isinstance(ends, list) and len(ends) == 2), None)
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
        side, end = ("lower", ends[0]) if self.sign in (">=", ">") else ("upper", ends[1])
        if _HOLDS[self.sign](end, self.limit):
            return None
        return (
            f"{self.text} does not hold: {name} is {value:.6g} [{ends[0]:.6g}, {ends[1]:.6g}], and the"
            f" {side} end of the interval counts."
        )


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


def to_junit(verdicts: Sequence[Verdict], suite: str = "rb-rank") -> str:
    """The verdicts in JUnit's XML: a test case for each record (`classname`) and assertion (`name`)."""

    def attribute(text: str) -> str:
        return quoteattr(_NO_XML.sub("?", text))

    count = f'tests="{len(verdicts)}" failures="{sum(one.problem is not None for one in verdicts)}"'
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuites {count}>"]
    lines.append(f"  <testsuite name={attribute(suite)} {count}>")
    for verdict in verdicts:
        case = f"    <testcase classname={attribute(verdict.record)} name={attribute(verdict.assertion)}"
        problem = verdict.problem
        end = "/>" if problem is None else f"><failure message={attribute(problem)}/></testcase>"
        lines.append(case + end)
    return "\n".join([*lines, "  </testsuite>", "</testsuites>"]) + "\n"
