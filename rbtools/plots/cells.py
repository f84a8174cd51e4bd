"""cells: operations of the best cells of NAS-Bench-201 by edge, cells as graphs, the network around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.errors import RbError
from rbtools.plots import layout, record_values, style, words
from rbtools.plots.base import Drawing, Painted, Record
from rbtools.records import expr, metric_name
from rbtools.registry import param
from rbtools.spaces import nasbench201

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.container import Container
    from matplotlib.figure import Figure


MOST_ROWS = 60
MOST_GRAPHS = 12
# In the order of nasbench201.OPS: none, skip, 1x1, 3x3, pooling.
OP_LOOKS = (
    ("none", "#BDBDBD"),
    ("skip connection", style.SKY),
    ("1x1 convolution", style.ORANGE),
    ("3x3 convolution", style.BLUE),
    ("3x3 average pooling", style.GREEN),
)
_SHORT = ("none", "skip", "1x1 conv", "3x3 conv", "avg pool")
_NODES = ((0.0, 0.0), (1.25, 0.62), (2.5, -0.62), (3.75, 0.0))
# The curvature of each edge's arrow, as a share of its length, so that none passes over a node.
_BENDS = (0.16, 0.2, 0.0, -0.52, 0.08, 0.12)
# Where along its arrow the name of each edge is drawn, so that no name covers another arrow.
_PLACES = (0.6, 0.5, 0.5, 0.5, 0.5, 0.5)
# How many points before the middle of its node each arrow ends: the fifth meets the broad side of the output.
_SHRINK = (9, 9, 9, 9, 19, 9)


@dataclass(frozen=True, kw_only=True)
class CellsPlot(Drawing):
    """Cells of NAS-Bench-201: the operations on each edge of the best, or single cells as graphs.

    One record is drawn as a graph, several as a count of operations. Edges of a graph that lie on no path
    from input to output are pale. With several expressions in --by the best of each is a graph, with its edit
    distances (edges that differ) to the others below it.

    Needs architectures of NAS-Bench-201; with --top or several --by their metrics, too.
    """

    name: ClassVar[str] = "cells"

    by: str | None = param(
        None,
        "Metric or expression that decides which are the best, or several with commas.  [default: score, else"
        " the metric evaluated last; none is needed without --top]",
        metavar="EXPR",
    )
    top: int | None = param(None, "Number of best cells.  [default: all]", check="positive")
    view: str | None = param(
        None,
        "A count of operations, a graph of each cell, a grid with a row for each cell and a column for each"
        " edge, or the network around the cells.  [default: graph for one record]",
        choices=("operations", "graph", "grid", "network"),
    )

    def paint(self, figure: Figure, records: Sequence[Record]) -> Painted:
        cells = [record for record in records if record_values.cell(record) is not None]
        several = expr.items(self.by or "")
        if len(several) > 1:
            if self.top is not None or self.view not in (None, "graph"):
                raise RbError(
                    "--by has several expressions, and the best of each is drawn as a graph. Leave --top and"
                    " --view out, or name one."
                )
            return _best_of_each(figure, [self._best(cells, by, 1)[0][0] for by in several], several)
        chosen, which = self._best(cells, self.by, self.top)
        if self.view == "graph" or (self.view is None and len(chosen) == 1):
            return _graphs(figure, chosen)
        if self.view == "grid":
            return self._grid(figure, chosen, which)
        if self.view == "network":
            return _network(figure, chosen[0], self.width)
        return self._operations(figure, chosen, which)

    def _best(self, cells: list[Record], by: str | None, top: int | None) -> tuple[list[Record], str]:
        if not cells:
            raise RbError(
                "No record is of NAS-Bench-201. The cells of other spaces cannot be drawn: expected"
                " arch.space nasbench201."
            )
        if top is None and by is None:
            return cells, words.counted(len(cells), "cell")
        by = by or metric_name.default_rank_key(cells)
        pairs = zip(record_values.column(cells, by, "--by"), cells, strict=True)
        known = [(value, record) for value, record in pairs if value is not None]
        known.sort(key=lambda pair: pair[0], reverse=metric_name.higher_is_better(by))
        best = [record for _, record in known[:top]]
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
            ink = "white" if colour in (style.BLUE, style.GREEN) else "black"
            for edge, (part, start) in enumerate(zip(share, low, strict=True)):
                if part >= 0.09:  # the text fits into the bar
                    text, size = f"{100 * part:.0f} %", style.SMALL - 0.5
                    axes.text(edge, start + part / 2, text, ha="center", va="center", size=size, color=ink)
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
        if each * len(cells) > 1.4:  # otherwise the label is longer than the axis
            axes.set_ylabel("architecture, best first")
        entries = [(Patch(color=colour), words_) for words_, colour in OP_LOOKS]
        return Painted(which, each * len(cells) + 0.55, entries)


def _edge_names() -> list[str]:
    return [f"{number + 1}: {a}→{b}" for number, (a, b) in enumerate(nasbench201.EDGES)]


def _best_of_each(figure: Figure, cells: Sequence[Record], by: Sequence[str]) -> Painted:
    """The best cell by each expression, with its edit distances to the others."""
    ops = [nasbench201.ops_of(record["arch"]) for record in cells]
    numbers = [nasbench201.index_by_ops()[cell] for cell in ops]
    titles = [f"#{number}, best by {words.tidy(text)}" for number, text in zip(numbers, by, strict=True)]
    below = []
    for place, cell in enumerate(ops):
        others = [(numbers[at], other) for at, other in enumerate(ops) if at != place]
        apart = [f"{nasbench201.edit_distance(cell, other)} to #{number}" for number, other in others]
        below.append(f"edit distance {', '.join(apart)}")
    return _graphs(figure, cells, titles, below)


def _graphs(
    figure: Figure, cells: Sequence[Record], titles: Sequence[str] = (), below: Sequence[str] = ()
) -> Painted:
    """Each cell as a graph, an arrow for each edge, with a title above and a text below it."""
    if len(cells) > MOST_GRAPHS:
        raise RbError(
            f"There are {len(cells)} cells to draw as graphs, and {MOST_GRAPHS} fit. Choose with --top"
            f" {MOST_GRAPHS} or --where."
        )
    grid = layout.grid(figure, len(cells), least=2.6, side=0.1)
    names = titles or words.tags(cells)
    lines = 0
    for place, (axes, record) in enumerate(zip(grid.axes, cells, strict=True)):
        _graph(axes, nasbench201.ops_of(record["arch"]))
        title = layout.wrapped(names[place], grid.width - 0.2, style.SMALL) if len(cells) > 1 else []
        under = layout.wrapped(below[place], grid.width - 0.2, style.SMALL) if below else []
        axes.set_title("\n".join(title), size=style.SMALL)
        axes.text(0.5, 0, "\n".join(under), transform=axes.transAxes, size=style.SMALL, ha="center", va="top")
        lines = max(lines, len(title) + len(under))
    from matplotlib.lines import Line2D

    entries = [
        (Line2D([], [], color=colour, linewidth=2, linestyle=_stroke(op)), words_)
        for op, (words_, colour) in enumerate(OP_LOOKS)
    ]
    each = 0.48 * grid.width + lines * layout.line_height(style.SMALL) + 0.12 * (lines > 0)
    heading = names[0] if len(cells) == 1 else words.counted(len(cells), "cell")
    return Painted(heading, grid.rows * each, entries)


def _stroke(op: int) -> Any:
    return (0, (2, 2)) if op == 0 else "-"


def _along(
    start: tuple[float, float], end: tuple[float, float], bend: float, share: float
) -> tuple[float, float]:
    """The point at a share of a quadratic curve whose handle is off the chord's middle by `bend` of it."""
    (x0, y0), (x1, y1) = start, end
    handle = (x0 + x1) / 2 + bend * (y1 - y0), (y0 + y1) / 2 - bend * (x1 - x0)
    weights = (1 - share) ** 2, 2 * share * (1 - share), share**2
    x, y = (
        sum(weight * at for weight, at in zip(weights, along, strict=True))
        for along in zip(start, handle, end, strict=True)
    )
    return x, y


