"""The composite score (PRBench, figure 6): the mean of metrics that are scaled to [0, 1] over the records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import fsum, isfinite
from typing import Any, NamedTuple

from rbtools.errors import RbError, UsageError, near
from rbtools.records import expr
from rbtools.scoring.columns import Columns, unknown
from rbtools.scoring.groups import grouped
from rbtools.scoring.terms import ScorePreset, Term, check, presets

MISSING = ("refuse", "renormalise", "worst")


class Scored(NamedTuple):
    """A record's score in [0, 1] and the contributions of the terms, whose sum is the score. A missing metric
    has the contribution None; without any metric, the score is None."""

    score: float | None
    contributions: list[float | None]


def scores(
    columns: Sequence[Sequence[float | None]],
    terms: Sequence[Term],
    missing: str = "refuse",
    ranges: Sequence[Sequence[float] | None] | None = None,
) -> list[Scored]:
    """Compute the score of every record, which is the weighted mean of n = (v - min) / (max - min).

    If lower is better, n is replaced by 1 - n. If all values are equal, n is .5 for all records. `columns`
    contains one column for each term, in which values may be negative, and None or NaN means missing.
    `ranges` contains the minimum and the maximum of each term, by default of the term's column. `missing`
    determines what to do with records that lack a metric: "refuse" raises RbError, "renormalise" computes the
    score from the other metrics, and "worst" sets n = 0.
    """
    check(terms)
    if missing not in MISSING:
        raise UsageError(
            f"--missing is '{missing}'.{near(missing, MISSING)} Choose from: {', '.join(MISSING)}."
        )
    if missing == "refuse":
        _refuse_missing(columns, terms)
    ends = [range_of(column) for column in columns] if ranges is None else ranges
    every = fsum(term.weight for term in terms)
    filler = 0.0 if missing == "worst" else None
    scaled = [
        _weighted(column, term.of(term.metric), pair, filler)
        for column, term, pair in zip(columns, terms, ends, strict=True)
    ]
    rows = []
    for parts in zip(*scaled, strict=True):
        known = [part for part in parts if part is not None]
        weights = [term.weight for part, term in zip(parts, terms, strict=True) if part is not None]
        total = every if len(known) == len(parts) else fsum(weights)
        contributions = [None if part is None else part / total for part in parts]
        rows.append(Scored(fsum(known) / total if known else None, contributions))
    return rows


def range_of(column: Sequence[float | None]) -> tuple[float, float] | None:
    present = [value for value in column if value is not None and value == value]
    return (min(present), max(present)) if present else None


def _refuse_missing(columns: Sequence[Sequence[float | None]], terms: Sequence[Term]) -> None:
    for column, term in zip(columns, terms, strict=True):
        places = [place for place, value in enumerate(column, start=1) if value is None or value != value]
        if places:
            raise RbError(
                f"{len(places)} of {len(column)} records have no '{term.metric}' (the first is record"
                f" {places[0]}). Evaluate them, or give --missing renormalise (score them by the metrics they"
                " have) or --missing worst (count a missing value as the lowest)."
            )


def _weighted(
    values: Sequence[float | None], term: Term, ends: Sequence[float] | None, filler: float | None
) -> list[float | None]:
    """Weight * n, or `filler` for missing values. The division comes first, so that n is at most 1."""
    least, most = ends or (0.0, 0.0)
    span, worst = most - least, least if term.higher else most
    if not isfinite(span):
        raise RbError(f"'{term.metric}' ranges from {least:g} to {most:g}, too large a range to scale.")
    return [
        filler
        if value is None or value != value
        else (abs(value - worst) / span if span else 0.5) * term.weight
        for value in values
    ]


class Composite:
    """The composite score of some records.

    `asked` contains the requested terms; if empty, all metrics that every record has are used. `preset` is
    one of `terms.presets`, from which terms were requested. Records are scaled within groups that
    have the same values of the fields `within`. `missing` is explained in `scores`. `warn` is called with
    warnings. `terms` contains the final terms of the score. Raises RbError if records lack a requested
    metric.
    """

    def __init__(
        self,
        records: Sequence[Mapping[str, Any]],
        asked: Sequence[Term] = (),
        *,
        preset: str | None = None,
        within: Sequence[str] = (),
        missing: str = "refuse",
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.records, self.missing, self._preset_name, self._warn = records, missing, preset, warn
        self._preset = presets()[preset] if preset else ScorePreset()
        self._groups = grouped(records, within, "--within")
        self._columns = Columns(records)
        self.terms = self._expanded(asked) if asked else self._common()
        self._numbers = [self._column(term.metric) for term in self.terms]
        if missing == "refuse":
            _refuse_missing(self._numbers, self.terms)
        self._warn_about_comparison()

    def entries(self) -> list[dict[str, Any]]:
        about = {"preset": self._preset_name} if self._preset_name else {}
        entries = []
        for place, (scored, ranges) in enumerate(self._scored(self._numbers, self.terms)):
            names = [self._name_on_dataset(term.metric, self.records[place]) for term in self.terms]
            terms = [
                {"metric": name, "weight": term.weight, "higher": term.higher}
                for name, term in zip(names, self.terms, strict=True)
            ]
            entry: dict[str, Any] = {"tool": "rb-score", "metric": "score", "value": scored.score, **about}
            entry |= {"terms": terms, "contributions": dict(zip(names, scored.contributions, strict=True))}
            entry |= {"missing": self.missing, **self._groups.described(place)}
            if scored.score is None:
                entry["reason"] = "the record has none of the metrics"
            entries.append({**entry, "ranges": dict(zip(names, ranges, strict=True))})
        return entries

    def weighed(self, weights: Sequence[float]) -> list[float | None]:
        """The scores of all records if `terms` have these weights, which are at least 0. A term with weight 0
        is left out. Raises UsageError if all weights are 0."""
        places = [place for place, weight in enumerate(weights) if weight]
        terms = [self.terms[place]._replace(weight=weights[place]) for place in places]
        return [scored.score for scored, _ in self._scored([self._numbers[place] for place in places], terms)]

    def _scored(
        self, columns: Sequence[Sequence[float]], terms: Sequence[Term]
    ) -> list[tuple[Scored, list[list[float] | None]]]:
        """The score of each record, and the ranges of the terms in the record's group."""
        found: list[Any] = [None] * len(self.records)
        for places in self._groups.places.values():
            own = [[column[place] for place in places] for column in columns]
            ends = [pair and list(pair) for pair in map(range_of, own)]
            for place, scored in zip(places, scores(own, terms, self.missing, ends), strict=True):
                found[place] = scored, ends
        return found

    def _name_on_dataset(self, metric: str, record: Mapping[str, Any]) -> str:
        return self._preset.on.get(str(record.get("dataset")), {}).get(metric, metric)

    def _column(self, metric: str) -> list[float]:
        names = [self._name_on_dataset(metric, record) for record in self.records]
        return [self._columns.column(name)[place] for place, name in enumerate(names)]

    def _expanded(self, wanted: Sequence[Term]) -> list[Term]:
        items = [term.metric for term in wanted]
        terms: list[Term] = []
        for term in wanted:
            item = term.metric
            if item in (own.metric for own in self._preset.terms):
                self._check_preset(item)
                names = [item]
            else:
                names = self._columns.resolve(item)
            # a metric that is also listed by name has its own weight
            if expr.is_bare(item) and expr.is_glob(item):
                names = [name for name in names if name not in items and name != "score"]
            terms += map(term.of, names)
        return terms

    def _check_preset(self, item: str) -> None:
        metrics = self._columns.metrics
        if item in metrics or any(names.get(item) in metrics for names in self._preset.on.values()):
            return
        if self.missing == "refuse":
            raise unknown(item, metrics)
        self._warn(f"no record has '{item}', which is a metric of the preset.")

    def _common(self) -> list[Term]:
        columns = self._columns
        names = [name for name in columns.metrics if name != "score"]
        shared = [name for name in names if not any(v != v for v in columns.column(name))]
        if not shared:
            listed = ", ".join(columns.metrics[:12]) or "none at all"
            raise RbError(
                f"There is no metric that all {len(self.records)} records have (they have: {listed})."
                " Evaluate all in the same way, or name metrics with --metric and give --missing renormalise."
            )
        return [Term(name).of(name) for name in shared]

    def _warn_about_comparison(self) -> None:
        warn, count, within = self._warn, len(self.records), self._groups.names
        datasets = dict.fromkeys(str(record["dataset"]) for record in self.records if "dataset" in record)
        if len(datasets) > 1 and "dataset" not in within:
            warn(
                f"the records come from {len(datasets)} data sets ({', '.join(datasets)}), which are scaled"
                " together. Use --within dataset to scale each data set separately."
            )
        if within:
            if alone := sum(len(places) == 1 for places in self._groups.places.values()):
                warn(f"{alone} records are the only ones in their group (--within), so they score .5.")
            return
        if count == 1:
            warn(
                "there is only one record, so it scores .5 whatever its metrics are. Give two records or"
                " more."
            )
            return
        if count == 2 and any(column[0] != column[1] for column in self._numbers):
            warn("with two records, each metric is 1 for the better and 0 for the other, even if close.")
        for term, column in zip(self.terms, self._numbers, strict=True):
            ends = range_of(column)
            if ends is not None and ends[0] == ends[1]:
                warn(f"all records have the same {term.metric} ({ends[0]:g}), which counts as .5.")
