"""The plot `cells`: operations on the edges of NAS-Bench-201 cells, cells as graphs, or a cell's network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plots import marks, record_values, style, words
from rbtools.plots.base import Drawing, Record
from rbtools.plots.renderer import FigureSpec, Panel
from rbtools.records import expr, metric_name
from rbtools.registry import param
from rbtools.spaces import nasbench201

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
EDGE_NAMES = [f"{number + 1}: {a}→{b}" for number, (a, b) in enumerate(nasbench201.EDGES)]
_SHORT = ("none", "skip", "1x1 conv", "3x3 conv", "avg pool")
_NODES = ((0.0, 0.0), (1.25, 0.62), (2.5, -0.62), (3.75, 0.0))
# The curvature of each edge's arrow, as a share of its length. No arrow may cross a node.
_BENDS = (0.16, 0.2, 0.0, -0.52, 0.08, 0.12)
# The position of each edge's name along its arrow. No name may cover another arrow.
_PLACES = (0.6, 0.5, 0.5, 0.5, 0.5, 0.5)
# The distance in points between each arrow's end and the middle of its node; the output node is wide.
_SHRINK = (9, 9, 9, 9, 19, 9)


@dataclass(frozen=True, kw_only=True)
class CellsPlot(Drawing):
    """Cells of NAS-Bench-201, as counts of the operations on each edge of the best cells or as graphs of
    single cells.

    A single record is drawn as a graph, and several records are drawn as counts of operations. Edges that are
    not on a path from input to output are pale. With several expressions in --by, the best cell for each
    expression is drawn as a graph, and the edit distances to the other cells (numbers of different edges) are
    written below each graph.

    Needs architectures of NAS-Bench-201 and, with --top or several expressions in --by, the metrics in these
    options.
    """

    name: ClassVar[str] = "cells"

    by: str | None = param(
        None,
        "With --top, the metric or expression that ranks the cells; several expressions are separated by"
        " commas.  [default: score, or else the metric that was evaluated last]",
        metavar="EXPR",
    )
    top: int | None = param(None, "Number of best cells to draw.  [default: all]", check="positive")
    view: str | None = param(
        None,
        "What to draw: counts of operations, a graph of each cell, a grid with a row for each cell"
        " and a column for each edge, or the network around the cells.  [default: graph for one"
        " record]",
        choices=("operations", "graph", "grid", "network"),
    )

    def spec(self, records: Sequence[Record]) -> FigureSpec:
        cells = [record for record in records if record_values.cell(record) is not None]
        several = expr.items(self.by or "")
        if len(several) > 1:
            if self.top is not None or self.view not in (None, "graph"):
                raise RbError(
                    "--by has several expressions, and the best cell of each is drawn as a graph. Leave out"
                    " --top and --view, or name one expression."
                )
            return _best_of_each([self._best(cells, by, 1)[0] for by in several], several)
        chosen = self._best(cells, self.by, self.top)
        if self.view == "graph" or (self.view is None and len(chosen) == 1):
            return _graphs(chosen, words.tags(chosen))
        if self.view == "grid":
            return _grid(chosen)
        if self.view == "network":
            return _network(chosen[0], self.width)
        return _operations(chosen)

    def _best(self, cells: list[Record], by: str | None, top: int | None) -> list[Record]:
        if not cells:
            raise RbError(
                "None of the records is from NAS-Bench-201, and only its cells can be drawn. Expected"
                " records with arch.space nasbench201."
            )
        if top is None and by is None:
            return cells
        order = record_values.ordered(cells, by or metric_name.default_rank_key(cells))
        return [cells[place] for place in order[:top]]


def _operations(cells: Sequence[Record]) -> FigureSpec:
    ops = np.array([nasbench201.ops_of(record["arch"]) for record in cells])

    def draw(axes: Axes) -> None:
        low = np.zeros(ops.shape[1])
        for op, (name, colour) in enumerate(OP_LOOKS):
            share = (ops == op).mean(0)
            look: dict[str, Any] = {"color": colour, "edgecolor": "white", "linewidth": 0.6, "label": name}
            bars = axes.bar(range(ops.shape[1]), share, 0.72, low, **look)
            texts = [f"{100 * part:.0f} %" if part >= 0.09 else "" for part in share]  # if it fits
            ink = "white" if colour in (style.BLUE, style.GREEN) else "black"
            axes.bar_label(bars, texts, label_type="center", size=style.small() - 0.5, color=ink)
            low += share
        axes.set(xlim=(-0.5, ops.shape[1] - 0.5), ylim=(0, 1))
        axes.grid(visible=False)

    return FigureSpec(
        [Panel(draw, x="edge of the cell", y=f"share of {len(cells):,} cells", columns=EDGE_NAMES)]
    )


def _grid(cells: Sequence[Record]) -> FigureSpec:
    if len(cells) > MOST_ROWS:
        raise RbError(
            f"There are {len(cells):,} cells, but only {MOST_ROWS} rows fit. Choose some with --top"
            f" {MOST_ROWS} or --where."
        )
    ops = np.array([nasbench201.ops_of(record["arch"]) for record in cells])

    def draw(axes: Axes) -> None:
        from matplotlib.colors import ListedColormap

        colours = ListedColormap([colour for _, colour in OP_LOOKS])
        marks.matrix(axes, ops, cmap=colours, vmin=0, vmax=len(OP_LOOKS) - 1)
        axes.vlines(np.arange(ops.shape[1]) - 0.5, -0.5, len(ops) - 0.5, color="white", linewidth=1.2)
        axes.hlines(np.arange(len(ops)) - 0.5, -0.5, ops.shape[1] - 0.5, color="white", linewidth=1.2)
        for name, colour in OP_LOOKS:
            axes.bar(0, 0, color=colour, label=name)

    each = 0.17 if len(cells) <= 30 else 0.12
    names = [f"#{nasbench201.index_by_ops()[tuple(cell)]}" for cell in ops.tolist()]
    y = "architecture, best first" if each * len(cells) > 1.4 else ""  # the label must fit along the axis
    panel = Panel(draw, x="edge of the cell", y=y, columns=EDGE_NAMES, rows=names)
    return FigureSpec([panel], lambda _: each * len(cells))


def _best_of_each(cells: Sequence[Record], by: Sequence[str]) -> FigureSpec:
    ops = [nasbench201.ops_of(record["arch"]) for record in cells]
    numbers = [nasbench201.index_by_ops()[cell] for cell in ops]
    titles = [f"#{number}, best by {words.label(text)}" for number, text in zip(numbers, by, strict=True)]
    below = []
    for place, cell in enumerate(ops):
        others = [(numbers[at], other) for at, other in enumerate(ops) if at != place]
        apart = [f"{nasbench201.edit_distance(cell, other)} to #{number}" for number, other in others]
        below.append(f"edit distance {', '.join(dict.fromkeys(apart))}")
    return _graphs(cells, titles, below)


def _graphs(cells: Sequence[Record], titles: Sequence[str], below: Sequence[str] | None = None) -> FigureSpec:
    if len(cells) > MOST_GRAPHS:
        raise RbError(
            f"There are {len(cells)} cells to draw as graphs, but only {MOST_GRAPHS} fit. Choose some with"
            f" --top {MOST_GRAPHS} or --where."
        )
    panels = [
        Panel(partial(_graph, ops=nasbench201.ops_of(record["arch"])), title, under)
        for record, title, under in zip(cells, titles, below or [""] * len(cells), strict=True)
    ]
    return FigureSpec(panels, lambda width: 0.47 * width, least=2.4, alike=False)


def _stroke(op: int) -> Any:
    return (0, (2, 2)) if op == 0 else "-"


def _graph(axes: Axes, ops: Sequence[int]) -> None:
    """The nodes 0 to 3 of a cell, and an arrow for each edge; edges without effect are pale."""
    from matplotlib.patches import FancyArrowPatch

    axes.set(xlim=(-0.35, 4.1), ylim=(-0.95, 1.15), frame_on=False, xticks=[], yticks=[])
    axes.set_aspect("equal")  # the curvature is a share of the length in any direction
    for op, (name, colour) in enumerate(OP_LOOKS):
        axes.plot([], [], color=colour, linewidth=2, linestyle=_stroke(op), label=name)
    live = nasbench201.live_edges(tuple(ops))
    middle: dict[str, Any] = {"ha": "center", "va": "center"}
    for edge, (op, bend, share) in enumerate(zip(ops, _BENDS, _PLACES, strict=True)):
        ends = [_NODES[node] for node in nasbench201.EDGES[edge]]
        arrow = FancyArrowPatch(
            *ends,
            connectionstyle=f"arc3,rad={bend}",
            arrowstyle="-|>",
            mutation_scale=9,
            color=OP_LOOKS[op][1],
            linewidth=1.1 if op == 0 else 1.9,
            linestyle=_stroke(op),
            alpha=1.0 if live[edge] or op == 0 else 0.4,
            shrinkA=9,
            shrinkB=_SHRINK[edge],
        )
        axes.add_patch(arrow)
        # The arrow is a quadratic curve. Its control point is `bend` times the chord's length off the middle.
        start, end = np.array(ends)
        handle = (start + end) / 2 + bend * np.array([end[1] - start[1], start[0] - end[0]])
        x, y = (1 - share) ** 2 * start + 2 * share * (1 - share) * handle + share**2 * end
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        axes.text(x, y, f"{edge + 1}: {_SHORT[op]}", size=style.small() - 0.5, bbox=box, **middle)
    for name, (x, y) in zip(("input", "1", "2", "output"), _NODES, strict=True):
        box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": style.BLACK, "linewidth": 0.9}
        axes.text(x, y, name, size=style.small(), zorder=5, bbox=box, **middle)


def _network(record: Record, width: float) -> FigureSpec:
    arch = record["arch"]
    channels = int(arch.get("channels", nasbench201.CHANNELS))
    cell = f"{int(arch.get('cells', nasbench201.CELLS))} × cell"
    blocks = [("image", style.PALE), (f"3x3 conv\n{channels} channels", style.BLUE)]
    for stage in (1, 2, 4):
        if stage > 1:
            blocks.append((f"residual /2\n{stage * channels} channels", style.GREEN))
        blocks.append((f"{cell}\n{stage * channels} channels", style.ORANGE))
    blocks += [("mean over\nthe image", style.SKY), ("linear\nlogits", style.PURPLE)]
    rows = 1 if width >= 8 else 3 if width < 4 else 2
    across = -(-len(blocks) // rows)

    def draw(axes: Axes) -> None:
        axes.set(xlim=(-0.5, across - 0.5), ylim=(rows - 0.5, -0.5), frame_on=False, xticks=[], yticks=[])
        before: Any = None
        for number, (text, colour) in enumerate(blocks):
            row, column = divmod(number, across)
            column = across - 1 - column if row % 2 else column  # the next row runs back
            box = {"boxstyle": "round,pad=0.5", "facecolor": colour + "40", "edgecolor": colour}
            how: dict[str, Any] = {"ha": "center", "va": "center", "size": style.small() - 0.5}
            shown = axes.text(column, row, text, bbox=box, zorder=3, **how)
            if before is not None:
                ends = {"patchA": before.get_bbox_patch(), "patchB": shown.get_bbox_patch()}
                arrow = {"arrowstyle": "-|>", "linewidth": 0.8, **ends}
                axes.annotate("", (column, row), before.get_position(), arrowprops=arrow)
            before = shown

    return FigureSpec([Panel(draw)], lambda _: 0.62 * rows)
