"""Metrics that are computed from other metrics, such as `--add adv.mean='mean(pgd20.*)'`."""

from __future__ import annotations

from typing import Any, NamedTuple

from rbtools.errors import RbError, UsageError
from rbtools.records import expr, results
from rbtools.scoring import means, union


class Derived(NamedTuple):
    """A derived metric. If `explain` is true, the entry of a union contains the effect of each part."""

    name: str
    compiled: expr.Expression
    explain: bool = False

    @property
    def compares_results(self) -> bool:  # of several records of the same model
        return bool(self.compiled.functions & {"optimality", *union.FUNCTIONS})

    def added(self, record: dict[str, Any], *, replace: bool = False) -> dict[str, Any]:
        """Add the derived metric to the record. Its entry contains the reason if the metric cannot be
        computed. Raises RbError if the record has a metric of this name that is not derived from this
        expression."""
        entry: dict[str, Any] = {
            "tool": "rb-score",
            "metric": self.name,
            "value": None,
            "expression": self.compiled.text,
        }
        try:
            value = self.compiled(record)
            if self.compiled.union is not None:
                entry |= union.entry(record, self.compiled, explain=self.explain)
            elif results.is_number(value):
                ends = means.interval(record, self.compiled)
                entry |= {"value": value, **({} if ends is None else {"ci95": list(ends)})}
            else:
                entry["reason"] = f"the value is {expr.kind(value)}, not a number"
        except RbError as reason:
            entry["reason"] = str(reason)
        old = results.last_entry(record, self.name).get("expression")
        if not replace and self.name in record.get("metrics", {}) and old != self.compiled.text:
            other = f"which was computed as '{old}'" if old else "which was measured"
            raise RbError(
                f"The record already has '{self.name}', {other}. Choose another name, or overwrite it with"
                " --force."
            )
        return results.add(record, entry, replace=replace)


def explained(text: str) -> Derived:
    """Return a metric that is named like a union, such as union(aa.8,pgd20.8). Its entry lists which images
    each part breaks. Raises UsageError if the expression is not a union."""
    try:
        compiled = expr.compile(text.strip())
    except RbError as wrong:
        raise UsageError(f"--explain: {wrong}") from None
    if compiled.union is None:
        raise UsageError(f"--explain is '{text}'. Expected a union, such as 'union(aa.8, corrupt.*.3)'.")
    return Derived(compiled.text, compiled, explain=True)


def derived(text: str) -> Derived:
    """Parse `NAME=EXPR`. Raises UsageError if the string has a different form."""
    name, sign, right = text.partition("=")
    name = name.strip()
    if not sign or not right.strip() or not expr.is_bare(name) or expr.is_glob(name):
        raise UsageError(f"--add is '{text}'. Expected NAME=EXPRESSION, such as adv.mean='mean(pgd20.*)'.")
    try:
        return Derived(name, expr.compile(right.strip()))
    except RbError as wrong:
        raise UsageError(f"--add {name}: {wrong}") from None
