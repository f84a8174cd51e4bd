"""radar: the metrics of a composite score, or the score under several weightings, around a circle."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.errors import RbError
from rbtools.plots import layout, style, weightings, words
from rbtools.plots.base import Painted, Record, Scoring
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


LEAST_SPOKES, MOST_SPOKES, MOST_LINES = 3, 24, 14


@dataclass(frozen=True, kw_only=True)
class Radar(weightings.Composed):
    """Records around a circle: a spoke for each metric, scaled to [0, 1] over all records (1, outside, is
    the best), or for each weighting of the composite score where three or more are given.

    Needs three metrics or more of a score, or three weightings.
    """

    name: ClassVar[str] = "radar"

    top: int = param(6, "Number of records, the best by equal weights.", check="positive")

    def paint(self, figure: Figure, records: Sequence[Record], scoring: Scoring) -> Painted:
        score = self.scored(records, scoring)
        usual = {term.metric: term.weight for term in score.terms}
        if self.weightings is None:
            spokes = {name: [float(other == name) for other in usual] for name in usual}
        else:
            spokes = weightings.weightings(self.weightings, usual)
        self._check(spokes)
        columns = [score.weighed(weights) for weights in ([*usual.values()], *spokes.values())]
        every = weightings.grouped(records, columns, self.group)
        rows = weightings.best(every, self.top)
        axes = figure.add_subplot()
        side = _web(axes, list(spokes), self.width)
        entries = []
        for number, (name, numbers) in enumerate(zip(rows.names, rows.numbers, strict=True)):
            entries.append((_line(axes, numbers[1:], number), name))
        noun = "group" if self.group else "record"
        of = f"Best {len(rows.names)} of " if len(rows.names) < len(every.names) else ""
        title = words.titled(f"{of}{words.counted(len(every.names), noun)}", records)
        return Painted(title + weightings.together(records, self.within, score), side, entries)

    def _check(self, spokes: Collection[str]) -> None:
        """Raise RbError for too few or too many spokes or lines."""
        if not LEAST_SPOKES <= len(spokes) <= MOST_SPOKES:
            options = {"--weightings": self.weightings, "--metric": self.metric, "--preset": self.preset}
            option = next((name for name, text in options.items() if text is not None), None)
            what, do = f"{option} names", "; rb-plot bars draws any number of weightings"
            if option is None:
                what = f"The metrics that every record has, {', '.join(spokes)}, make"
                do = ". Name others with --metric, and --missing renormalise where some records lack some"
            raise RbError(
                f"{what} {len(spokes)} spokes of the radar. Expected {LEAST_SPOKES} to {MOST_SPOKES}{do}."
            )
        if self.top > MOST_LINES:
            raise RbError(f"--top is {self.top}. More than {MOST_LINES} lines cannot be told apart.")


def _spoke(number: int, count: int) -> tuple[float, float]:
    """The direction of a spoke: the first upwards, then clockwise."""
    angle = math.pi / 2 - 2 * math.pi * number / count
    return math.cos(angle), math.sin(angle)


def _web(axes: Axes, names: Sequence[str], width: float) -> float:
    """Draw rings, spokes and their names; returns the height in inches."""
    count = len(names)
    axes.set_axis_off()
    axes.set_aspect("equal")
    for ring in (0.25, 0.5, 0.75, 1.0):
        xs, ys = zip(
            *[(ring * x, ring * y) for x, y in (_spoke(n % count, count) for n in range(count + 1))],
            strict=True,
        )
        axes.plot(xs, ys, color=style.PALE, linewidth=0.9 if ring == 1 else 0.5, zorder=1)
    # The circle takes the width that the names at its sides leave.
    most = 0.24 * width
    texts = ["\n".join(layout.wrapped(words.tidy(name), most, style.SMALL)) for name in names]
    wide = max(
        (
            layout.widest(text.split("\n"), style.SMALL) * abs(_spoke(n, count)[0])
            for n, text in enumerate(texts)
        ),
        default=0.0,
    )
    high = max(text.count("\n") + 1 for text in texts) * layout.line_height(style.SMALL)
    radius = max(0.6, min(1.7, (width - 0.3) / 2 - wide - 0.1))
    for number, text in enumerate(texts):
        x, y = _spoke(number, count)
        axes.plot([0, x], [0, y], color=style.PALE, linewidth=0.5, zorder=1)
        across = "center" if abs(x) < 0.1 else "left" if x > 0 else "right"
        along = "center" if abs(y) < 0.6 else "bottom" if y > 0 else "top"
        axes.text(
            x * (1 + 0.07 / radius), y * (1 + 0.07 / radius), text, ha=across, va=along, size=style.SMALL
        )
    reach = 1 + 0.1 / radius
    axes.set_xlim(-reach - wide / radius, reach + wide / radius)
    # a triangle extends less below its centre than above
    low = min(_spoke(n, count)[1] for n in range(count))
    axes.set_ylim(reach * low - high / radius, reach + high / radius)
    return radius * reach * (1 - low) + 2 * high + 0.1


def _line(axes: Axes, numbers: Sequence[float | None], number: int) -> Line2D:
    count = len(numbers)
    points = [
        (value * _spoke(n, count)[0], value * _spoke(n, count)[1])
        for n, value in enumerate(numbers)
        if value is not None
    ]
    xs, ys = zip(*[*points, points[0]], strict=True) if points else ((), ())
    look = style.line(number)
    (line,) = axes.plot(xs, ys, marker=style.MARKERS[number % len(style.MARKERS)], markersize=3, **look)
    return line
