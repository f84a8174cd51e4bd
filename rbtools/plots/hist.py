"""hist: how the values of metrics are distributed over records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rbtools.plots import style, values
from rbtools.plots.base import Drawing, Record
from rbtools.registry import param


@dataclass(frozen=True, kw_only=True)
class Histogram(Drawing):
    """How many records have a metric in which range; several metrics share the bins."""

    name: ClassVar[str] = "hist"

    metric: str | None = param(
        None,
        "Metrics and expressions with commas, globs among them.  [default: score, else the metric"
        " evaluated last]",
        metavar="EXPR",
    )
    bins: int | None = param(None, "How many bins.  [default: as the data suggest]", check="positive")

    def paint(self, figure: Any, records: Sequence[Record], scoring: Any) -> str:
        import numpy as np

        names = values.chosen(records, self.metric, "--metric")
        columns = {
            name: np.array([value for value in values.column(records, name, "--metric") if value is not None])
            for name in names
        }
        figure.set_size_inches(self.width, max(2.2, 0.45 * self.width))
        axes = figure.add_subplot()
        every = np.concatenate(list(columns.values()))
        bins = np.histogram_bin_edges(every, self.bins or "auto")
        for number, (name, found) in enumerate(columns.items()):
            label = f"{name} (median {np.median(found):.4g})"
            axes.hist(found, bins, histtype="stepfilled", alpha=0.25, color=style.line(number)["color"])
            axes.hist(found, bins, histtype="step", label=label, **style.line(number))
        axes.set_xlabel(names[0] if len(names) == 1 else "value")
        axes.set_ylabel("records")
        figure.legend(loc="outside lower center", ncols=2)
        return f"{len(records):,} records"
