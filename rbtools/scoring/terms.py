"""The terms of a composite score, from the command line, from a file of weights, or from a preset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

from rbtools.errors import UsageError, near
from rbtools.records import expr, results
from rbtools.records.metric_name import higher_is_better
from rbtools.registry import gathered


class Term(NamedTuple):
    """A metric, a glob or an expression, with its weight, and whether higher is better. If `higher` is None,
    the metric's name determines the direction."""

    metric: str
    weight: float = 1.0
    higher: bool | None = None

    def of(self, metric: str) -> Term:
        """A copy of this term for a metric that matches its glob, with the direction of the metric."""
        return Term(metric, self.weight, higher_is_better(metric) if self.higher is None else self.higher)


@dataclass(frozen=True)
class ScorePreset:
    """A published composite score. `on` contains other names of the metrics on some data sets."""

    terms: tuple[Term, ...] = ()
    on: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def presets() -> dict[str, ScorePreset]:
    return gathered("score-presets")


def term(text: str) -> Term:
    """Parse `NAME[:WEIGHT][:lower|higher]`. Raises UsageError if the weight is not finite and positive."""
    metric, *rest = text.split(":") if "`" not in text else _after_backticks(text)
    weight, higher = 1.0, None
    for part in rest:
        if part in ("lower", "higher"):
            higher = part == "higher"
            continue
        try:
            weight = float(part)
        except ValueError:
            raise UsageError(
                f"'{part}' in the metric '{text}' is neither a weight nor a direction."
                f"{near(part, ('lower', 'higher'))} Write NAME, NAME:2, NAME:lower or NAME:2:lower."
            ) from None
    chosen = Term(expr.without_backticks(metric), weight, higher)
    check([chosen])
    return chosen


def _after_backticks(text: str) -> list[str]:
    """The parts between colons; those inside backticks do not separate."""
    name, tick, rest = text.rpartition("`")
    first, *others = rest.split(":")
    return [name + tick + first, *others]


def check(terms: Sequence[Term]) -> None:
    """Raise UsageError if there is no term, a duplicate metric, or a weight that is not positive."""
    if not terms:
        raise UsageError("A score needs at least one metric. Name them, for example --metric acc,pgd20.8.")
    seen: set[str] = set()
    for term in terms:
        if not term.metric:
            raise UsageError("A metric of the score has no name. Write NAME, NAME:2 or NAME:lower.")
        if term.metric in seen:
            raise UsageError(
                f"The score has '{term.metric}' twice. Give it once, with a weight: {term.metric}:2."
            )
        if not (isfinite(term.weight) and term.weight > 0):
            raise UsageError(
                f"The weight of '{term.metric}' is {term.weight:g}. It must be above 0."
                " To reverse a metric, write :lower; to leave it out, do not name it."
            )
        seen.add(term.metric)


def asked(text: str) -> list[Term]:
    """Parse a list of terms such as `acc, pgd20.8:2, mean(ge.*):lower`. Raises UsageError if a weight or a
    direction is invalid, or if a metric occurs twice."""
    terms = [term(item) for item in expr.items(text)]
    check(terms)
    return terms


def weighted(content: object, source: str) -> list[Term]:
    """The terms from a YAML or JSON file, which maps each metric or expression to a weight, `lower`, `higher`
    or `2:lower`. Raises UsageError, which names the file `source`, if the content has another form."""
    if not isinstance(content, Mapping) or not content:
        raise UsageError(
            f"{source} holds no weights. Expected a mapping of metrics to weights, such as 'acc: 2'."
        )
    terms = []
    for item, weight in content.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float | str) or not isinstance(item, str):
            raise UsageError(
                f"{source} gives '{item}' the weight {weight!r}. Expected a number, lower, higher, or both as"
                " in 2:lower."
            )
        try:
            terms.append(term(f"{item.strip()}:{weight}"))
        except UsageError as wrong:
            raise UsageError(f"{source}: {wrong}") from None
    return terms


def of_entry(entry: Mapping[str, Any]) -> list[Term]:
    """The terms in the entry of a score; empty if the entry does not have the form that rb-score writes."""
    listed = entry.get("terms")
    found = []
    for term in listed if isinstance(listed, list) else ():
        metric, weight, higher = (results.at(term, (field,)) for field in Term._fields)
        if not isinstance(metric, str) or not results.is_number(weight) or not isinstance(higher, bool):
            return []
        found.append(Term(metric, weight, higher))
    return found


def together(*lists: Iterable[Term]) -> list[Term]:
    """The terms of several lists; if lists contain equal terms, the last term is used."""
    return list({term.metric: term for terms in lists for term in terms}.values())
