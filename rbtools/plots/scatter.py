"""The plot `scatter`: two metrics against each other, coloured by a third metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rbtools.errors import RbError
from rbtools.plots import layout, record_values, style, words
from rbtools.plots.base import Drawing, Record
from rbtools.plots.cells import EDGE_NAMES, OP_LOOKS
from rbtools.plots.renderer import FigureSpec, Panel, shaped, write_names
from rbtools.records import expr, metric_name
from rbtools.registry import param
from rbtools.scoring.rank_order import front
from rbtools.spaces import nasbench201

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MOST_GROUPS = 16  # the number of distinguishable colours and shapes
_OUTLINED = 60  # more points of groups are outlines, because filled points would cover earlier groups
Place = tuple[float, float]


class Points(NamedTuple):
    records: list[Record]
    x: list[float]
    y: list[float]


@dataclass(frozen=True, kw_only=True)
class Scatter(Drawing):
    """Two metrics against each other, coloured by a third metric, with the Pareto front. Up to 60 points have
    their 95 % intervals. Without --colour, each of up to 16 records has its own colour and shape.

    `neighbours=13714` marks one architecture of NAS-Bench-201 and all architectures that differ from this
    architecture in one edge. Colour and shape show the operation that is different, and the number beside a
    point shows the edge of this operation (1: 0→1, 2: 0→2, 3: 1→2, 4: 0→3, 5: 1→3, 6: 2→3).

    Needs two metrics or fields: --x and --y.
    """

    name: ClassVar[str] = "scatter"

    x: str = param("acc", "Metric or expression on the horizontal axis.", metavar="EXPR")
    y: str | None = param(
        None,
        "Metric or expression on the vertical axis.  [default: score, or else the last evaluated metric]",
        metavar="EXPR",
    )
    colour: str | None = param(
        None,
        "Metric, expression or text field (such as train.method) that determines the colour.",
        metavar="EXPR",
    )
    highlight: str | None = param(
        None, "Mark records that meet this condition, such as 'live_kernel_params == 18'.", metavar="EXPR"
    )
    pareto: bool = param(
        False, "Mark the Pareto front, which contains the records that no other record beats in both metrics."
    )
    neighbours: str | None = param(
        None, "Mark the neighbours of this architecture (index, name or string).", metavar="ARCH"
    )
    log_x: bool = param(False, "Use a logarithmic horizontal axis, for example for parameters and times.")

    def spec(self, records: Sequence[Record]) -> FigureSpec:
        colouring = ("colour", "neighbours", "highlight")
        options = [f"--{name}" for name in colouring if getattr(self, name) is not None]
        if len(options) > 1:
            raise RbError(f"{' and '.join(options)} both colour the points. Leave one of them out.")
        y = self.y or metric_name.default_rank_key(records)
        points = _points(records, self.x, y)
        shades = groups = bar = None
        if self.colour is not None:
            try:
                shades = record_values.column(points.records, self.colour, "--colour")
                bar = words.axis([self.colour])
            except RbError:  # not numbers
                groups = record_values.groups(points.records, self.colour, "--colour")
        elif not options and 1 < len(points.x) <= MOST_GROUPS:
            groups = {name: [place] for place, name in enumerate(words.tags(points.records))}
        ends = _intervals(points, (self.x, y)) if len(points.x) <= _OUTLINED and not self.neighbours else []

        def draw(axes: Axes) -> None:
            if self.log_x:
                self._scale(axes, points)
            for low, high in ends:
                axes.plot(*zip(low, high, strict=True), color=style.PALE, linewidth=0.8, zorder=1)
            if self.neighbours is not None:
                _neighbourhood(axes, points, nasbench201.find(self.neighbours))
            elif self.highlight is not None:
                _highlighted(axes, points, self.highlight)
            elif groups is not None:
                _grouped(axes, points, groups, str(self.colour))
            elif shades is not None:
                _shaded(axes, points, shades)
            else:
                _dots(axes, points, color=style.BLUE)
            if self.pareto:
                self._front(axes, points, y)
            for axis in (axes.yaxis,) if self.log_x else (axes.xaxis, axes.yaxis):
                layout.plain_numbers(axis)

        panel = Panel(draw, x=words.axis([self.x]), y=words.axis([y]))
        note = record_values.interval_note("Error bars", points.records, (self.x, y)) if ends else ""
        if self.neighbours is not None:
            note = f"Numbers: the edge that differs ({', '.join(EDGE_NAMES)})."
        return FigureSpec([panel], shaped(0.7, 3.2), bar=bar, note=note)

    def _scale(self, axes: Axes, points: Points) -> None:
        from matplotlib.ticker import FuncFormatter, NullFormatter

        if min(points.x) <= 0:
            raise RbError(f"--log-x needs values above 0, but '{self.x}' is {min(points.x):g} for a record.")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(layout.short_number))
        short = max(points.x) / min(points.x) < 30  # the range is too short for ticks at powers of ten only
        axes.xaxis.set_minor_formatter(FuncFormatter(_at_2_and_5) if short else NullFormatter())
        axes.tick_params(axis="x", which="minor", labelsize=style.small(), pad=5)

    def _front(self, axes: Axes, points: Points, y: str) -> None:
        higher = (metric_name.higher_is_better(self.x), metric_name.higher_is_better(y))
        best = front(list(zip(points.x, points.y, strict=True)), higher)
        places = [place for place, is_best in enumerate(best) if is_best]
        ordered = sorted(places, key=lambda place: (points.x[place], points.y[place]))
        axes.plot(
            [points.x[place] for place in ordered],
            [points.y[place] for place in ordered],
            # A step has the y of its second point, or of its first point if a lower x is better.
            drawstyle="steps-pre" if higher[0] else "steps-post",
            color=style.BLACK,
            linewidth=1.2,
            marker="o",
            markersize=7 if len(points.x) <= _OUTLINED else 5,
            markerfacecolor="none",
            markeredgewidth=1.1,
            zorder=5,
            label="Pareto front",
        )


def _points(records: Sequence[Record], x: str, y: str) -> Points:
    pairs = zip(
        records, record_values.column(records, x, "--x"), record_values.column(records, y, "--y"), strict=True
    )
    both = [(record, a, b) for record, a, b in pairs if a is not None and b is not None]
    if not both:
        raise RbError(f"No record has both '{x}' and '{y}'.")
    return Points(*map(list, zip(*both, strict=True)))


def _intervals(points: Points, names: tuple[str, str]) -> list[tuple[Place, Place]]:
    """The ends of the interval of each point along x, and along y."""
    found: list[tuple[Place, Place]] = []
    for record, x, y in zip(*points, strict=True):
        along_x, along_y = map(record_values.intervals(record).get, names)
        found += [((along_x[0], y), (along_x[1], y))] if along_x else []
        found += [((x, along_y[0]), (x, along_y[1]))] if along_y else []
    return found


def _dots(axes: Axes, points: Points, places: Sequence[int] | None = None, **look: Any) -> None:
    places = range(len(points.x)) if places is None else places
    count = len(places)
    size = 16 if count <= 200 else 6 if count <= 2000 else 3
    usual = {"s": size, "linewidths": 0, "alpha": 1 if count <= 200 else 0.6, "rasterized": count > 500}
    x, y = ([numbers[place] for place in places] for numbers in (points.x, points.y))
    axes.scatter(x, y, **{**usual, **look})


def _shaded(axes: Axes, points: Points, shades: Sequence[float | None]) -> None:
    _dots(axes, points, [place for place, shade in enumerate(shades) if shade is None], color=style.PALE)
    # In the order of the colours, both extremes stay visible; otherwise the densest part would cover them.
    known = sorted((shade, place) for place, shade in enumerate(shades) if shade is not None)
    places = [place for _, place in known]
    _dots(axes, points, places, c=[shade for shade, _ in known], cmap="viridis")


def _highlighted(axes: Axes, points: Points, condition: str) -> None:
    try:
        compiled = expr.Expression(condition, any_name=True)
        holds = [compiled.holds(record) for record in points.records]
    except RbError as wrong:
        raise RbError(f"--highlight: {wrong}") from None
    for on, text, colour in ((True, words.label(condition), style.VERMILLION), (False, "others", style.PALE)):
        places = [place for place, held in enumerate(holds) if held is on]
        _dots(axes, points, places, color=colour, zorder=4 if on else 2, label=f"{text} ({len(places):,})")


def _grouped(axes: Axes, points: Points, groups: Mapping[str, Sequence[int]], option: str) -> None:
    if len(groups) > MOST_GROUPS:
        raise RbError(
            f"--colour {option} has {len(groups)} different values, but at most {MOST_GROUPS} can be told"
            " apart. Choose fewer records with --where."
        )
    names = [*groups] if groups.keys() <= style.METHODS.keys() else sorted(groups)
    count = len(points.x)
    for text, look in style.look(names).items():
        own = {"marker": look["marker"], "color": look["color"], "s": 22}
        if count > _OUTLINED:
            own = {"marker": look["marker"], "edgecolors": look["color"], "s": 12 if count <= 600 else 6}
            own |= {"facecolors": "none", "linewidths": 0.9}
        _dots(axes, points, groups[text], label=words.label(text), **own)


def _at_2_and_5(value: float, _: object = None) -> str:
    return layout.short_number(value) if f"{value:e}"[0] in "25" else ""


def _neighbourhood(axes: Axes, points: Points, centre: int) -> None:
    """Draw the architecture and its neighbours in colour, and all other records in grey. Neighbours are found
    by the indices of their isomorphism classes."""
    at: dict[int, list[int]] = {}
    classes, indices = nasbench201.classes(), nasbench201.index_by_ops()
    for place, record in enumerate(points.records):
        cell = record_values.cell(record)
        if cell is not None:
            at.setdefault(classes[indices[cell]], []).append(place)
    ops = nasbench201.ops_of({"index": centre})
    if classes[centre] not in at:
        raise RbError(f"--neighbours: no record with both metrics has the architecture {centre}.")
    changed: dict[int, list[tuple[int, int]]] = {}  # operation -> (position, edge)
    for index in nasbench201.neighbours(centre):
        other = nasbench201.ops_of({"index": index})
        edge = next(edge for edge in range(len(ops)) if ops[edge] != other[edge])
        for place in at.get(classes[index], ()):
            changed.setdefault(other[edge], []).append((place, edge))
    own = at[classes[centre]]
    marked = {*own, *(place for pairs in changed.values() for place, _ in pairs)}
    label = words.label(f"nb201-{centre}")
    _dots(axes, points, own, marker="*", color=style.BLACK, s=70, alpha=1, zorder=5, label=label)
    names: dict[tuple[float, float], set[str]] = {}
    for op, pairs in sorted(changed.items()):
        look = {"marker": style.MARKERS[op], "color": style.COLOURS[op], "edgecolors": "white"}
        label = f"{OP_LOOKS[op][0]} instead"
        places = [place for place, _ in pairs]
        _dots(axes, points, places, s=24, linewidths=0.4, alpha=1, zorder=4, label=label, **look)
        for place, edge in pairs:
            names.setdefault((points.x[place], points.y[place]), set()).add(str(edge + 1))
    others = [place for place in range(len(points.x)) if place not in marked]
    _dots(axes, points, others, color=style.PALE, zorder=1, label="others")
    for numbers, limits in ((points.x, axes.set_xlim), (points.y, axes.set_ylim)):
        shown = [numbers[place] for place in marked]
        margin = 0.08 * (max(shown) - min(shown)) or 0.02
        limits(min(shown) - margin, max(shown) + margin)
    # Equal networks share a point, beside which several edges are named.
    write_names(axes, names, [",".join(sorted(edges)) for edges in names.values()])
