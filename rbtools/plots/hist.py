"""The plot `hist`: histograms of metrics over records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plots import layout, record_values, style, words
from rbtools.plots.base import Drawing, Record
from rbtools.plots.renderer import FigureSpec, Panel, shaped
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MOST = 8  # the most histograms in one figure
MOST_BINS = 1000
_BINS = 60


@dataclass(frozen=True, kw_only=True)
class Histogram(Drawing):
    """Histograms of metrics over records. Several metrics share the same bins.

    Needs at least one metric.
    """

    name: ClassVar[str] = "hist"

    metric: str | None = param(
        None,
        "Metrics, globs and expressions, separated by commas.  [default: score, or else the metric that was"
        " evaluated last]",
        metavar="EXPR",
    )
    bins: int | None = param(None, "Number of bins.  [default: chosen from the data]", check="positive")

    def spec(self, records: Sequence[Record]) -> FigureSpec:
        if self.bins is not None and self.bins > MOST_BINS:
            raise RbError(f"--bins is {self.bins}. Expected at most {MOST_BINS}.")
        names = record_values.chosen(records, self.metric, "--metric")
        if len(names) > MOST:
            raise RbError(
                f"--metric names {len(names)} metrics. More than {MOST} histograms in one figure cannot be"
                " told apart: name fewer, or draw a box plot (rb-plot box)."
            )
        columns = {
            name: np.array(record_values.present(record_values.column(records, name, "--metric")))
            for name in names
        }
        bins = self._edges(np.concatenate(list(columns.values()))).tolist()
        looks = style.look(names)

        def draw(axes: Axes) -> None:
            for name, numbers in columns.items():
                look = {key: looks[name][key] for key in ("color", "linestyle")}
                axes.hist(numbers, bins, histtype="stepfilled", alpha=0.18, color=look["color"])
                axes.hist(numbers, bins, histtype="step", **look)
                of = "" if len(numbers) == len(records) else f" ({words.counted(len(numbers), 'model')})"
                axes.plot([], [], label=words.label(name) + of if len(names) > 1 or of else None, **look)
            layout.plain_numbers(axes.xaxis)
            layout.whole_numbers(axes.yaxis)

        return FigureSpec([Panel(draw, x=words.axis(names), y="models")], shaped(0.42, 2.3))

    def _edges(self, numbers: np.ndarray) -> np.ndarray:
        if numbers.min() == numbers.max():  # a single bin, narrower than numpy's, which has width 1.0
            half = 0.02 * abs(numbers[0]) or 0.02
            return np.array([numbers[0] - half, numbers[0] + half])
        edges = np.histogram_bin_edges(numbers, self.bins or "auto")
        if self.bins is None and len(edges) > _BINS + 1:
            edges = np.histogram_bin_edges(numbers, _BINS)
        return edges
