"""The registered plots. Each plot is a frozen dataclass of options in its own file, with one line here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rbtools.registry import Registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PLOTS = Registry(
    "plot",
    {
        "box": "rbtools.plots.box:Box",
        "hist": "rbtools.plots.hist:Histogram",
        "scatter": "rbtools.plots.scatter:Scatter",
        "curves": "rbtools.plots.curves:CurvesPlot",
        "ranks": "rbtools.plots.ranks:Ranks",
        "heatmap": "rbtools.plots.heatmap:Heatmap",
        "bars": "rbtools.plots.bars:Bars",
        "confidence": "rbtools.plots.confidence:Confidence",
        "confusion": "rbtools.plots.confusion:Confusion",
        "cells": "rbtools.plots.cells:CellsPlot",
        "search": "rbtools.plots.best_so_far:SearchPlot",
    },
    group="plots",
    closed=True,
)


class Plot(Protocol):
    """The interface of registered plots. `endings` are the possible file extensions."""

    name: ClassVar[str]
    endings: ClassVar[tuple[str, ...]]

    def draw(self, records: Iterable[dict[str, Any]]) -> Figure | str:
        """Draw the records and return a matplotlib Figure or, for text formats, the text of the file. Raises
        RbError if there are no records, or if the records lack the data to draw."""
        ...
