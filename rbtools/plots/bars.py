"""The plot `bars`: values with their intervals, or composite scores under several weightings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plots import record_values, style, weightings, words
from rbtools.plots.base import Record
from rbtools.plots.renderer import FigureSpec, Panel
from rbtools.records import metric_name
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MOST_WEIGHTINGS = 7
_NAMED = 4  # the most metrics that the axis lists


@dataclass(frozen=True, kw_only=True)
class Bars(weightings.Composed):
    """Bars for the metrics in --metric, with 95 % intervals, for the records that are best in the first of
    these metrics. If there are more than seven metrics, they are the rows, and each of up to seven records
    has its own colour. Without --metric, or with --weighting, --preset, --within, --lower or --higher, the
    bars are composite scores (see rb-score), with one bar for each weighting of the metrics.

    With --group, bars are the means of the groups, and error bars are the standard deviations over the
    records of a group.

    Needs the metrics in --metric, or the metrics of a composite score (from rb-score or --preset).
    """

    name: ClassVar[str] = "bars"

    top: int = param(
        20, "Number of records to draw, beginning with the best by the first weighting.", check="positive"
    )

    def spec(self, records: Sequence[Record]) -> FigureSpec:
        if self._has_values:
            return self._values(records)
        score = self.scored(records)
        usual = {term.metric: term.weight for term in score.terms}
        weights = weightings.weightings(self.weightings, usual)
        if len(weights) > MOST_WEIGHTINGS:
            raise RbError(f"There are {len(weights)} weightings. Expected at most {MOST_WEIGHTINGS}.")
        columns = [score.weighed(weighting) for weighting in weights.values()]
        rows = weightings.best(weightings.grouped(records, columns, self.group), self.top)
        listed = "; ".join(map(words.label, usual)) if len(usual) <= _NAMED else f"{len(usual)} metrics"
        remark = weightings.together(records, self.within, score)
        axis = f"composite score of {listed} (1 is best){remark}"
        said = self._note(rows, next(iter(weights)))
        return _drawn(rows, np.stack([rows.deviations] * 2), list(weights), axis, share=True, note=said)

    @property
    def _has_values(self) -> bool:
        of_score = self.preset or self.weightings or self.within or self.lower or self.higher
        return self.metric is not None and not of_score and self.missing == "refuse"

    def _note(self, rows: weightings.Rows, first: str, spread: str = "") -> str:
        """What is above what, and what the error bars are."""
        spread = "Error bars: standard deviations." if self.group else spread
        order = f"Order: {first}, best first." if len(rows.names) > 1 else ""
        return " ".join(filter(None, (order, spread)))

    def _values(self, records: Sequence[Record]) -> FigureSpec:
        assert self.metric is not None
        names = record_values.chosen(records, self.metric, "--metric")
        columns = [record_values.column(records, name, "--metric") for name in names]
        every = weightings.grouped(records, columns, self.group)
        rows = weightings.best(every, self.top, higher=metric_name.higher_is_better(names[0]))
        ends = np.stack([rows.deviations] * 2)
        if self.group is None:
            known = dict(zip(every.names, map(record_values.intervals, records), strict=True))
            without = (np.nan, np.nan)
            found = np.array([[known[row].get(name, without) for name in names] for row in rows.names])
            ends = np.stack([rows.means - found[..., 0], found[..., 1] - rows.means])
        titles = [words.label(name) for name in names]
        share, spread = words.are_accuracies(names), ""
        if np.isfinite(ends).any():
            spread = record_values.interval_note("Error bars", records, names)
        if len(names) <= MOST_WEIGHTINGS:
            note = self._note(rows, titles[0], spread)
            return _drawn(rows, ends, titles, words.axis(names), share, note)
        if len(rows.names) > MOST_WEIGHTINGS:
            raise RbError(
                f"--metric names {len(names)} metrics, but there are {len(rows.names)} bars for each. One of"
                f" these numbers must be at most {MOST_WEIGHTINGS}. Name fewer metrics, or choose models with"
                f" --top {MOST_WEIGHTINGS}."
            )
        turned = weightings.Rows(names, rows.means.T, rows.deviations.T)
        labels = [words.label(name) for name in rows.names]
        note = self._note(turned._replace(names=[]), "", spread)
        return _drawn(turned, ends.transpose(0, 2, 1), labels, words.axis(names), share, note)


def _drawn(
    rows: weightings.Rows, ends: np.ndarray, titles: list[str], axis: str, share: bool, note: str
) -> FigureSpec:
    """The bars of each row, where each title has its own colour. With one title and without error bars,
    numbers are written beside the bars. `ends` (2, rows, titles) contains the distances from a value to the
    ends of its interval; NaN without an interval."""
    count = len(rows.names)
    thick = 0.8 / len(titles)
    looks = style.look(titles)

    def draw(axes: Axes) -> None:
        for number, title in enumerate(titles):
            places = np.arange(count) + (number - (len(titles) - 1) / 2) * thick
            lengths, spread = np.nan_to_num(rows.means[:, number]), np.maximum(ends[:, :, number], 0)
            label = title if len(titles) > 1 else None
            bars = axes.barh(places, lengths, thick * 0.9, color=looks[title]["color"], label=label)
            barred = ~np.isnan(spread).any(0)
            if barred.any():
                how: dict[str, Any] = {"color": style.BLACK, "linewidth": 0.8, "capsize": 1.5}
                axes.errorbar(lengths[barred], places[barred], xerr=spread[:, barred], linestyle="", **how)
            elif len(titles) == 1:
                axes.bar_label(bars, fmt=" %.3f", size=style.small() - 0.5)
        axes.set_ylim(count - 0.45, -0.55)
        axes.grid(visible=False, axis="y")
        if share:
            axes.set_xlim(0, 1)

    names = [words.label(name) for name in rows.names]
    each = max(0.19, 0.075 * len(titles) + 0.06)
    return FigureSpec([Panel(draw, x=axis, rows=names)], lambda _: each * count, note=note)
