"""scatter: two metrics against each other, coloured by a third."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rbtools.errors import RbError
from rbtools.plots import layout, record_values, style, words
from rbtools.plots.base import Drawing, Painted, Record
from rbtools.records import expr, metric_name
from rbtools.registry import param
from rbtools.scoring.rank_order import front
from rbtools.spaces import nasbench201

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure


MOST_GROUPS = 16  # the number of distinguishable colours and shapes
_NAMED = 20  # the most points with names beside them
_OP_NAMES = {
    "none": "none",
    "skip_connect": "skip",
    "nor_conv_1x1": "1x1 convolution",
    "nor_conv_3x3": "3x3 convolution",
    "avg_pool_3x3": "3x3 average pooling",
}


class Points(NamedTuple):
    """The records that have both values."""

    records: list[Record]
    x: list[float]
    y: list[float]


@dataclass(frozen=True, kw_only=True)
class Scatter(Drawing):
    """Two metrics against each other, coloured by a third, with the Pareto front.

    `neighbours=13714` marks one architecture of NAS-Bench-201 and those that differ from it in one edge:
    colour and shape show the operation that the edge has instead, the number beside it the edge (1: 0→1, 2:
    0→2, 3: 1→2, 4: 0→3, 5: 1→3, 6: 2→3).

    Needs two metrics or fields: --x and --y.
    """

    name: ClassVar[str] = "scatter"

    x: str = param("acc", "Metric or expression along the horizontal axis.", metavar="EXPR")
    y: str | None = param(
        None,
        "Metric or expression along the vertical axis.  [default: score, else the metric evaluated last]",
        metavar="EXPR",
    )
    colour: str | None = param(
        None, "Metric or expression for the colour, or a text such as train.method.", metavar="EXPR"
    )
    highlight: str | None = param(
        None, "Condition of the records that are marked: 'live_kernel_params == 18'.", metavar="EXPR"
    )
    pareto: bool = param(False, "Mark the Pareto front: records that no other beats in both metrics.")
    neighbours: str | None = param(
        None, "Index, name or string of an architecture whose neighbours are marked.", metavar="ARCH"
    )
    log_x: bool = param(False, "Logarithmic horizontal axis, for parameters and times.")

    def paint(self, figure: Figure, records: Sequence[Record]) -> Painted:
        colours = (
            ("--colour", self.colour),
            ("--neighbours", self.neighbours),
            ("--highlight", self.highlight),
        )
        options = [option for option, text in colours if text is not None]
        if len(options) > 1:
            raise RbError(f"{' and '.join(options)} both give points a colour. Leave one out.")
        y = self.y or metric_name.default_rank_key(records)
        points = _points(records, self.x, y)
        axes = figure.add_subplot()
        if self.log_x:
            self._scale(axes, points)
        entries: list[tuple[Artist, str]] = []
        if self.neighbours is not None:
            entries = _neighbourhood(axes, points, nasbench201.find(self.neighbours))
        elif self.highlight is not None:
            entries = _highlighted(axes, points, self.highlight)
        elif self.colour is not None:
            entries = self._coloured(figure, axes, points)
        else:
            _plain(axes, points)
        if self.pareto:
            entries += self._front(axes, points, y)
        height = min(self.width, max(2.2, 0.62 * self.width))
        layout.label(axes, x=words.axis([self.x]), y=words.axis([y]), room=(self.width - 0.9, height - 0.5))
        layout.plain_numbers(axes.yaxis)
        if not self.log_x:
            layout.plain_numbers(axes.xaxis)
        title = words.titled(words.counted(len(points.records)), records)
        return Painted(title, height, entries)

    def _scale(self, axes: Axes, points: Points) -> None:
        from matplotlib.ticker import FuncFormatter, NullFormatter

        if min(points.x) <= 0:
            raise RbError(
                f"--log-x: '{self.x}' is {min(points.x):g} for a record. Ratios need numbers above 0."
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(layout.short_number))
        short = max(points.x) / min(points.x) < 30  # the range is too short for ticks at powers of ten only
        axes.xaxis.set_minor_formatter(FuncFormatter(_at_2_and_5) if short else NullFormatter())
        axes.tick_params(axis="x", which="minor", labelsize=style.SMALL)

    def _coloured(self, figure: Figure, axes: Axes, points: Points) -> list[tuple[Artist, str]]:
        """Colours by a number, with a bar beside the axes, or by a text, with a legend."""
        assert self.colour is not None
        texts = _texts(points.records, self.colour)
        if texts is not None:
            return _grouped(axes, points, texts, self.colour)
        shades = record_values.column(points.records, self.colour, "--colour")
        known = [place for place, shade in enumerate(shades) if shade is not None]
        unshaded = [place for place, shade in enumerate(shades) if shade is None]
        _dots(axes, points, unshaded, color=style.PALE)
        # In the order of the colour both ends stay visible; otherwise the densest part would cover them.
        known.sort(key=lambda place: shades[place] or 0.0)
        drawn = _dots(axes, points, known, c=[shades[place] for place in known], cmap="viridis")
        bar = figure.colorbar(drawn, ax=axes, pad=0.02, aspect=28)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=style.SMALL)
        bar.set_label("\n".join(layout.wrapped(words.axis([self.colour]), 1.7, style.SIZE)))
        layout.plain_numbers(bar.ax.yaxis)
        return []

    def _front(self, axes: Axes, points: Points, y: str) -> list[tuple[Artist, str]]:
        higher = (metric_name.higher_is_better(self.x), metric_name.higher_is_better(y))
        best = front(list(zip(points.x, points.y, strict=True)), higher)
        places = [place for place, is_best in enumerate(best) if is_best]
        ordered = sorted(places, key=lambda place: (points.x[place], points.y[place]))
        (line,) = axes.plot(
            [points.x[place] for place in ordered],
            [points.y[place] for place in ordered],
            # Between two points of the front, the second is attained, or if less x is better the first.
            drawstyle="steps-pre" if higher[0] else "steps-post",
            color=style.VERMILLION,
            linewidth=1.2,
            marker="o",
            markersize=5,
            markerfacecolor="none",
            markeredgewidth=1.1,
            zorder=5,
        )
        return [(line, f"Pareto front ({words.counted(len(best))})")]


def _points(records: Sequence[Record], x: str, y: str) -> Points:
    pairs = zip(
        records, record_values.column(records, x, "--x"), record_values.column(records, y, "--y"), strict=True
    )
    both = [(record, a, b) for record, a, b in pairs if a is not None and b is not None]
    if not both:
        raise RbError(f"No record has both '{x}' and '{y}'.")
    return Points(*map(list, zip(*both, strict=True)))


def _texts(records: Sequence[Record], text: str) -> list[str] | None:
    """The values of an expression if they are texts; else None."""
    try:
        compiled = expr.compile(text)
    except RbError as wrong:
        raise RbError(f"--colour: {wrong}") from None
    texts: list[str] = []
    for record in records:
        try:
            value = compiled(record)
        except RbError:
            value = None
        if value is not None and not isinstance(value, str):
            return None
        texts.append("without" if value is None else words.tidy(value))
    return texts if any(value != "without" for value in texts) else None


def _dots(axes: Axes, points: Points, places: Sequence[int], **look: Any) -> PathCollection:
    count = len(places)
    size = 14 if count <= 200 else 6 if count <= 2000 else 3
    look = {
        "s": size,
        "linewidths": 0,
        "alpha": 1 if count <= 200 else 0.6,
        "rasterized": count > 500,
        **look,
    }
    return axes.scatter([points.x[place] for place in places], [points.y[place] for place in places], **look)


def _plain(axes: Axes, points: Points) -> None:
    _dots(axes, points, range(len(points.x)), color=style.BLUE)
    if 1 < len(points.x) <= _NAMED:
        layout.write_names(axes, list(zip(points.x, points.y, strict=True)), words.tags(points.records))


def _highlighted(axes: Axes, points: Points, condition: str) -> list[tuple[Artist, str]]:
    """The records for which a condition holds in colour, over the others in grey."""
    try:
        compiled = expr.compile(condition)
        holds = [compiled.holds(record) for record in points.records]
    except RbError as wrong:
        raise RbError(f"--highlight: {wrong}") from None
    inside = [place for place, on in enumerate(holds) if on]
    others = [place for place, on in enumerate(holds) if not on]
    entries: list[tuple[Artist, str]] = []
    for places, text, colour in ((inside, condition, style.VERMILLION), (others, "others", "#C4C4C4")):
        dots = _dots(axes, points, places, color=colour, zorder=4 if places is inside else 2)
        entries.append((dots, f"{words.tidy(text)} ({len(places):,})"))
    return entries


def _grouped(axes: Axes, points: Points, texts: Sequence[str], option: str) -> list[tuple[Artist, str]]:
    groups: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        groups.setdefault(text, []).append(place)
    if len(groups) > MOST_GROUPS:
        raise RbError(
            f"--colour {option} has {len(groups)} different values, and {MOST_GROUPS} can be told apart."
            " Use a number, or fewer records (--where)."
        )
    looks = style.look(sorted(groups))
    return [
        (
            _dots(
                axes, points, groups[text], marker=look["marker"], s=_size(groups[text]), color=look["color"]
            ),
            text,
        )
        for text, look in zip(sorted(groups), looks, strict=True)
    ]


def _size(places: Sequence[int]) -> int:
    return 20 if len(places) <= 200 else 8


def _at_2_and_5(value: float, _: object = None) -> str:
    return layout.short_number(value) if f"{value:e}"[0] in "25" else ""


def _neighbourhood(axes: Axes, points: Points, centre: int) -> list[tuple[Artist, str]]:
    """The architecture and its neighbours, each by the index of its class; all others in grey."""
    at: dict[int, list[int]] = {}
    for place, record in enumerate(points.records):
        cell = record_values.cell(record)
        if cell is not None:
            at.setdefault(nasbench201.classes()[nasbench201.index_by_ops()[cell]], []).append(place)
    ops = nasbench201.ops_of({"index": centre})
    if nasbench201.classes()[centre] not in at:
        raise RbError(f"--neighbours: no record is of the architecture {centre}, or lacks the metrics.")
    changed: dict[int, list[tuple[int, int]]] = {}  # operation -> (position, edge)
    for index in nasbench201.neighbours(centre):
        other = nasbench201.ops_of({"index": index})
        edge = next(edge for edge in range(len(ops)) if ops[edge] != other[edge])
        for place in at.get(nasbench201.classes()[index], ()):
            changed.setdefault(other[edge], []).append((place, edge))
    marked = {place for pairs in changed.values() for place, _ in pairs}
    own = at[nasbench201.classes()[centre]]
    others = [place for place in range(len(points.x)) if place not in marked and place not in own]
    _dots(axes, points, others, color="#C4C4C4")
    entries: list[tuple[Artist, str]] = []
    labels: dict[tuple[float, float], list[str]] = {}
    for op, pairs in sorted(changed.items()):
        look = {"marker": style.MARKERS[op], "color": style.COLOURS[op], "s": 24, "alpha": 1, "zorder": 4}
        dots = _dots(
            axes, points, [place for place, _ in pairs], edgecolors="white", **{**look, "linewidths": 0.4}
        )
        entries.append((dots, f"{_OP_NAMES[nasbench201.OPS[op]]} instead"))
        for place, edge in pairs:
            labels.setdefault((points.x[place], points.y[place]), []).append(str(edge + 1))
    star = {"marker": "*", "color": style.BLACK, "s": 70, "alpha": 1, "zorder": 5}
    entries.insert(0, (_dots(axes, points, own, **star), words.tidy(f"nb201-{centre}")))
    # Equal networks are one point, reached by several edges.
    texts = [",".join(sorted(set(edges))) for edges in labels.values()]
    _zoom(axes, points, [*marked, *own])
    layout.write_names(axes, list(labels), texts)
    return entries


def _zoom(axes: Axes, points: Points, places: Sequence[int]) -> None:
    """Limit the axes to these points."""
    for numbers, limits in ((points.x, axes.set_xlim), (points.y, axes.set_ylim)):
        low = min(numbers[place] for place in places)
        high = max(numbers[place] for place in places)
        margin = 0.08 * (high - low) or 0.02
        limits(low - margin, high + margin)
