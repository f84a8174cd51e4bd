"""curves: metrics over the radius of noise, the tolerated rate, the distance, the severity, the epoch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rbtools.errors import RbError, near
from rbtools.lazy import np
from rbtools.plots import layout, record_values, style, words
from rbtools.plots.base import Drawing, Painted, Record
from rbtools.records import expr, metric_name
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_LINES = 16  # the most records with a line and a name each
MOST_PANELS = 20
_BANDS = 6  # the most records whose intervals are drawn
_MARKED = 12  # the most points of a line with markers
_TRACED = 200  # the most records with a grey line each
_DEFAULT = {"gamma": "pr.*", "rho": "probacc.*", "eps": "*", "severity": "corrupt.*"}
_MAKERS = {
    "gamma": "rb-pr --gamma 0:0.15:31",
    "rho": "rb-pr --rho 0.1,0.05,0.01",
    "eps": "rb-attack pgd --eps 1-8",
    "severity": "rb-corrupt fog --severity 1-5",
}


class Point(NamedTuple):
    """One value of a curve with its 95 % interval or its standard deviation, if it has one."""

    x: float
    y: float
    interval: tuple[float, float] | None = None
    deviation: float | None = None


Curves = dict[str, dict[int, list[Point]]]  # panel -> place of the record -> points, by x


class Panel(NamedTuple):
    """The lines of a panel, their facet and quantity."""

    title: str
    facet: str
    quantity: str
    lines: dict[int, list[Point]]
    two_axes: bool


class Lines(NamedTuple):
    """The records that have lines: their places, and the name and look of each."""

    places: list[int]
    names: list[str]
    looks: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class CurvesPlot(Drawing):
    """A line for each record: PR over gamma, ProbAcc over rho, accuracy over eps, and so on.

    Shades are 95 % intervals, and bars the standard deviations of means (rb-rank --aggregate). Of more
    than 16 records in a panel the median and the middle 80 % are shown.

    Needs a metric at two places or more: pr.*, probacc.*, an attack at several eps, a corruption at
    several severities, or train.history.
    """

    name: ClassVar[str] = "curves"

    over: str = param(
        "gamma",
        "Quantity along the axis; epoch draws the history of trainings.",
        choices=("gamma", "rho", "eps", "severity", "epoch"),
    )
    metric: str | None = param(
        None,
        "Metrics with commas, globs among them, such as 'ge.pr.*'; with --over epoch what the history has,"
        " such as loss,val_acc.  [default: pr.*, probacc.* ... as --over asks for]",
        metavar="LIST",
    )
    facet: str | None = param(
        None, "Panels for groups of records that agree in these, such as dataset,arch.name.", metavar="LIST"
    )
    right: str | None = param(
        None,
        "Metrics with a separate axis on the right of each panel and dashed lines: with --over epoch"
        " --metric wci the gap.",
        metavar="LIST",
    )
    same_scale: bool = param(False, "With --right: use the scale of the left axis.")

    def paint(self, figure: Figure, records: Sequence[Record]) -> Painted:
        keys = [""] * len(records)
        if self.facet is not None:
            keys = record_values.keys(records, self.facet, "--facet")
        panels = self._panels(records, keys, self.metric)
        if len(panels) > MOST_PANELS:
            raise RbError(
                f"There would be {len(panels)} panels ({', '.join(one.title for one in panels[:4])} ...), and"
                f" {MOST_PANELS} fit. Name fewer with --metric."
            )
        beside = [] if self.right is None else self._panels(records, keys, self.right)
        lines = _looks(records, keys, panels)
        grid = layout.grid(
            figure,
            len(panels),
            least=1.25 if self.width < 4 else 1.9,
            side=0.65 if self.right is None or self.same_scale else 1.2,
            share=self._share(panels),
        )
        entries: dict[str, Artist] = {}
        for axes, panel in zip(grid.axes, panels, strict=True):
            heading = layout.wrapped(panel.title, grid.width - 0.1, style.SMALL)
            axes.set_title("\n".join(heading), size=style.SMALL)
            crowd = len(panel.lines) > MOST_LINES
            entries |= _crowd(axes, panel.lines) if crowd else _lines(axes, panel, lines)
            if beside:
                others = [other for other in beside if other.facet == panel.facet]
                entries |= self._beside(axes, others, lines, grid.width)
            if self.over in ("epoch", "severity"):
                low, high = axes.get_xlim()
                if high - low < 1:  # ticks at fractions of a single epoch
                    axes.set_xlim(round(low) - 0.5, round(low) + 0.5)
                layout.whole_numbers(axes.xaxis)
        each = max(1.35, min(2.6, 0.62 * grid.width))
        below, higher = layout.name_below(grid, [self._axis(panel) for panel in panels])
        title = words.titled(words.counted(len(lines.places)), records)
        legend = [(handle, name) for name, handle in entries.items()]
        height = grid.rows * (each + 0.42 + higher)
        return Painted(title, height, legend, below, self._label(records, self.metric))

    def _panels(self, records: Sequence[Record], keys: Sequence[str], metric: str | None) -> list[Panel]:
        """The panels of these metrics, grouped by facet, facets in order of first occurrence."""
        whole = (self._histories if self.over == "epoch" else self._curves)(records, metric)
        plain = self.right is not None or len(whole) == 1  # the facet alone identifies the panel
        panels = []
        for key in dict.fromkeys(keys):
            for title, drawn in whole.items():
                inside = {place: line for place, line in drawn.items() if keys[place] == key}
                if inside:
                    heading = key if key and plain else ", ".join(filter(None, (key, title)))
                    panels.append(Panel(heading, key, title, inside, self.right is not None))
        return panels

    def _beside(self, axes: Axes, panels: Sequence[Panel], lines: Lines, width: float) -> dict[str, Artist]:
        """Draw the metrics of --right on an axis of their own, several in dashes that the legend names."""
        right = axes if self.same_scale else axes.twinx()
        entries: dict[str, Artist] = {}
        several = len({panel.quantity for panel in panels}) > 1
        for number, panel in enumerate(panels):
            look: dict[str, Any] = {
                "color": style.COLOURS[1 + number % (len(style.COLOURS) - 1)],
                "linestyle": style.DASHES[1 + number % (len(style.DASHES) - 1)],
            }
            _lines(right, panel, lines, look)
            if several:
                alone = len(panel.lines) == 1
                shown = look if alone else {**look, "color": style.GREY}
                (entries[panel.quantity.replace("_", " ")],) = right.plot([], [], **shown)
        if self.same_scale:
            return entries
        right.grid(visible=False)
        right.spines["right"].set_visible(True)
        named = ", ".join(entries) if several else f"{panels[0].quantity if panels else self.right}"
        named += " (dashed)"
        label = layout.wrapped(named.replace("_", " "), 0.6 * width, style.SMALL)
        right.set_ylabel("\n".join(label), size=style.SMALL)
        return entries

    def _share(self, panels: Sequence[Panel]) -> layout.Share:
        """Which axes are alike: the horizontal ones only where every panel fills half of them.

        MNIST's radii lie apart from those of other data sets.
        """
        if self.over == "epoch":
            return "none"
        if len({self._axis(panel) for panel in panels}) > 1:  # distances in other norms
            return "y"
        places = [[point.x for line in panel.lines.values() for point in line] for panel in panels]
        whole = max(map(max, places)) - min(map(min, places))
        return "all" if all(max(panel) - min(panel) >= whole / 2 for panel in places) else "y"

    def _axis(self, panel: Panel) -> str:
        """The quantity along a panel's axis, whose unit follows the norm."""
        parts = metric_name.parse(f"{panel.quantity}.1")
        return words.AXES[words.axis_of(parts) if self.over == "eps" else self.over]

    def _label(self, records: Sequence[Record], metric: str | None) -> str:
        if self.over == "epoch":
            one = metric is not None and len(expr.items(metric)) == 1 and not expr.is_glob(metric)
            if metric is None or (self.right is None and not one):
                return "value"
            beside = f"; dashed: {self.right}" if self.right is not None and self.same_scale else ""
            return f"{metric}{beside}".replace("_", " ")
        names = list(self._wanted(metric_name.names(records), metric))
        return words.axis(names if len(names) > 1 else names * 2)  # the kind of panel, not the single one

    def _curves(self, records: Sequence[Record], metric: str | None) -> Curves:
        """Panels by family and by what is held fixed: ProbAcc has a panel for each gamma, or each rho."""
        wanted = self._wanted(metric_name.names(records), metric)
        panels: Curves = {}
        for place, record in enumerate(records):
            known = record.get("metrics") or {}
            intervals, deviations = record_values.intervals(record), record_values.deviations(record)
            for name, (title, x) in wanted.items():
                if known.get(name) is not None:
                    points = panels.setdefault(title, {}).setdefault(place, [])
                    points.append(Point(x, known[name], intervals.get(name), deviations.get(name)))
        return {title: {place: sorted(line) for place, line in panels[title].items()} for title in panels}

    def _wanted(self, known: Sequence[str], metric: str | None) -> dict[str, tuple[str, float]]:
        """Metric -> the panel it belongs to, and its place along the axis."""
        try:
            names = expr.select(known, metric or _DEFAULT[self.over])
        except RbError as wrong:
            raise RbError(f"--metric: {wrong} Measure it, for example with {_MAKERS[self.over]}.") from None
        panel_of = {}
        for name in names:
            parts = words.with_number(name)
            if parts is None or (metric is None and parts.split != "test"):
                continue
            if self.over == "rho" and parts.rho:
                panel_of[name] = (f"{parts.family}, γ={float(parts.number):.3g}", float(parts.rho))
            elif parts.over == self.over:
                title = f"{parts.family}, ρ={parts.rho}" if parts.rho else parts.family
                panel_of[name] = (title, float(parts.number))
        if not panel_of:
            raise RbError(
                f"No metric of --metric {metric or _DEFAULT[self.over]} runs over {self.over}."
                f" Measure some, for example with {_MAKERS[self.over]}."
            )
        return panel_of

    def _histories(self, records: Sequence[Record], metric: str | None) -> Curves:
        histories = {}
        for place, record in enumerate(records):
            train = record.get("train")
            history = train.get("history") if isinstance(train, dict) else None
            if isinstance(history, dict) and history:
                histories[place] = history
        known = list(dict.fromkeys(name for history in histories.values() for name in history))
        if not known:
            raise RbError("No record has a train.history. rb-train writes it.")
        panels: Curves = {}
        for name in _quantities(known, metric):
            lines = {
                place: [Point(epoch, y) for epoch, y in enumerate(history[name], start=1) if _is_drawn(y)]
                for place, history in histories.items()
                if isinstance(history.get(name), list)
            }
            panels[name] = lines
        return panels


