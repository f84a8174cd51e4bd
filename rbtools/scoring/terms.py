"""The terms of a composite score, as given on the command line, in a file of weights, or by a preset."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

from rbtools.errors import UsageError
from rbtools.records import expr, results
from rbtools.records.metric_name import higher_is_better
from rbtools.registry import gathered
from rbtools.scoring.rank_order import Directions


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


def check(terms: Sequence[Term]) -> None:
    """Raise UsageError if there is no term, a duplicate metric, or a weight that is not positive."""
    if not terms:
        raise UsageError("A score needs at least one metric. Name them, for example --metric acc,pgd20.8.")
    seen: set[str] = set()
    for term in terms:
        if not term.metric:
            raise UsageError("A metric of the score has no name. Expected NAME, or --weight NAME=2.")
        if term.metric in seen:
            raise UsageError(
                f"The score has '{term.metric}' twice. Give it once, with --weight '{term.metric}=2'."
            )
        if not (isfinite(term.weight) and term.weight > 0):
            raise UsageError(
                f"The weight of '{term.metric}' is {term.weight:g}. It must be above 0."
                " To reverse a metric, name it in --lower; to leave it out, do not name it."
            )
        seen.add(term.metric)


def asked(
    metrics: Sequence[str],
    directions: Directions,
    weights: Sequence[str] = (),
    preset: str | None = None,
) -> list[Term]:
    """The terms of a score: those of the preset, `metrics` (lists of --metric) and `weights` (NAME=NUMBER of
    --weight); a later term replaces an earlier term of the same metric. Raises UsageError if an option is
    invalid, or if an option names a metric twice."""
    listed = [Term(item) for text in metrics for item in expr.items(text)]
    for term in listed:
        name, _, weight = term.metric.rpartition(":")
        if name and re.fullmatch(r"[0-9.]+", weight):
            raise UsageError(f"--metric is '{term.metric}'. Write --weight '{name}={weight}'.")
    weighed = [_weighed(text) for text in weights]
    for given, terms in ((metrics, listed), (weights, weighed)):
        if given:
            check(terms)
    of_preset = presets()[preset].terms if preset else ()
    known = {term.metric: term for term in (*of_preset, *listed, *weighed)}
    named = directions.named(known, "--metric")
    return [term._replace(higher=named.get(term.metric, term.higher)) for term in known.values()]


def _weighed(text: str) -> Term:
    name, _, number = text.rpartition("=")
    try:
        return Term(expr.without_backticks(name), float(number))
    except ValueError:
        raise UsageError(f"--weight is '{text}'. Expected NAME=NUMBER, such as pgd20.8=2.") from None


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
