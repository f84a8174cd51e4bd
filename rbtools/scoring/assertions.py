"""Conditions that records must meet, such as `aa.8 >= .4`, tested with the ends of confidence intervals."""

from __future__ import annotations

import io
import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rbtools.errors import RbError, UsageError
from rbtools.records import expr, results, schema
from rbtools.scoring import comparable, means, paired

REFERENCE = "reference"  # on the right side of a condition: the value of the reference of --paired
_HOLDS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
# Characters that XML 1.0 (section 2.2) excludes, control characters of terminals, and direction marks.
_NO_XML = re.compile(
    "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


@dataclass(frozen=True)
class Assertion:
    """A condition on a metric, a field or an expression, such as `aa.8 >= .4`. If `point` is true, the value
    is compared instead of an end of its interval. If `relative` is true, the limit is added to the
    reference's value of the same metric (`aa.8 >= reference - .01`)."""

    text: str
    value: expr.Expression
    sign: str
    limit: float
    point: bool = False
    relative: bool = False

    @property
    def name(self) -> str:
        return f"{self.text} (value)" if self.point else self.text

    def problem(self, record: Mapping[str, Any], reference: Mapping[str, Any] | None = None) -> str | None:
        """Returns the reason why the record does not meet the condition, or None if the record meets it.
        Without `point`, a metric must have an interval; a field such as arch.params needs no interval."""
        comparison = record.get("paired") or {}
        if self.relative and comparison and "metrics" not in comparison:
            return None  # the reference itself
        try:
            if self.relative and reference is not None:
                self._check_comparable(record, reference)
            if self.point:
                return self._problem_of_value(record, reference)
            what, value, ends = self._compared(comparison) if self.relative else self._measured(record)
        except RbError as wrong:
            return str(wrong)
        if ends is None:
            return self._problem_of_value(record, reference)
        side, end = ("lower", ends[0]) if self.sign in (">=", ">") else ("upper", ends[1])
        if _HOLDS[self.sign](end, self.limit):
            return None
        return (
            f"{self.text} does not hold: {what} {value:.6g} [{ends[0]:.6g}, {ends[1]:.6g}], and the"
            f" {side} end of the interval decides.{self._images_needed(comparison) if self.relative else ''}"
        )

    def _images_needed(self, comparison: Mapping[str, Any]) -> str:
        """How many images would decide the assertion, if the difference itself meets the condition."""
        found = comparison["metrics"][self.value.text]
        if "changed" not in found:  # means over seeds
            return ""
        changed, sign = found["changed"], 1 if self.sign in (">=", ">") else -1
        gained, lost = changed[::sign]
        count = paired.images_needed(gained, lost, found["images"], sign * self.limit)
        answers = "the models never disagree" if not any(changed) else "the models disagree as often as here"
        return "" if count is None else f" If {answers}, about {count:,} images are enough."

    def _check_comparable(self, record: Mapping[str, Any], reference: Mapping[str, Any]) -> None:
        for name in self.value.names:
            if why := comparable.difference(record, reference, name):
                raise RbError(f"{self.text} cannot be decided: {why}. Measure both in the same way.")

    def _problem_of_value(self, record: Mapping[str, Any], reference: Mapping[str, Any] | None) -> str | None:
        value, limit = self._value(record), self.limit
        said = f"{self.value.text} is {value:.6g}"
        if self.relative:
            other = self._value(reference or {})
            limit += other
            said += f", and the reference has {other:.6g}"
        return None if _HOLDS[self.sign](value, limit) else f"{self.text} does not hold: {said}."

    def _value(self, record: Mapping[str, Any]) -> float:
        try:
            value = self.value.number(record)
        except RbError as wrong:
            raise RbError(f"{self.text} does not hold: {wrong}") from None
        if value is None:
            whose = "the record or the reference" if self.relative else "the record"
            raise RbError(f"{self.text} does not hold: {whose} has no {self.value.text}.")
        return value

    def _measured(self, record: Mapping[str, Any]) -> tuple[str, float, Sequence[float] | None]:
        name, value = self.value.text, self._value(record)
        # Only metrics have a sampling error; fields of the record are exact.
        metrics = record.get("metrics") or {}
        if not any(expr.is_glob(used) or used in metrics for used in self.value.names):
            return name, value, None
        entry = results.last_entry(record, name)
        intervals = (results.interval(entry, field) for field in filter(schema.is_interval, entry))
        ends = next(filter(None, intervals), None)
        if ends is not None and not math.isclose(
            value, entry.get("value") or 0.0, rel_tol=1e-6, abs_tol=1e-9
        ):
            raise RbError(
                f"{self.text} cannot be decided: {name} is {value:.6g} in metrics, but {entry.get('value')}"
                " in its entry in evals. Evaluate the model again."
            )
        ends = ends or means.interval(record, self.value)
        if ends is None:
            raise RbError(
                f"{self.text} cannot be decided: {name} is {value:.6g}, but has no interval. Use"
                f" --assert-point '{self.text}' to compare the value itself."
            )
        return f"{name} is", value, ends

    def _compared(self, comparison: Mapping[str, Any]) -> tuple[str, float, Sequence[float]]:
        name = self.value.text
        found = comparison.get("metrics", {}).get(name)
        if found is None:
            raise RbError(
                f"{self.text} cannot be tested: the record has no per-image results for {name}. Use"
                f" --assert-point '{self.text}' to compare only the values."
            )
        return f"{name} minus the reference's value is", found["difference"], found["ci95"]


def assertion(text: str, *, point: bool = False) -> Assertion:
    """Parse an assertion such as `aa.8 >= .4`. Raises UsageError if the string has a different form."""
    if text.startswith("point:"):
        raise UsageError(f"--assert is '{text}'. Write --assert-point '{text.removeprefix('point:')}'.")
    try:
        signs = [token for token in expr.tokens(text) if token.text in _HOLDS]
        if len(signs) != 1:
            raise RbError(f"'{text}' has {len(signs)} comparison signs. Expected one of >=, >, <= and <.")
        (sign,) = signs
        left, right = text[: sign.at].strip(), text[sign.at + len(sign.text) :].strip()
        name = expr.without_backticks(left)
        value, limit = expr.Expression(name, any_name=name != left), expr.compile(right)
        relative = limit.names == (REFERENCE,)
        if (limit.names and not relative) or not value.names:
            raise RbError(f"'{text}' compares '{left}' with '{right}'.")
        number, *others = (limit.number({REFERENCE: at} if relative else {}) for at in (0.0, 0.5, 1.0))
        if number is None:
            raise RbError(f"'{right}' is not a number.")
        if relative and not all(
            other is not None and math.isclose(other - number, at)
            for other, at in zip(others, (0.5, 1.0), strict=True)
        ):
            raise RbError(f"'{right}' is not the reference plus or minus a number.")
    except RbError as wrong:
        raise UsageError(
            f"--assert: {wrong} Expected a metric or an expression, a comparison and a number, such as"
            " 'aa.8 >= .4'. Give the option once for each condition."
        ) from None
    return Assertion(text.strip(), value, sign.text, float(number), point, relative)


class Verdict(NamedTuple):
    """Whether the record `name` meets an assertion; if not, `problem` is the reason."""

    record: str
    assertion: str
    problem: str | None


def to_junit(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as JUnit XML, with a test case for each record (`classname`) and assertion (`name`)."""
    from junitparser import Failure, JUnitXml, TestCase, TestSuite

    cases = TestSuite("rb-rank")
    for verdict in verdicts:
        name, record, problem = (_NO_XML.sub("?", text or "") for text in (verdict.assertion, *verdict[::2]))
        case = TestCase(name, record)
        case.result = [Failure(problem)] if problem else []
        cases.add_testcase(case)
    report = JUnitXml()
    report.add_testsuite(cases)
    report.update_statistics()
    file = io.BytesIO()
    report.write(file, pretty=True)
    return file.getvalue().decode()
