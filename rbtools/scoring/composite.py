"""The composite score of a stream of records: its terms, its groups, its warnings and its entries."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rbtools.errors import RbError
from rbtools.records import expr
from rbtools.scoring import minmax
from rbtools.scoring.columns import Columns, unknown
from rbtools.scoring.groups import Grouping
from rbtools.scoring.plan import ScorePreset, TermSpec, presets, together

NO_PRESET = ScorePreset(())


class Composite:
    """Collects records, then gives an entry for each: its score and the contribution of each term.

    asked: the requested terms; if empty, all metrics that every record has. preset: one of `plan.presets`,
    whose terms `asked` extends or overrides. within: fields; records are scaled within groups that agree in
    them. missing: see `minmax.composite`.
    """

    def __init__(
        self,
        asked: Sequence[TermSpec] = (),
        *,
        preset: str | None = None,
        within: Sequence[str] = (),
        missing: str = "refuse",
    ) -> None:
        self._preset_name, self._preset = preset, presets()[preset] if preset else NO_PRESET
        self.asked = together(self._preset.asked, asked)
        self.missing = missing
        self._grouping = Grouping(within)
        self._others = [name for names in self._preset.on.values() for name in names.values()]
        self._columns = Columns([*(spec.item for spec in self.asked), *self._others])
        self._variants = ["", *self._preset.on]
        # For each record the data set whose metric names it has, 0 for the usual ones.
        self._variant = array("b")
        self._datasets: dict[str, None] = {}
        self.terms: list[minmax.Term] = []
        self._numbers: list[array[float]] = []

    @property
    def count(self) -> int:
        """How many records were added."""
        return self._columns.count

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the next record."""
        self._columns.add(record)
        self._grouping.add(record)
        dataset = str(record.get("dataset"))
        if "dataset" in record:
            self._datasets[dataset] = None
        if self._preset.on:
            self._variant.append(self._variants.index(dataset) if dataset in self._preset.on else 0)

    def settle(self, warn: Callable[[str], None]) -> None:
        """Decide on `terms` once all records are added. Raises RbError if records lack a requested metric.

        `warn` gets warnings: several data sets scaled together, metrics that are equal everywhere.
        """
        self._grouping.check("--within", self.count)
        self.terms = self._named(warn) if self.asked else self._common()
        self._numbers = [self._column(term.metric) for term in self.terms]
        if self.missing == "refuse":
            minmax.check_complete(self._numbers, self.terms)
        self._look_at(warn)

    def entries(self) -> Iterator[dict[str, Any]]:
        """The entries of all records in order, made lazily; call `settle` first."""
        listed = [self._listed(variant) for variant in self._variants]
        ranges = self._ranges()
        about = {"preset": self._preset_name} if self._preset_name else {}
        for place, scored in enumerate(self._scored(self._numbers, self.terms)):
            terms = listed[self._variant[place]] if self._preset.on else listed[0]
            names = [term["metric"] for term in terms]
            entry: dict[str, Any] = {"tool": "rb-score", "metric": "score", "value": scored.score, **about}
            entry |= {"terms": terms, "contributions": dict(zip(names, scored.contributions, strict=True))}
            entry |= {"missing": self.missing, **self._grouping.described(place)}
            if scored.score is None:
                entry["reason"] = "the record has none of the metrics"
            yield {**entry, "ranges": dict(zip(names, ranges[place], strict=True))}

    def _ranges(self) -> list[list[list[float] | None]]:
        """For each record the smallest and largest value of each term among the compared ones."""
        every = self._grouping.places() if self._grouping.names else [range(self.count)]
        ranges: list[list[list[float] | None]] = [[]] * self.count
        for places in every:
            own: list[list[float] | None] = []
            for column in self._numbers:
                present = [column[place] for place in places if column[place] == column[place]]
                own.append([min(present), max(present)] if present else None)
            for place in places:
                ranges[place] = own
        return ranges

    def weighed(self, weights: Sequence[float]) -> list[float | None]:
        """The scores of all records under other weights of `terms`, 0 or more; call `settle` first.

        A term of weight 0 is left out. Raises UsageError if no weight is above 0.
        """
        places = [place for place, weight in enumerate(weights) if weight]
        terms = [replace(self.terms[place], weight=weights[place]) for place in places]
        return [scored.score for scored in self._scored([self._numbers[place] for place in places], terms)]

    def _scored(self, columns: list[array[float]], terms: Sequence[minmax.Term]) -> Iterator[minmax.Scored]:
        minmax.check_terms(terms)
        if not self._grouping.names:
            yield from minmax.composite(columns, terms, self.missing)
            return
        scores: list[Any] = [None] * self.count
        for places in self._grouping.places():
            part = [array("d", [column[place] for place in places]) for column in columns]
            for place, scored in zip(places, minmax.composite(part, terms, self.missing), strict=True):
                scores[place] = scored
        yield from scores

    def _listed(self, variant: str) -> list[dict[str, Any]]:
        names = self._preset.on.get(variant, {})
        return [
            {"metric": names.get(term.metric, term.metric), "weight": term.weight, "higher": term.higher}
            for term in self.terms
        ]

    def _column(self, name: str) -> array[float]:
        """A column, including numbers that some data sets have under another name."""
        column = self._columns.column(name)
        for number, dataset in enumerate(self._variants):
            other = self._preset.on.get(dataset, {}).get(name)
            if other is not None:
                pairs = zip(column, self._columns.column(other), self._variant, strict=True)
                column = array("d", [new if v == number else old for old, new, v in pairs])
        return column

    def _named(self, warn: Callable[[str], None]) -> list[minmax.Term]:
        """The requested terms, with each glob replaced by the metrics that it matches."""
        items = [name.item for name in self.asked]
        terms = []
        for item, settings in self.asked:
            if item in (name.item for name in self._preset.asked):
                self._check_preset(item, warn)
                names = [item]
            else:
                names = self._columns.resolve(item)
            # a metric that is also listed by name has its own weight
            if expr.is_bare(item) and expr.is_glob(item):
                names = [name for name in names if name not in items and name != "score"]
            terms += [minmax.term(name + settings) for name in names]
        return terms

    def _check_preset(self, item: str, warn: Callable[[str], None]) -> None:
        metrics = self._columns.metrics
        if item in metrics or any(names.get(item) in metrics for names in self._preset.on.values()):
            return
        if self.missing == "refuse":
            raise unknown(item, metrics)
        warn(f"no record has '{item}', a metric of the preset.")

    def _common(self) -> list[minmax.Term]:
        columns = self._columns
        names = [name for name in columns.metrics if name != "score"]
        shared = [name for name in names if not any(v != v for v in columns.column(name))]
        if not shared:
            listed = ", ".join(columns.metrics[:12]) or "none at all"
            raise RbError(
                f"There is no metric that all {self.count} records have (they have: {listed})."
                " Evaluate them alike, or name metrics with --metric and say --missing renormalise."
            )
        return [minmax.term(name) for name in shared]

    def _look_at(self, warn: Callable[[str], None]) -> None:
        if len(self._datasets) > 1 and "dataset" not in self._grouping.names:
            warn(
                f"the records are of {len(self._datasets)} data sets ({', '.join(self._datasets)}), scaled"
                " together. --within dataset scales each by itself."
            )
        alone = self._grouping.alone()
        if alone:
            warn(f"{alone} records have nothing to be compared with --within their group: they score .5.")
        if self._grouping.names:
            return
        if self.count == 1:
            warn("one record has nothing to be compared with: it scores .5, whatever its metrics are.")
            return
        if self.count == 2 and any(column[0] != column[1] for column in self._numbers):
            warn("min-max of two records is 1 for the better and 0 for the other, however near they are.")
        for term, column in zip(self.terms, self._numbers, strict=True):
            present = [value for value in column if value == value]
            if present and min(present) == max(present):
                value = f"{term.metric} ({present[0]:g})"
                warn(f"all records have the same {value}: it tells nothing, and gives .5.")