def _quantities(known: list[str], metric: str | None) -> list[str]:
    """The quantities of a history that are drawn; without names its accuracies, else its losses."""
    if metric is None:
        accuracies = [name for name in known if name.endswith("acc")]
        return accuracies or [name for name in known if name.endswith("loss")] or known[:4]
    names: list[str] = []
    for name in expr.items(metric):
        matching = expr.expand(name, known)
        if not matching:
            raise RbError(
                f"--metric: no history has '{name}'.{near(name, known)} They have: {', '.join(known)}."
            )
        names += matching
    return list(dict.fromkeys(names))


def _is_drawn(value: object) -> bool:
    """Whether a value of a history is a number that axes can hold."""
    return (type(value) is int or type(value) is float) and abs(value) < 1e150


def _looks(records: Sequence[Record], keys: Sequence[str], panels: Sequence[Panel]) -> Lines:
    """Names and looks of all records that are drawn; those of different facets may share them."""
    shown = sorted({place for panel in panels for place in panel.lines})
    at: dict[str, list[int]] = {}
    for number, place in enumerate(shown):
        at.setdefault(keys[place], []).append(number)
    some, apart = [records[place] for place in shown], list(at.values())
    names, parts = words.tags(some, apart), words.differing(some, apart)
    if len(at) == 1:
        return Lines(shown, names, style.looks(parts))
    kinds = list(dict.fromkeys(zip(parts, names, strict=True)))
    looks = dict(zip(kinds, style.looks([part for part, _ in kinds]), strict=True))
    return Lines(shown, names, [looks[kind] for kind in zip(parts, names, strict=True)])


