"""Figures and pages made from records: one file for each kind, and one line here.

A kind is a frozen dataclass of its options. `draw` takes records and returns a matplotlib Figure or, for text
formats, a text. `base.encode` returns the bytes of the file for both.
"""

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
        """The Figure, or the text of the file.

        Raises RbError without records, or if they lack the data to draw.
        """
        ...