def _graph(axes: Axes, ops: Sequence[int]) -> None:
    """Nodes 0 to 3 and an arrow for each edge; dead edges are pale."""
    from matplotlib.patches import FancyArrowPatch

    axes.set_axis_off()
    axes.set_xlim(-0.35, 4.1)
    axes.set_ylim(-0.95, 1.15)
    axes.set_aspect("equal")  # the curvature is a share of the length in any direction
    live = nasbench201.live_edges(tuple(ops))
    for edge, (start, end) in enumerate(nasbench201.EDGES):
        colour = OP_LOOKS[ops[edge]][1]
        (x0, y0), (x1, y1), bend = _NODES[start], _NODES[end], _BENDS[edge]
        axes.add_patch(
            FancyArrowPatch(
                (x0, y0),
                (x1, y1),
                connectionstyle=f"arc3,rad={bend}",
                arrowstyle="-|>",
                mutation_scale=9,
                color=colour,
                linewidth=1.1 if ops[edge] == 0 else 1.9,
                linestyle=_stroke(ops[edge]),
                alpha=1.0 if live[edge] or ops[edge] == 0 else 0.4,
                shrinkA=9,
                shrinkB=_SHRINK[edge],
            )
        )
        axes.text(
            *_along((x0, y0), (x1, y1), bend, _PLACES[edge]),
            f"{edge + 1}: {_SHORT[ops[edge]]}",
            size=style.SMALL - 0.5,
            ha="center",
            va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )
    for number, (x, y) in enumerate(_NODES):
        axes.text(
            x,
            y,
            ("input", "1", "2", "output")[number] if number in (0, 3) else str(number),
            size=style.SMALL,
            ha="center",
            va="center",
            zorder=5,
            bbox={
                "boxstyle": "round,pad=0.35",
                "facecolor": "white",
                "edgecolor": style.BLACK,
                "linewidth": 0.9,
            },
        )


