"""Pictures of single cells of NAS-Bench-201, and of the network made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError
from rbtools.plots import layout, style, words
from rbtools.plots.base import Painted, Record
from rbtools.spaces import nasbench201

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_GRAPHS = 12
# By place in nasbench201.OPS: none, skip, 1x1, 3x3, pooling.
OP_LOOKS = (
    ("none", "#BDBDBD"),
    ("skip connection", style.SKY),
    ("1x1 convolution", style.ORANGE),
    ("3x3 convolution", style.BLUE),
    ("3x3 average pooling", style.GREEN),
)
_SHORT = ("none", "skip", "1x1 conv", "3x3 conv", "avg pool")
_NODES = ((0.0, 0.0), (1.25, 0.62), (2.5, -0.62), (3.75, 0.0))
# How far the arrow of each edge bends, in shares of its length, so that none passes over a node.
_BENDS = (0.16, 0.2, 0.0, -0.52, 0.08, 0.12)
# Where along its arrow the name of each edge is drawn, so that no name covers another arrow.
_PLACES = (0.6, 0.5, 0.5, 0.5, 0.5, 0.5)
# How many points before the middle of its node each arrow ends: the fifth meets the broad side of the output.
_SHRINK = (9, 9, 9, 9, 19, 9)


def graphs(figure: Figure, cells: Sequence[Record]) -> Painted:
    """Each cell as a graph, an arrow for each edge."""
    if len(cells) > MOST_GRAPHS:
        raise RbError(
            f"There are {len(cells)} cells to draw as graphs, and {MOST_GRAPHS} fit. Choose with --top"
            f" {MOST_GRAPHS} or --where."
        )
    grid = layout.grid(figure, len(cells), least=2.6, side=0.1)
    names = words.tags(cells)
    for axes, record, name in zip(grid.axes, cells, names, strict=True):
        _graph(axes, nasbench201.ops_of(record["arch"]))
        if len(cells) > 1:
            axes.set_title(name, size=style.SMALL)
    from matplotlib.lines import Line2D

    entries = [
        (Line2D([], [], color=colour, linewidth=2, linestyle=_stroke(op)), words_)
        for op, (words_, colour) in enumerate(OP_LOOKS)
    ]
    each = 0.48 * grid.width
    title = names[0] if len(cells) == 1 else words.counted(len(cells), "cell")
    return Painted(title, grid.rows * (each + 0.25 * (len(cells) > 1)), entries)


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
    axes.set_aspect("equal")  # bends are in shares of a length, whatever its direction
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


def network(figure: Figure, record: Record, width: float) -> Painted:
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