def _lines(axes: Axes, panel: Panel, lines: Lines, beside: dict[str, Any] | None = None) -> dict[str, Artist]:
    """A line for each record, in the same look in every panel; the entries of the legend.

    Where dashes tell the two axes of a panel apart, lines on the left have none, those on the right the
    dashes of `beside`, and its colour where they are of one record.
    """
    entries: dict[str, Artist] = {}
    kinds = list(dict.fromkeys(lines.names))
    for number, place in enumerate(lines.places):
        points, look, name = panel.lines.get(place, []), dict(lines.looks[number]), lines.names[number]
        if not points:
            continue
        if panel.two_axes:
            look["linestyle"] = "-" if beside is None else beside["linestyle"]
            if len(panel.lines) == 1:
                look["color"] = style.BLUE if beside is None else beside["color"]
        marker = style.marker(name, kinds.index(name)) if len(points) <= _MARKED else ""
        (line,) = axes.plot(
            [point.x for point in points], [point.y for point in points], marker=marker, markersize=3, **look
        )
        banded = [(point.x, *point.interval) for point in points if point.interval]
        if banded and len(panel.lines) <= _BANDS:
            places, low, high = zip(*banded, strict=True)
            axes.fill_between(places, low, high, color=look["color"], alpha=0.13, linewidth=0)
        spread = [(point.x, point.y, point.deviation) for point in points if point.deviation is not None]
        if spread:
            x, y, deviations = zip(*spread, strict=True)
            axes.errorbar(x, y, deviations, linestyle="", color=look["color"], linewidth=0.8, capsize=2)
        entries[name] = line
    return entries if len(set(lines.names)) > 1 else {}


