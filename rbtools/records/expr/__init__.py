"""Expressions for `--where` and `--by`, in a small language over records that cannot run code.

    acc > 0.8 and arch.none == 0
    mean(fgsm.*, pgd20.*) - 0.5 * std(corrupt.*.3)
    train.method in ['trades', 'pgd'] and not 0.2 < apgd-ce.8 <= 0.3

**Values** are numbers (`0.8`, `1e-3`), strings in single or double quotes, `true`, `false` and `null`.
**Operators**, from the weakest to the strongest: `or`; `and`; `not`; `== != < <= > >=`, `in [...]`,
`not in [...]` (comparisons can be chained); `+ -`; `* /`; a sign before a value. There is no operator for
powers. The operands of `and`, `or` and `not` are conditions, the operands of arithmetic are numbers, and
`<`, `<=`, `>` and `>=` compare two numbers or two strings. Any other operand is an error, and so is a result
that is not finite.
**Functions**: `mean min max sum std count` have any number of arguments, and `abs log sqrt` have one
argument. `log` is the natural logarithm, `std` is the standard deviation of a sample (n - 1), and `count` is
the number of values.
`distance(13714)` is the number of edges in which a cell of NAS-Bench-201 differs from the named cell (an
index, or a name or string in quotes).
`optimality('pgd20')` is AttackBench's local optimality of an attack, which compares the attack's curve of
accuracy over eps with the lowest curve of all attacks in the record that have two or more distances.
`class.min(pgd20.8)` is the accuracy of the worst class, computed from the record's per-image results.
`union(aa.8, corrupt.*.3)` is the share of images that remain correct in all named evaluations, computed from
per-image results; `union.common(...)` accepts results with different numbers of images.
**Names** are first looked up as metrics (`pgd20.l2.0.5`), then as paths in the record (`train.method`), then
as fields of its architecture (`kernel_params`). A hyphen or `*` inside a name without spaces belongs to the
name; with spaces around it, the character is an operator: `acc-pgd20.8` is one name, and `acc - pgd20.8` is a
difference. A name with other characters is written in backticks, as in `` `F1 score` > 0.8 ``. If the
complete text is the name of a metric, it means this metric.
**Globs** are names with `*`, `?` or `[..]` (`fgsm.*`, `corrupt.*.[13]`, `pgd?0.8`). Globs are allowed as
arguments of functions, and are replaced by all metrics that match, except metrics that are already among the
arguments. A list of metrics may contain globs, too.
"""
# ruff: noqa: F401

from __future__ import annotations

from functools import cached_property
from typing import Any

from rbtools.errors import RbError, shown
from rbtools.records.expr.names import (
    MissingName,
    Record,
    expand,
    is_glob,
    lookup,
    metrics_of,
    nearest,
    select,
)
from rbtools.records.expr.nodes import Builder, Node
from rbtools.records.expr.syntax import is_bare, items, tokens, without_backticks
from rbtools.records.expr.values import NoValue, kind
from rbtools.records.results import is_number


class Expression:
    """A parsed expression, which is called with a record.

    `text` is the expression as the user wrote it; `names` contains its names and globs, each once and in
    order; `functions` contains the functions that it calls. A text that cannot be parsed raises RbError at
    once. With `any_name`, such a text, or a text that is only a number, can also be the name of a metric or
    contain such names; RbError is then raised only for a record without this metric.
    """

    def __init__(self, text: str, *, any_name: bool = False) -> None:
        self.text = text
        self._wrong: RbError | None = None
        try:
            built: Builder | None = Builder(text)
        except RbError as wrong:
            if not any_name:
                raise
            self._wrong, built = wrong, None
        late = any_name and (built is None or not (built.names or built.functions))
        self._node: Node = built.node if built and not late else self._late
        self._built: dict[tuple[str, ...], Node] = {}
        if built and len(tokens(text)) > 1:
            self._built[()] = built.node
        self.names = tuple(built.names if built and not late else [text])
        self.functions = frozenset(built.functions if built else ())

    def __call__(self, record: Record) -> Any:
        """Return the metric that has the expression as its name, or else the value for a record. Raises
        MissingName for a name that the record lacks, and RbError for values of the wrong kind."""
        metrics = metrics_of(record)
        if self.text in metrics:
            return metrics[self.text]
        try:
            return self._node(record)
        except NoValue as reason:
            raise RbError(f"Expression '{shown(self.text)}' has no value: {reason}.") from None

    def _late(self, record: Record) -> Any:
        """The value of a text whose meaning depends on the names of the record's metrics."""
        known = tuple(name for name in metrics_of(record) if not is_bare(name) and name in self.text)
        if known not in self._built:
            if not known:
                raise self._wrong or MissingName(self.text, record)
            try:
                self._built[known] = Builder(self.text, known).node
            except RbError:
                raise self._wrong or MissingName(self.text, record) from None
        return self._built[known](record)

    @cached_property
    def is_mean(self) -> bool:
        """True if the expression is only a mean of metrics, such as `mean(fgsm.*, acc)`."""
        inner = self.text.strip().removeprefix("mean(").removesuffix(")")
        return self.text.strip() == f"mean({inner})" and all(map(is_bare, items(inner)))

    @cached_property
    def union(self) -> list[str] | None:
        """The names and globs in an expression that is only a union, such as `union(aa.8, corrupt.*.3)`."""
        function, sign, inner = self.text.strip().removesuffix(")").partition("(")
        names = items(inner) if function in ("union", "union.common") and sign else []
        return names if names and all(map(is_bare, names)) else None

    def number(self, record: Record) -> float | None:
        """Return the value, or None if the record has none. Raises RbError if the value is not a number,
        because the error is then in the expression and not in the record."""
        try:
            value = self(record)
        except RbError:
            return None
        if value is not None and not is_number(value):
            raise RbError(f"'{self.text}' is {kind(value)}. Expected a number, such as a metric.")
        return value

    def holds(self, record: Record) -> bool:
        """Return the value of a condition. Raises RbError if the expression is neither true nor false."""
        value = self(record)
        if not isinstance(value, bool):
            raise RbError(
                f"Expression '{self.text}' is {kind(value)}, not a condition. Expected one such as acc > 0.5."
            )
        return value

    def __repr__(self) -> str:
        return f"compile({self.text!r})"


def compile(text: str) -> Expression:
    """Parse an expression. Raises RbError if the text is not a valid expression."""
    return Expression(text)
