"""bars: values with their intervals, or composite scores under several weightings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plots import record_values, style, weightings, words
from rbtools.plots.base import Record
from rbtools.plots.render import Panel, Spec
from rbtools.records import metric_name
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Ends = tuple[float, float] | None  # the lengths of an error bar


MOST_WEIGHTINGS = 7
_NAMED = 4  # the most metrics that the axis lists


@dataclass(frozen=True, kw_only=True)
class Bars(weightings.Composed):
    """Values of --metric for the best records by the first one, with their 95 % intervals. With --weightings,
    --preset, --within or a weight in --metric, and without --metric: composite scores (see rb-score), one bar
    for each weighting of the metrics.

    With --group the means of the groups, and lines for the standard deviations of their records.

    Needs the metrics of --metric, or those of a score: of rb-score or of --preset.
    """

    name: ClassVar[str] = "bars"

    top: int = param(20, "Number of records, the best by the first weighting.", check="positive")

    def spec(self, records: Sequence[Record]) -> Spec:
        if self._as_values:
            return self._values(records)
        score = self.scored(records)
        usual = {term.metric: term.weight for term in score.terms}
        weights = weightings.weightings(self.weightings, usual)
        if len(weights) > MOST_WEIGHTINGS:
            raise RbError(f"--weightings names {len(weights)}, and {MOST_WEIGHTINGS} can be told apart.")
        columns = [score.weighed(weighting) for weighting in weights.values()]
        rows = weightings.best(weightings.grouped(records, columns, self.group), self.top)
        listed = ", ".join(map(words.label, usual)) if len(usual) <= _NAMED else f"{len(usual)} metrics"
        remark = weightings.together(records, self.within, score)
        axis = f"composite score of {listed} (1 is best){remark}"
        return _drawn(rows, _deviations(rows), list(weights), axis, share=True)

    @property
    def _as_values(self) -> bool:
        """Whether --metric names values to draw, not the terms of a score."""
        of_score = (self.preset, self.weightings, self.within) != (None, None, None)
        return (
            self.metric is not None and not of_score and ":" not in self.metric and self.missing == "refuse"
        )

    def _values(self, records: Sequence[Record]) -> Spec:
        assert self.metric is not None
        names = record_values.chosen(records, self.metric, "--metric")
        if len(names) > MOST_WEIGHTINGS:
            raise RbError(f"--metric names {len(names)} metrics, and {MOST_WEIGHTINGS} can be told apart.")
        columns = [record_values.column(records, name, "--metric") for name in names]
        every = weightings.grouped(records, columns, self.group)
        rows = weightings.best(every, self.top, higher=metric_name.higher_is_better(names[0]))
        ends = _deviations(rows)
        if self.group is None:
            known = dict(zip(every.names, map(record_values.intervals, records), strict=True))
            ends = [
                [
                    None if value is None or name not in known[row] else _lengths(value, *known[row][name])
                    for name, value in zip(names, numbers, strict=True)
                ]
                for row, numbers in zip(rows.names, rows.numbers, strict=True)
            ]
        titles = [words.label(name) for name in names]
        return _drawn(rows, ends, titles, words.axis(names), words.is_share(names))


def _deviations(rows: weightings.Rows) -> list[list[Ends]]:
    """The ends of error bars of a standard deviation."""
    return [[None if one is None else (one, one) for one in row] for row in rows.deviations]


def _lengths(value: float, low: float, high: float) -> tuple[float, float]:
    """How far an interval reaches below and above a value; 0 where it does not."""
    return max(value - low, 0.0), max(high - value, 0.0)


def _drawn(
    rows: weightings.Rows, ends: Sequence[Sequence[Ends]], titles: list[str], axis: str, share: bool
) -> Spec:
    """The bars of each row, a colour for each title; of a single one with numbers, if without error bars."""
    count = len(rows.names)
    thick = 0.8 / len(titles)

    def draw(axes: Axes) -> None:
        for number, title in enumerate(titles):
            places = [row + (number - (len(titles) - 1) / 2) * thick for row in range(count)]
            lengths = [row[number] or 0.0 for row in rows.numbers]
            spread = [end[number] or (0.0, 0.0) for end in ends]
            barred = any(end[number] for end in ends)
            label = title if len(titles) > 1 else None
            bars = axes.barh(places, lengths, thick * 0.9, color=style.COLOURS[number], label=label)
            if barred:
                shown = [place for place, end in enumerate(ends) if end[number]]
                axes.errorbar(
                    [lengths[place] for place in shown],
                    [places[place] for place in shown],
                    xerr=np.array([spread[place] for place in shown]).T,
                    linestyle="",
                    color=style.BLACK,
                    linewidth=0.8,
                    capsize=1.5,
                )
            elif len(titles) == 1:
                axes.bar_label(bars, fmt=" %.3f", size=style.SMALL - 0.5)
        axes.set_ylim(count - 0.45, -0.55)
        axes.grid(visible=False, axis="y")
        if share:
            axes.set_xlim(0, 1)

    names = [words.label(name) for name in rows.names]
    each = max(0.19, 0.075 * len(titles) + 0.06)
    return Spec([Panel(draw, x=axis, rows=names)], lambda _: each * count)