def _network(figure: Figure, record: Record, width: float) -> Painted:
    """The stages of the network around a cell, from the image to the logits, in two rows."""
    from matplotlib.patches import FancyBboxPatch

    arch = record["arch"]
    channels, count = (
        int(arch.get("channels", nasbench201.CHANNELS)),
        int(arch.get("cells", nasbench201.CELLS)),
    )
    cells = f"{count} × cell\n{{}} channels"
    blocks = [
        ("image", style.PALE),
        (f"3x3 conv\n{channels} channels", style.BLUE),
        (cells.format(channels), style.ORANGE),
        (f"residual /2\n{2 * channels} channels", style.GREEN),
        (cells.format(2 * channels), style.ORANGE),
        (f"residual /2\n{4 * channels} channels", style.GREEN),
        (cells.format(4 * channels), style.ORANGE),
        ("mean over\nthe image", style.SKY),
        ("linear\nlogits", style.PURPLE),
    ]
    rows = 1 if width >= 8 else 3 if width < 4 else 2
    across = -(-len(blocks) // rows)
    wide, high = (width - 0.2) / across, 0.62
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_xlim(0, across * wide)
    axes.set_ylim(rows * high, 0)
    for number, (text, colour) in enumerate(blocks):
        row, column = divmod(number, across)
        x, y = column * wide + 0.11, row * high + 0.08
        box = FancyBboxPatch(
            (x, y),
            wide - 0.22,
            high - 0.16,
            boxstyle="round,pad=0,rounding_size=0.05",
            facecolor=colour + "40",
            edgecolor=colour,
            linewidth=0.9,
        )
        axes.add_patch(box)
        axes.text(
            x + wide / 2 - 0.11, y + high / 2 - 0.08, text, ha="center", va="center", size=style.SMALL - 0.5
        )
        if column < across - 1 and number < len(blocks) - 1:
            ends = (x + wide - 0.22, y + high / 2 - 0.08), (x + wide, y + high / 2 - 0.08)
            axes.annotate("", ends[1], ends[0], arrowprops={"arrowstyle": "-|>", "linewidth": 0.8})
    return Painted(f"The network of {words.tags([record])[0]}", rows * high + 0.05)
