"""bars: composite scores under several weightings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.errors import RbError
from rbtools.plots import layout, style, weightings, words
from rbtools.plots.base import Painted, Record, Scoring
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_WEIGHTINGS = 7
_NAMED = 4  # the most metrics that the axis lists


@dataclass(frozen=True, kw_only=True)
class Bars(weightings.Composed):
    """Composite scores (see rb-score) of the best records, one bar for each weighting of the metrics.

    With --group the means of the groups, and lines for the standard deviations of their records. A metric as
    it is, in groups, is drawn by rb-plot box --metric NAME --group FIELD.

    Needs the metrics of a score: those of rb-score, of --metric or of --preset.
    """

    name: ClassVar[str] = "bars"

    top: int = param(20, "Number of records, the best by the first weighting.", check="positive")

    def paint(self, figure: Figure, records: Sequence[Record], scoring: Scoring) -> Painted:
        score = self.scored(records, scoring)
        usual = {term.metric: term.weight for term in score.terms}
        weights = weightings.weightings(self.weightings, usual)
        if len(weights) > MOST_WEIGHTINGS:
            raise RbError(f"--weightings names {len(weights)}, and {MOST_WEIGHTINGS} can be told apart.")
        columns = [score.weighed(weighting) for weighting in weights.values()]
        every = weightings.grouped(records, columns, self.group)
        rows = weightings.best(every, self.top)
        axes = figure.add_subplot()
        thick = 0.8 / len(weights)
        entries = []
        for number, title in enumerate(weights):
            places = [row + (number - (len(weights) - 1) / 2) * thick for row in range(len(rows.names))]
            lengths = [row[number] or 0.0 for row in rows.numbers]
            bars = axes.barh(places, lengths, thick * 0.9, color=style.COLOURS[number])
            entries.append((bars, title))
            spread = [
                (place, length, deviation[number])
                for place, length, deviation in zip(places, lengths, rows.deviations, strict=True)
                if deviation[number] is not None
            ]
            if spread:
                ys, xs, errors = zip(*spread, strict=True)
                axes.errorbar(
                    xs, ys, xerr=errors, linestyle="", color=style.BLACK, linewidth=0.7, capsize=1.5
                )
            if len(weights) == 1 and not spread:
                _write(axes, places, lengths)
        room = min(0.38 * self.width, 1.8)
        names = [layout.fitted(name, room, style.SMALL) for name in rows.names]
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(rows.names) - 0.45, -0.55)
        axes.set_xlim(0, 1)
        axes.grid(visible=False, axis="y")
        beside = layout.widest(names, style.SMALL) + 0.3
        listed = ", ".join(map(words.tidy, usual)) if len(usual) <= _NAMED else f"{len(usual)} metrics"
        layout.label(axes, x=f"composite score of {listed} (1 is best)", room=(self.width - beside, 2))
        height = len(rows.names) * max(0.19, 0.075 * len(weights) + 0.06) + 0.5
        title = _title(records, every, rows, self.group) + weightings.together(records, self.within, score)
        return Painted(title, height, entries if len(entries) > 1 else ())


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
