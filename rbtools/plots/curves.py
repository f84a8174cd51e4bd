"""The plot `curves`: metrics over radius, tolerated failure rate, distance, severity or training epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rbtools.errors import RbError, near
from rbtools.lazy import np
from rbtools.plots import layout, marks, record_values, style, words
from rbtools.plots.base import Drawing, Record
from rbtools.plots.renderer import FigureSpec, Panel
from rbtools.records import expr, metric_name, results
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MOST_LINES = 16  # the most records that have their own line and name
_BANDS = 6  # the most records whose intervals are drawn
_TRACED = 200  # the most records that have their own grey line
_DEFAULT = {"gamma": "pr.*", "rho": "probacc.*", "eps": "*", "severity": "corrupt.*"}
_MAKERS = {
    "gamma": "rb-pr --gamma 0:0.15:31",
    "rho": "rb-pr --rho 0.1,0.05,0.01",
    "eps": "rb-attack pgd --eps 1-8",
    "severity": "rb-corrupt fog --severity 1-5",
    "queries": "rb-attack curve --attacks hopskipjump --queries 500,2000",
}


class Point(NamedTuple):
    x: float
    y: float
    interval: tuple[float, float] | None = None
    deviation: float | None = None


Lines = dict[int, list[Point]]  # maps the place of a record to its points, sorted by x


class LineGroup(NamedTuple):
    """The lines of a panel: one family of metrics over a quantity (the label of its axis) for one facet."""

    title: str
    over: str
    facet: str
    lines: Lines


class Names(NamedTuple):
    places: list[int]
    names: list[str]
    looks: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class CurvesPlot(Drawing):
    """A line for each record, such as PR over gamma, ProbAcc over rho, or accuracy over eps.

    Shaded bands are 95 % intervals, and error bars are standard deviations of means (rb-rank --aggregate). A
    panel with more than 16 records shows their median and their middle 80 %.

    Needs a metric with at least two points: pr.*, probacc.*, an attack at several eps, a corruption at
    several severities, or train.history.
    """

    name: ClassVar[str] = "curves"

    over: str = param(
        "gamma",
        "Quantity on the horizontal axis: gamma, rho, eps, severity, queries, or the strength of another"
        " threat; epoch draws the history of training runs.",
        metavar="NAME",
    )
    metric: str | None = param(
        None,
        "Metrics and globs, separated by commas, such as 'ge.pr.*'; with --over epoch, fields of the history"
        " such as loss,val_acc.  [default: depends on --over, such as pr.*; curve.* if there are any]",
        metavar="LIST",
    )
    facet: str | None = param(
        None, "Separate panels for records that differ in these fields.", metavar="LIST"
    )
    right: str | None = param(
        None,
        "Metrics to draw as dashed lines with their own axis on the right, as in --over epoch --metric"
        " wci --right gap.",
        metavar="LIST",
    )
    same_scale: bool = param(False, "With --right, use the scale of the left axis for both axes.")

    def spec(self, records: Sequence[Record]) -> FigureSpec:
        keys = [""] * len(records)
        if self.facet is not None:
            keys = record_values.keys(records, self.facet, "--facet")
        groups = self._groups(records, keys, self.metric)
        beside = [] if self.right is None else self._groups(records, keys, self.right)
        names = _names(records, keys, groups)
        y = self._label(records)
        panels = []
        one_family = len({group.title for group in groups}) == 1 or self.right is not None
        for group in groups:
            own = [other for other in beside if other.facet == group.facet]
            draw = partial(self._draw, group=group, names=names, beside=own)
            alone = one_family and self.facet is not None
            parts = (words.label(group.facet), "" if alone else group.title)
            panels.append(Panel(draw, ", ".join(filter(None, parts)), group.over, y))
        least = 1.25 if self.width < 4 else 1.9
        least += 0.5 * bool(beside and not self.same_scale)
        return FigureSpec(
            panels, least=least, alike=self.over != "epoch", note=self._note(records, [*groups, *beside])
        )

    def _groups(self, records: Sequence[Record], keys: Sequence[str], metric: str | None) -> list[LineGroup]:
        whole = (self._histories if self.over == "epoch" else self._curves)(records, metric)
        groups = [
            LineGroup(title, over, key, {place: line for place, line in lines.items() if keys[place] == key})
            for key in dict.fromkeys(keys)
            for (title, over), lines in whole.items()
        ]
        return [group for group in groups if group.lines]

    def _draw(self, axes: Axes, group: LineGroup, names: Names, beside: Sequence[LineGroup]) -> None:
        if len(group.lines) > MOST_LINES:
            _crowd(axes, group.lines)
        else:
            alone = {"color": style.BLUE} if len(group.lines) == 1 else {}
            _lines(axes, group, names, {"linestyle": "-", **alone} if self.right is not None else {})
        if beside:
            self._beside(axes, beside, names)
        if self.over in ("epoch", "severity"):
            low, high = axes.get_xlim()
            if high - low < 1:  # ticks would be at fractions of a single epoch
                axes.set_xlim(round(low) - 0.5, round(low) + 0.5)
            layout.whole_numbers(axes.xaxis)

    def _beside(self, axes: Axes, groups: Sequence[LineGroup], names: Names) -> None:
        right = axes if self.same_scale else axes.twinx()
        several = len(groups) > 1
        for number, group in enumerate(groups):
            look: dict[str, Any] = {"linestyle": style.DASHES[1 + number % (len(style.DASHES) - 1)]}
            if several:
                look["marker"] = style.MARKERS[1 + number % (len(style.MARKERS) - 1)]
            if len(group.lines) == 1:
                look["color"] = style.COLOURS[1 + number % (len(style.COLOURS) - 1)]
            _lines(right, group, names, look)
            if several:
                right.plot([], [], label=group.title, **{"color": style.GREY, "markersize": 3.5, **look})
        if not self.same_scale:
            right.grid(visible=False)
            right.spines["right"].set_visible(True)
            # The legend has the names, of which more than two would be too long for the axis.
            named = ", ".join(group.title for group in groups) if len(groups) <= 2 else "values"
            title = f"{named} (dashed)"
            right.set_ylabel(layout.wrapped(title, 1.5, style.small()), size=style.small())

    def _note(self, records: Sequence[Record], groups: Sequence[LineGroup]) -> str:
        known = [
            len(group.lines)
            for group in groups
            if any(p.interval for line in group.lines.values() for p in line)
        ]
        if not known:
            return ""
        names = [
            name
            for metric in (self.metric, *filter(None, [self.right]))
            for name in self._names(records, metric)
        ]
        shown = [record_values.interval_note("Bands", records, names)] if min(known) <= _BANDS else []
        left = f"Intervals are not drawn for more than {_BANDS} models (here {max(known):,})."
        return " ".join([*shown, *[left] * (max(known) > _BANDS)])

    def _label(self, records: Sequence[Record]) -> str:
        metric = self.metric
        if self.over != "epoch":
            return words.quantity(self._names(records, metric))
        if metric is None or (self.right is None and (len(expr.items(metric)) > 1 or expr.is_glob(metric))):
            return "value"
        beside = (
            f"; dashed: {_history_words(str(self.right))}"
            if self.right is not None and self.same_scale
            else ""
        )
        return _history_words(metric) + beside

    def _curves(self, records: Sequence[Record], metric: str | None) -> dict[tuple[str, str], Lines]:
        """Maps each family and quantity on the axis to lines. ProbAcc has a family for each gamma or rho."""
        known = [record.get("metrics") or {} for record in records]
        families = words.families(self._names(records, metric), self.over)
        with_clean = {key: [*_clean(members), *members] for key, members in families.items()}
        intervals = [record_values.intervals(record) for record in records]
        deviations = [record_values.deviations(record) for record in records]
        return {
            key: {
                place: [
                    Point(x, values[name], intervals[place].get(name), deviations[place].get(name))
                    for x, name in members
                    if values.get(name) is not None and (x > 0 or _on_the_same(records[place], name, members))
                ]
                for place, values in enumerate(known)
                if any(values.get(name) is not None for _, name in families[key])
            }
            for key, members in with_clean.items()
        }

    def _names(self, records: Sequence[Record], metric: str | None) -> list[str]:
        """The metrics in a list that depend on the quantity; by default all such metrics on test images."""
        try:
            names = expr.select(metric_name.names(records), metric or _DEFAULT.get(self.over, "*"))
        except RbError as wrong:
            raise RbError(f"--metric: {wrong} Measure it, for example with {self._maker}.") from None
        if metric is None:
            names = [name for name in names if metric_name.parse(name).split == "test"]
            names = [name for name in names if name.startswith("curve.")] or names
        found = [name for members in words.families(names, self.over).values() for _, name in members]
        if not found:
            there = [metric_name.parse(name).over for name in names]
            hint = near(self.over, (*_MAKERS, "epoch", *filter(None, there)))
            of = "" if metric is None else f" of --metric {metric}"
            raise RbError(
                f"No metric{of} depends on {self.over}.{hint} Measure some, for example with {self._maker}."
            )
        return found

    @property
    def _maker(self) -> str:
        return _MAKERS.get(self.over, f"rb-attack NAME --{self.over} LIST")

    def _histories(self, records: Sequence[Record], metric: str | None) -> dict[tuple[str, str], Lines]:
        histories = {}
        for place, record in enumerate(records):
            history = results.at(record, ("train", "history"))
            if isinstance(history, dict) and history:
                histories[place] = history
        known = list(dict.fromkeys(name for history in histories.values() for name in history))
        if not known:
            raise RbError("No record has the field train.history, which rb-train writes.")
        return {
            (_history_words(name), "epoch"): {
                place: [Point(epoch, y) for epoch, y in enumerate(history[name], start=1) if _is_drawn(y)]
                for place, history in histories.items()
                if isinstance(history.get(name), list)
            }
            for name in _quantities(known, metric)
        }


def _clean(members: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """The clean accuracy (or its generalisation error) as the point at 0 of a family of attacks."""
    (least, name), *_ = members
    parts = metric_name.parse(name)
    attacked = parts.attacked and not parts.stem.startswith("cert")
    return [(0.0, ".".join([*parts.prefixes, "acc"]))] if attacked and least > 0 else []


def _on_the_same(record: Record, clean: str, members: Sequence[tuple[float, str]]) -> bool:
    """Whether the clean accuracy is of the same number of images as one of the attacks; other images would
    put a step into the curve."""
    entries = results.by_metric(record)
    sizes = [entries.get(name, {}).get("n") for _, name in members if name != clean]
    return entries.get(clean, {}).get("n") in sizes


def _history_words(name: str) -> str:
    said = words.label(name)
    return "training accuracy" if (name, said) == ("acc", "clean") else said.replace("_", " ")


def _quantities(known: list[str], metric: str | None) -> list[str]:
    """By default, the accuracies in a training history are drawn or, without accuracies, the losses."""
    if metric is None:
        accuracies = [name for name in known if name.endswith("acc")]
        return accuracies or [name for name in known if name.endswith("loss")] or known[:4]
    return record_values.named(metric, known, "no history has", "They have")


def _is_drawn(value: object) -> bool:
    return (type(value) is int or type(value) is float) and abs(value) < 1e150


def _names(records: Sequence[Record], keys: Sequence[str], groups: Sequence[LineGroup]) -> Names:
    """Names and line styles of all drawn records, which may be equal in different facets."""
    shown = sorted({place for group in groups for place in group.lines})
    at: dict[str, list[int]] = {}
    for number, place in enumerate(shown):
        at.setdefault(keys[place], []).append(number)
    some, apart = [records[place] for place in shown], list(at.values())
    each = words.told_apart(some, apart)
    kinds = list(dict.fromkeys(each))
    looks = dict(zip(kinds, style.looks([part for part, _ in kinds]), strict=True))
    return Names(shown, [name for _, name in each], [looks[kind] for kind in each])


def _lines(axes: Axes, group: LineGroup, names: Names, look: dict[str, Any]) -> None:
    """A line for each record. All panels have the same line styles, except for the settings in `look`."""
    several = len(set(names.names)) > 1 and len(group.lines) <= MOST_LINES
    for place, name, own in zip(*names, strict=True):
        points = group.lines.get(place)
        if not points:
            continue
        intervals = [point.interval for point in points] if len(group.lines) <= _BANDS else []
        marks.line(axes, [point[:2] for point in points], {**own, **look}, name if several else "", intervals)
        spread = [(point.x, point.y, point.deviation) for point in points if point.deviation is not None]
        if spread:
            how = {"color": {**own, **look}["color"], "linewidth": 0.8, "capsize": 2}
            x, y, deviations = zip(*spread, strict=True)
            axes.errorbar(x, y, deviations, linestyle="", **how)


def _crowd(axes: Axes, lines: Lines) -> None:
    """The median at each x position, in front of the single lines or the range of all lines in grey."""
    import pandas

    table = pandas.DataFrame(
        {place: {point.x: point.y for point in points} for place, points in lines.items()}
    ).sort_index()
    places = table.index.to_numpy()
    low, lower, middle, upper, high = table.quantile([0, 0.1, 0.5, 0.9, 1], axis=1).to_numpy()
    if len(lines) <= _TRACED:
        axes.plot([], [], color=style.GREY, linewidth=0.5, label="all")
        for points in filter(None, lines.values()):
            mark = "." if len(points) == 1 else ""  # a line through one point is invisible
            x, y = zip(*[point[:2] for point in points], strict=True)
            axes.plot(x, y, marker=mark, markersize=3, color="#B0B0B0", linewidth=0.4)
    else:
        axes.fill_between(places, low, high, color="#E0E0E0", linewidth=0, label="all")
    look: dict[str, Any] = {"color": style.BLUE, "linewidth": 1.8, "marker": "o", "zorder": 4}
    band: dict[str, Any] = {"color": style.BLUE, "alpha": 0.3, "linewidth": 0, "zorder": 3}
    # If no record has values at both positions, their medians are of different records and not joined.
    crossed = (table.ffill().notna() & table.bfill().notna()).to_numpy()
    apart = np.flatnonzero(~(crossed[:-1] & crossed[1:]).any(1)) + 1
    for part in np.split(np.arange(len(places)), apart):
        axes.fill_between(places[part], lower[part], upper[part], label="middle 80 %", **band)
        marks.line(axes, list(zip(places[part], middle[part], strict=True)), look, "median")