def _crowd(axes: Axes, lines: dict[int, list[Point]]) -> dict[str, Artist]:
    """The median of all records with a value at a place, over grey lines or over their range."""
    at: dict[float, list[float]] = {}
    for points in lines.values():
        for point in points:
            at.setdefault(point.x, []).append(point.y)
    places = sorted(at)
    low, lower, middle, upper, high = np.array(
        [np.quantile(at[x], (0, 0.1, 0.5, 0.9, 1)) for x in places]
    ).T.reshape(5, -1)
    behind: Artist
    if len(lines) <= _TRACED:
        (behind,) = axes.plot([], [], color=style.GREY, linewidth=0.5)
        for points in filter(None, lines.values()):
            mark = "." if len(points) == 1 else ""  # a line through one point is invisible
            axes.plot(
                *zip(*[point[:2] for point in points], strict=True),
                marker=mark,
                markersize=3,
                color="#B0B0B0",
                linewidth=0.4,
            )
    else:
        behind = axes.fill_between(places, low, high, color="#E0E0E0", linewidth=0)
    for start, end in _stretches(lines, places):
        part = slice(start, end)
        band = axes.fill_between(
            places[part], lower[part], upper[part], color=style.BLUE, alpha=0.3, linewidth=0, zorder=3
        )
        mark = "o" if end - start == 1 else ""
        (median,) = axes.plot(
            places[part], middle[part], marker=mark, markersize=4, color=style.BLUE, linewidth=1.8, zorder=4
        )
    return {"median": median, "middle 80 %": band, "all": behind}


def _stretches(lines: dict[int, list[Point]], places: Sequence[float]) -> list[tuple[int, int]]:
    """Runs of places that some record's line crosses: (first, one after the last) of each.

    If no record has values at both positions, the medians are of different records, and no line joins them.
    """
    ends = [(points[0].x, points[-1].x) for points in lines.values() if points]
    crossed = [
        any(low <= x and after <= high for low, high in ends) for x, after in itertools.pairwise(places)
    ]
    starts = [0, *(number for number, joined in enumerate(crossed, start=1) if not joined)]
    return list(zip(starts, [*starts[1:], len(places)], strict=True))
