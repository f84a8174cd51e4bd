"""box: accuracy by attack and distance, or by corruption and severity, over all records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rbtools.datasets import DATASETS, WITH_PATH, describe
from rbtools.errors import RbError
from rbtools.plots import layout, record_values, style, weightings, words
from rbtools.plots.base import Painted, Record
from rbtools.records import metric_name
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Classes of published data sets that rbtools does not have.
_OTHERS = {"fashionmnist": 10, "imagenet": 1000}
FEW = 5  # up to this many records are points, not a box
_BOX, _LEAST, _SIDE = 0.13, 0.42, 0.7  # inches: per box, at least per panel, for the left axis


class BoxPanel(NamedTuple):
    """One panel: an attack over its distances, a corruption over its severities, single metrics, or groups.

    columns: the numbers of each box. looks: the colour of each box, where the boxes are groups.
    """

    title: str
    over: str
    ticks: list[str]
    columns: list[list[float]]
    level: float | None = None
    colours: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Box(weightings.Composed):
    """Distributions of metrics over records: a panel for each attack or corruption. A box is the middle half
    of the records, its line their median; whiskers reach the last record within 1.5 times the box's height.
    Up to five records are shown as points.

    With --group the boxes of a panel are groups of records, and each metric has a panel. With --weightings
    each weighting of the composite score (see rb-score) has one: PRBench's figure 6 is --preset prbench
    --weightings prbench --within dataset,arch.name.

    Needs one metric or more: the accuracies under attacks and corruptions, or those of --metric.
    """

    name: ClassVar[str] = "box"

    metric: str | None = param(
        None,
        "Metrics and expressions with commas, globs among them; with --weightings those of the score, as"
        " rb-score takes them.  [default: acc, and all accuracies under attacks and corruptions]",
        metavar="EXPR",
    )
    group: str | None = param(
        None,
        "A box for each group of records that agree in this, such as train.method.  [default: train.method"
        " with --weightings]",
        metavar="EXPR",
    )
    facet: str | None = param(
        None, "Panels for groups of records that agree in these, such as dataset,arch.name.", metavar="LIST"
    )
    together: bool = param(False, "One panel for all metrics, not one for each attack or corruption.")
    n_classes: int | None = param(
        None, "Classes of the data set, for the line of chance.  [default: the data set's]", check="positive"
    )

    def paint(self, figure: Figure, records: Sequence[Record]) -> Painted:
        facets, axis = self._facets(records)
        panels = [panel for facet in facets for panel in facet]
        if len(facets) == len(panels):  # each facet has one panel: all share one row
            facets = [panels]
        rows = [row for facet in facets if facet for row in _rows(facet, self.width - _SIDE)]
        each = 1.2 if len(rows) > 1 else max(1.5, min(2.4, 0.35 * self.width))
        scale = min((self.width - _SIDE) / sum(map(_needed, row)) for row in rows)
        outer = figure.add_gridspec(len(rows), 1)
        first, line, height = None, None, 0.0
        for number, row in enumerate(rows):
            widths = [scale * _needed(group) for group in row]
            free_width = self.width - _SIDE - sum(widths)
            columns = [*widths, free_width] if free_width > 0.05 else widths
            inner = outer[number].subgridspec(1, len(columns), width_ratios=columns)
            high = 0.0
            for place, panel in enumerate(row):
                axes = figure.add_subplot(inner[place], sharey=first)
                first = first or axes
                axes.tick_params(labelleft=place == 0)
                high = max(high, _panel(axes, panel, widths[place]))
                if panel.level is not None:
                    line = axes.axhline(panel.level, color=style.BLACK, linestyle=(0, (4, 2)), linewidth=0.9)
            height += each + 0.3 + high
        levels = {panel.level for panel in panels} - {None}
        chance = f"chance ({levels.pop():.3g})" if len(levels) == 1 else "chance"
        title = words.titled(words.counted(len(records)), records)
        return Painted(title, height, [] if line is None else [(line, chance)], "", axis)

    def _facets(self, records: Sequence[Record]) -> tuple[list[list[BoxPanel]], str]:
        """The panels of each facet, and the label of the axis."""
        parts: dict[str, Sequence[int]] = {"": range(len(records))}
        if self.facet is not None:
            parts = {**record_values.groups(records, self.facet, "--facet")}
        if self.weightings is not None:
            scores = self._scores(records)
            group = self.group or "train.method"
            drawn = [_by_group(records, parts[facet], facet, scores, group) for facet in parts]
            return drawn, "composite score (1 is best)"
        names = self._names(records)
        share = words.is_share(names)
        levels: dict[str, float | None] = {}
        for facet, places in parts.items():
            count = self.n_classes or classes([records[place] for place in places])
            levels[facet] = 1 / count if share and count is not None else None
        if self.group is not None:
            measured = {name: record_values.column(records, name, "--metric") for name in names}
            drawn = [
                _by_group(records, parts[facet], facet, measured, self.group, levels[facet])
                for facet in parts
            ]
        else:
            drawn = [
                _by_family(
                    names, [records[place] for place in parts[facet]], facet, levels[facet], self.together
                )
                for facet in parts
            ]
        return drawn, words.axis(names)

    def _scores(self, records: Sequence[Record]) -> dict[str, list[float | None]]:
        """Weighting -> the composite score of each record."""
        score = self.scored(records)
        some = weightings.weightings(self.weightings, {term.metric: term.weight for term in score.terms})
        return {title: score.weighed(weights) for title, weights in some.items()}

    def _names(self, records: Sequence[Record]) -> list[str]:
        if self.metric is not None:
            return record_values.chosen(records, self.metric, "--metric")
        known = metric_name.names(records)
        chosen = [
            name
            for name in known
            if words.is_share([name])
            and (words.with_number(name) or name == "acc")
            and metric_name.parse(name).split == "test"
        ]
        if not chosen:
            listed = ", ".join(known[:12]) or "none at all"
            raise RbError(
                f"No record has an accuracy under an attack or a corruption (they have: {listed})."
                " Name metrics with --metric."
            )
        return chosen


def _by_group(
    records: Sequence[Record],
    places: Sequence[int],
    facet: str,
    columns: Mapping[str, Sequence[float | None]],
    group: str,
    level: float | None = None,
) -> list[BoxPanel]:
    """A panel for each metric or score over some of the records, a box for each group of them."""
    groups = record_values.groups([records[place] for place in places], group, "--group")
    colours = [look["color"] for look in style.look([*groups])]
    if not groups.keys() <= style.METHODS.keys():
        colours = [style.BLUE] * len(groups)
    panels = []
    for name, column in columns.items():
        boxes = [
            [value for at in inside if (value := column[places[at]]) is not None]
            for inside in groups.values()
        ]
        title = ", ".join(filter(None, (facet, words.tidy(name))))
        panels.append(BoxPanel(title, "", [*groups], boxes, level, colours))
    return panels


def _by_family(
    names: Sequence[str], records: Sequence[Record], facet: str, level: float | None, together: bool = False
) -> list[BoxPanel]:
    """Families in the order in which they are met, each sorted by distance; single metrics together, all of
    them with `together`."""
    families: dict[tuple[str, str], dict[str, float]] = {}
    for name in names:
        parts = words.with_number(name)
        if parts is not None:
            family = f"{parts.family}, ρ = {parts.rho}" if parts.rho else parts.family
            if parts.over == "severity":
                family = (family if parts.prefixes else parts.of).replace("_", " ")
            families.setdefault((family, words.axis_of(parts)), {})[name] = float(parts.number)
    families = {family: values for family, values in families.items() if len(values) > 1 and not together}
    several = {name for values in families.values() for name in values}
    single = [name for name in names if name not in several]

    def panel(title: str, over: str, chosen: Sequence[str], ticks: list[str]) -> BoxPanel:
        heading = ", ".join(filter(None, (facet, title)))
        columns = [_present(records, name, bool(facet)) for name in chosen]
        return BoxPanel(heading, over, ticks, columns, level)

    panels = [panel("", "", single, [words.shortened(words.tidy(name), 24) for name in single])]
    for (title, over), values in families.items():
        ordered = [name for _, name in sorted((value, name) for name, value in values.items())]
        panels.append(panel(title, over, ordered, [f"{values[name]:.3g}" for name in ordered]))
    return [panel for panel in panels if any(panel.columns)]


def _present(records: Sequence[Record], name: str, may_lack: bool) -> list[float]:
    """The values of a metric; with `may_lack` none if the records lack the metric."""
    try:
        return record_values.present(records, name, "--metric")
    except RbError:
        if may_lack:
            return []
        raise


def _rows(groups: Sequence[BoxPanel], room: float) -> list[list[BoxPanel]]:
    """Panels in about equally filled rows of that width in inches."""
    count = math.ceil(sum(map(_needed, groups)) / room)
    while True:
        full = sum(map(_needed, groups)) / count
        rows: list[list[BoxPanel]] = [[]]
        for group in groups:
            before = sum(map(_needed, rows[-1]))
            if rows[-1] and (before + _needed(group) > room or before + _needed(group) / 2 > full):
                rows.append([])
            rows[-1].append(group)
        if len(rows) <= count or count >= len(groups):
            return rows
        count += 1


def _needed(group: BoxPanel) -> float:
    return max(_LEAST, len(group.columns) * _BOX + 0.15)


def _panel(axes: Axes, group: BoxPanel, width: float) -> float:
    """Draw one group; returns the height in inches of the names below it and of further title lines."""
    colours = group.colours or [style.BLUE] * len(group.columns)
    for place, (column, colour) in enumerate(zip(group.columns, colours, strict=True)):
        if len(column) > FEW:
            _box(axes, column, place, colour)
        else:
            axes.plot([place] * len(column), column, linestyle="", marker="o", color=colour, markersize=3)
    axes.set_xlim(-0.7, len(group.columns) - 0.3)
    axes.grid(visible=False, axis="x")
    title = layout.wrapped(group.title, width, style.SMALL)
    axes.set_title("\n".join(title), fontsize=style.SMALL)
    high = layout.name_x(axes, group.ticks, width - 0.1)
    high += max(0, len(title) - 1) * layout.line_height(style.SMALL)
    if not group.over:
        return high
    lines = layout.wrapped(words.AXES[group.over], width, style.SMALL)
    axes.set_xlabel("\n".join(lines), fontsize=style.SMALL, labelpad=1)
    return high + len(lines) * layout.line_height(style.SMALL)


def _box(axes: Axes, column: Sequence[float], place: int, colour: str) -> None:
    line = {"color": colour, "linewidth": 0.8}
    drawn = axes.boxplot(
        [column],
        positions=[place],
        widths=0.62,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": colour + "33", "edgecolor": colour, "linewidth": 0.8},
        whiskerprops=line,
        capprops=line,
        medianprops={
            "color": style.BLACK if colour == style.VERMILLION else style.VERMILLION,
            "linewidth": 1.4,
        },
        flierprops={
            "marker": ".",
            "markersize": 3.2,
            "markerfacecolor": style.BLACK,
            "markeredgecolor": "none",
            "alpha": 0.7,
        },
    )
    for fliers in drawn["fliers"]:
        fliers.set_rasterized(True)  # thousands of points would make an SVG of many megabytes


def classes(records: Sequence[dict[str, Any]]) -> int | None:
    """The number of classes of the records' data set; None where it is unknown or they differ."""
    counts = {_classes_of(record) for record in records}
    return counts.pop() if len(counts) == 1 else None


def _classes_of(record: dict[str, Any]) -> int | None:
    name = _plain(str(record.get("dataset", "")).partition(":")[0])
    known = next((key for key in DATASETS if _plain(key) == name and key not in WITH_PATH), None)
    if known is not None:
        return describe(known).classes
    if name in _OTHERS:
        return _OTHERS[name]
    details = (entry.get("detail") for entry in record.get("evals") or ())
    matrices = (detail.get("confusion") for detail in details if isinstance(detail, dict))
    return next((len(matrix) for matrix in matrices if isinstance(matrix, list)), None)


def _plain(name: str) -> str:
    """A data set's name for comparison: `cifar10` is also written CIFAR-10."""
    return name.lower().replace("-", "").replace("_", "")
