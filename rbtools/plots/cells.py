"""cells: operations of the best cells of NAS-Bench-201 by edge, cells as graphs, the network around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.errors import RbError
from rbtools.plots import cell_pictures, layout, record_values, style, words
from rbtools.plots.base import Drawing, Painted, Record, Scoring
from rbtools.plots.cell_pictures import OP_LOOKS
from rbtools.records import metric_name
from rbtools.registry import param
from rbtools.spaces import nasbench201

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.container import Container
    from matplotlib.figure import Figure


MOST_ROWS = 60


@dataclass(frozen=True, kw_only=True)
class CellsPlot(Drawing):
    """Cells of NAS-Bench-201: the operations on each edge of the best, or single cells as graphs.

    One record is drawn as a graph, several as a count of operations. Edges of a graph that lie on no path
    from input to output are pale.
    """

    name: ClassVar[str] = "cells"

    by: str | None = param(
        None,
        "Metric or expression that decides which are the best.  [default: score, else the metric evaluated"
        " last; none is needed without --top]",
        metavar="EXPR",
    )
    top: int | None = param(None, "Number of best cells.  [default: all]", check="positive")
    view: str | None = param(
        None,
        "A count of operations, a graph of each cell, a grid with a row for each cell and a column for each"
        " edge, or the network around the cells.  [default: graph for one record]",
        choices=("operations", "graph", "grid", "network"),
    )

    def paint(self, figure: Figure, records: Sequence[Record], scoring: Scoring) -> Painted:
        chosen, which = self._best([record for record in records if _is_cell(record)])
        if self.view == "graph" or (self.view is None and len(chosen) == 1):
            return cell_pictures.graphs(figure, chosen)
        if self.view == "grid":
            return self._grid(figure, chosen, which)
        if self.view == "network":
            return cell_pictures.network(figure, chosen[0], self.width)
        return self._operations(figure, chosen, which)

    def _best(self, cells: list[Record]) -> tuple[list[Record], str]:
        if not cells:
            raise RbError(
                "No record is of NAS-Bench-201. The cells of other spaces cannot be drawn: expected"
                " arch.space nasbench201."
            )
        if self.top is None and self.by is None:
            return cells, words.counted(len(cells), "cell")
        by = self.by or metric_name.default_rank_key(cells)
        pairs = zip(record_values.column(cells, by, "--by"), cells, strict=True)
        known = [(value, record) for value, record in pairs if value is not None]
        known.sort(key=lambda pair: pair[0], reverse=metric_name.higher_is_better(by))
        best = [record for _, record in known[: self.top]]
        of = f" of {len(known):,}" if len(best) < len(known) else ""
        return best, f"{words.counted(len(best), 'cell')}{of}, best by {words.tidy(by)}"

    def _operations(self, figure: Figure, cells: Sequence[Record], which: str) -> Painted:
        axes = figure.add_subplot()
        count = len(nasbench201.EDGES)
        ops = [nasbench201.ops_of(record["arch"]) for record in cells]
        entries: list[tuple[Artist | Container, str]] = []
        low = [0.0] * count
        for op, (words_, colour) in enumerate(OP_LOOKS):
            share = [sum(cell[edge] == op for cell in ops) / len(ops) for edge in range(count)]
            bars = axes.bar(range(count), share, 0.72, low, color=colour, edgecolor="white", linewidth=0.6)
            _write_shares(axes, share, low, colour)
            entries.append((bars, words_))
            low = [a + b for a, b in zip(low, share, strict=True)]
        layout.name_x(axes, _edge_names(), self.width - 0.7)
        axes.set_ylim(0, 1)
        axes.set_xlim(-0.5, count - 0.5)
        axes.grid(visible=False)
        height = max(2.1, 0.45 * self.width)
        layout.label(axes, x="edge of the cell", y="share of cells", room=(self.width - 0.7, height - 0.4))
        return Painted(which, height, entries)

    def _grid(self, figure: Figure, cells: Sequence[Record], which: str) -> Painted:
        """A row for each cell, by its index and class, a column for each edge."""
        if len(cells) > MOST_ROWS:
            raise RbError(
                f"There are {len(cells):,} cells, and {MOST_ROWS} rows fit. Choose with --top {MOST_ROWS} or"
                " --where."
            )
        from matplotlib.colors import ListedColormap
        from matplotlib.patches import Patch

        axes = figure.add_subplot()
        ops = [nasbench201.ops_of(record["arch"]) for record in cells]
        colours = ListedColormap([colour for _, colour in OP_LOOKS])
        axes.imshow(ops, cmap=colours, vmin=0, vmax=len(OP_LOOKS) - 1, aspect="auto", interpolation="nearest")
        for edge in range(len(nasbench201.EDGES) + 1):
            axes.axvline(edge - 0.5, color="white", linewidth=1.2)
        for row in range(len(cells) + 1):
            axes.axhline(row - 0.5, color="white", linewidth=1.2)
        each = 0.17 if len(cells) <= 30 else 0.12
        names = [f"#{nasbench201.index_of(nasbench201.to_string(cell))}" for cell in ops]
        layout.name_x(axes, _edge_names(), self.width - 0.9)
        layout.name_y(axes, names, each * len(cells), min(style.SMALL, layout.label_size(each)))
        axes.grid(visible=False)
        axes.tick_params(length=0)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        layout.label(axes, x="edge of the cell", room=(self.width - 0.7, 3))
        if each * len(cells) > 1.4:  # else the words are longer than the axis
            axes.set_ylabel("architecture, best first")
        entries = [(Patch(color=colour), words_) for words_, colour in OP_LOOKS]
        return Painted(which, each * len(cells) + 0.55, entries)


def _edge_names() -> list[str]:
    return [f"{number + 1}: {a}→{b}" for number, (a, b) in enumerate(nasbench201.EDGES)]


def _is_cell(record: Record) -> bool:
    """Whether a record is of NAS-Bench-201 and says which of its cells."""
    arch = record.get("arch")
    if not isinstance(arch, dict) or arch.get("space") != nasbench201.NASBench201.name:
        return False
    try:
        nasbench201.ops_of(arch)
    except RbError:
        return False
    return True


def _write_shares(axes: Axes, share: Sequence[float], low: Sequence[float], colour: str) -> None:
    """The share in percent inside each bar that is high enough for it."""
    ink = "white" if colour in (style.BLUE, style.GREEN) else "black"
    for edge, (part, start) in enumerate(zip(share, low, strict=True)):
        if part >= 0.09:
            text, size = f"{100 * part:.0f} %", style.SMALL - 0.5
            axes.text(edge, start + part / 2, text, ha="center", va="center", size=size, color=ink)
