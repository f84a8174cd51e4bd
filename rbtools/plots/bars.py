"""bars: values with their intervals, or composite scores under several weightings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.errors import RbError
from rbtools.plots import layout, record_values, style, weightings, words
from rbtools.plots.base import Painted, Record
from rbtools.records import metric_name
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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

    def paint(self, figure: Figure, records: Sequence[Record]) -> Painted:
        if self._as_values:
            return self._values(figure, records)
        score = self.scored(records)
        usual = {term.metric: term.weight for term in score.terms}
        weights = weightings.weightings(self.weightings, usual)
        if len(weights) > MOST_WEIGHTINGS:
            raise RbError(f"--weightings names {len(weights)}, and {MOST_WEIGHTINGS} can be told apart.")
        columns = [score.weighed(weighting) for weighting in weights.values()]
        every = weightings.grouped(records, columns, self.group)
        rows = weightings.best(every, self.top)
        ends = [[None if one is None else (one, one) for one in deviations] for deviations in rows.deviations]
        listed = ", ".join(map(words.tidy, usual)) if len(usual) <= _NAMED else f"{len(usual)} metrics"
        entries, height = self._draw(
            figure, rows, ends, list(weights), f"composite score of {listed} (1 is best)"
        )
        figure.axes[0].set_xlim(0, 1)
        title = _title(records, every, rows, self.group) + weightings.together(records, self.within, score)
        return Painted(title, height, entries)

    @property
    def _as_values(self) -> bool:
        """Whether --metric names values to draw, not the terms of a score."""
        of_score = (self.preset, self.weightings, self.within) != (None, None, None)
        return (
            self.metric is not None and not of_score and ":" not in self.metric and self.missing == "refuse"
        )

    def _values(self, figure: Figure, records: Sequence[Record]) -> Painted:
        assert self.metric is not None
        names = record_values.chosen(records, self.metric, "--metric")
        if len(names) > MOST_WEIGHTINGS:
            raise RbError(f"--metric names {len(names)} metrics, and {MOST_WEIGHTINGS} can be told apart.")
        columns = [record_values.column(records, name, "--metric") for name in names]
        every = weightings.grouped(records, columns, self.group)
        rows = weightings.best(every, self.top, higher=metric_name.higher_is_better(names[0]))
        if self.group is None:
            known = dict(zip(every.names, map(record_values.intervals, records), strict=True))
            ends = [
                [
                    None if value is None or name not in known[row] else _lengths(value, *known[row][name])
                    for name, value in zip(names, numbers, strict=True)
                ]
                for row, numbers in zip(rows.names, rows.numbers, strict=True)
            ]
        else:
            ends = [[None if one is None else (one, one) for one in row] for row in rows.deviations]
        entries, height = self._draw(figure, rows, ends, list(map(words.tidy, names)), words.axis(names))
        if words.is_share(names):
            figure.axes[0].set_xlim(0, 1)
        return Painted(_title(records, every, rows, self.group), height, entries)

    def _draw(
        self,
        figure: Figure,
        rows: weightings.Rows,
        ends: Sequence[Sequence[Ends]],
        titles: list[str],
        axis: str,
    ) -> tuple[Sequence[tuple[Any, str]], float]:
        """Draw the bars of each row, a colour for each title; returns the legend's entries and the height."""
        axes = figure.add_subplot()
        thick = 0.8 / len(titles)
        entries = []
        for number, title in enumerate(titles):
            places = [row + (number - (len(titles) - 1) / 2) * thick for row in range(len(rows.names))]
            lengths = [row[number] or 0.0 for row in rows.numbers]
            bars = axes.barh(places, lengths, thick * 0.9, color=style.COLOURS[number])
            entries.append((bars, title))
            spread = [
                (place, length, *bar)
                for place, length, end in zip(places, lengths, ends, strict=True)
                if (bar := end[number]) is not None
            ]
            if spread:
                ys, xs, lower, upper = zip(*spread, strict=True)
                how: dict[str, Any] = {"color": style.BLACK, "linewidth": 0.7, "capsize": 1.5}
                axes.errorbar(xs, ys, xerr=(lower, upper), linestyle="", **how)
            if len(titles) == 1 and not spread:
                _write(axes, places, lengths)
        room = min(0.38 * self.width, 1.8)
        names = [layout.fitted(name, room, style.SMALL) for name in rows.names]
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(rows.names) - 0.45, -0.55)
        axes.grid(visible=False, axis="y")
        beside = layout.widest(names, style.SMALL) + 0.3
        layout.label(axes, x=axis, room=(self.width - beside, 2))
        height = len(rows.names) * max(0.19, 0.075 * len(titles) + 0.06) + 0.5
        return entries if len(entries) > 1 else (), height


def _lengths(value: float, low: float, high: float) -> tuple[float, float]:
    """How far an interval reaches below and above a value; 0 where it does not."""
    return max(value - low, 0.0), max(high - value, 0.0)


def _title(
    records: Sequence[Record], every: weightings.Rows, rows: weightings.Rows, group: str | None
) -> str:
    noun = "group" if group else "record"
    of = f"best {len(rows.names)} of " if len(rows.names) < len(every.names) else ""
    title = f"{of}{words.counted(len(every.names), noun)}"
    if group:
        title += f", means over {words.counted(len(records))}"
    return words.titled(title[0].upper() + title[1:], records)


def _write(axes: Axes, places: Sequence[float], lengths: Sequence[float]) -> None:
    for place, length in zip(places, lengths, strict=True):
        inside = length > 0.85
        axes.text(
            length + (-0.012 if inside else 0.012),
            place,
            f"{length:.3f}",
            ha="right" if inside else "left",
            va="center",
            size=style.SMALL - 0.5,
            color="white" if inside else "black",
        )
