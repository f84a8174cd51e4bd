"""box: accuracy by attack and distance, or by corruption and severity, over all records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from rbtools.datasets import DATASETS, WITH_PATH, describe
from rbtools.errors import RbError
from rbtools.plots import layout, record_values, style, words
from rbtools.plots.base import Drawing, Painted, Record
from rbtools.records import metric_name
from rbtools.registry import param

# Classes of published data sets that rbtools does not have.
_OTHERS = {"fashionmnist": 10, "imagenet": 1000}
FEW = 5  # records that are points, not a box
_BOX, _LEAST, _SIDE = 0.13, 0.42, 0.7  # inches that a box takes, a panel, and the axis beside the first


class BoxPanel(NamedTuple):
    """One panel: an attack over its distances, a corruption over its severities, or single metrics."""

    title: str
    over: str
    names: list[str]
    ticks: list[str]


@dataclass(frozen=True, kw_only=True)
class Box(Drawing):
    """How metrics are distributed over records: a panel for each attack or corruption.

    A box holds the middle half of the records, its line is their median; whiskers reach the last
    record within 1.5 times the box's height. Up to five records are shown as points.
    """

    name: ClassVar[str] = "box"

    metric: str | None = param(
        None,
        "Metrics and expressions with commas, globs among them.  [default: acc, and all accuracies under"
        " attacks and corruptions]",
        metavar="EXPR",
    )
    classes: int | None = param(
        None, "Classes of the data set, for the line of chance.  [default: the data set's]", check="positive"
    )

    def paint(self, figure: Any, records: Sequence[Record], scoring: Any) -> Painted:
        rows = _rows(_groups(self._names(records)), self.width - _SIDE)
        every = [name for row in rows for group in row for name in group.names]
        level = self._chance(records) if words.is_share(every) else None
        each = 1.2 if len(rows) > 1 else max(1.5, min(2.4, 0.35 * self.width))
        scale = min((self.width - _SIDE) / sum(map(_needed, row)) for row in rows)
        outer = figure.add_gridspec(len(rows), 1)
        first, lines, high = None, [], 0.0
        for number, row in enumerate(rows):
            widths = [scale * _needed(group) for group in row]
            rest = self.width - _SIDE - sum(widths)
            inner = outer[number].subgridspec(1, len(row) + (rest > 0.05), width_ratios=_with(widths, rest))
            for place, group in enumerate(row):
                axes = figure.add_subplot(inner[place], sharey=first)
                first = first or axes
                axes.tick_params(labelleft=place == 0)
                high = max(high, _panel(axes, group, records, widths[place]))
                if level is not None:
                    lines.append(axes.axhline(level, color=style.BLACK, linestyle=(0, (4, 2)), linewidth=0.9))
        entries = [] if level is None else [(lines[0], f"chance ({level:.3g})")]
        shared = words.common(records)
        title = words.counted(len(records)) + (f" ({shared})" if shared else "")
        return Painted(title, len(rows) * (each + 0.3 + high), entries, "", words.axis(every))

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

    def _chance(self, records: Sequence[Record]) -> float | None:
        count = self.classes or classes(records)
        return None if count is None else 1 / count


def _groups(names: Sequence[str]) -> list[BoxPanel]:
    """Families in the order in which they are met, each sorted by distance; single metrics together."""
    families: dict[tuple[str, str], dict[str, float]] = {}
    for name in names:
        parts = words.with_number(name)
        if parts is not None:
            family = f"{parts.family}, ρ = {parts.rho}" if parts.rho else parts.family
            if parts.over == "severity":
                family = (family if parts.prefixes else parts.of).replace("_", " ")
            families.setdefault((family, words.axis_of(parts)), {})[name] = float(parts.number)
    families = {family: values for family, values in families.items() if len(values) > 1}
    several = {name for values in families.values() for name in values}
    single = [name for name in names if name not in several]
    panels = [BoxPanel("", "", single, [words.shortened(words.tidy(name), 24) for name in single])]
    for (title, over), values in families.items():
        ordered = [name for _, name in sorted((value, name) for name, value in values.items())]
        panels.append(BoxPanel(title, over, ordered, [f"{values[name]:.3g}" for name in ordered]))
    return [panel for panel in panels if panel.names]


def _rows(groups: Sequence[BoxPanel], room: float) -> list[list[BoxPanel]]:
    """Panels in rows that are so many inches wide, about equally full."""
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
    return max(_LEAST, len(group.names) * _BOX + 0.15)


def _with(widths: list[float], rest: float) -> list[float]:
    return [*widths, rest] if rest > 0.05 else widths


def _panel(axes: Any, group: BoxPanel, records: Sequence[Record], width: float) -> float:
    """Draw one group; returns the inches that the names below it are high."""
    columns = [record_values.present(records, name, "--metric") for name in group.names]
    many = [place for place, column in enumerate(columns) if len(column) > FEW]
    if many:
        _boxes(axes, [columns[place] for place in many], many)
    for place, column in enumerate(columns):
        if len(column) <= FEW:
            axes.plot([place] * len(column), column, linestyle="", marker="o", color=style.BLUE, markersize=3)
    axes.set_xlim(-0.7, len(columns) - 0.3)
    axes.grid(visible=False, axis="x")
    axes.set_title("\n".join(layout.wrapped(group.title, width, style.SMALL)), fontsize=style.SMALL)
    high = layout.name_x(axes, group.ticks, width - 0.1)
    if not group.over:
        return high
    lines = layout.wrapped(words.AXES[group.over], width, style.SMALL)
    axes.set_xlabel("\n".join(lines), fontsize=style.SMALL, labelpad=1)
    return high + len(lines) * layout.line_height(style.SMALL)


def _boxes(axes: Any, columns: Sequence[Sequence[float]], places: Sequence[int]) -> None:
    drawn = axes.boxplot(
        columns,
        positions=places,
        widths=0.62,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": "#CFE3F1", "edgecolor": style.BLUE, "linewidth": 0.8},
        whiskerprops={"color": style.BLUE, "linewidth": 0.8},
        capprops={"color": style.BLUE, "linewidth": 0.8},
        medianprops={"color": style.VERMILLION, "linewidth": 1.4},
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
    return _OTHERS.get(name) or next(_matrices(record.get("evals") or ()), None)


def _plain(name: str) -> str:
    """A data set's name for comparison: `cifar10` is also written CIFAR-10."""
    return name.lower().replace("-", "").replace("_", "")


def _matrices(entries: Iterable[dict[str, Any]]) -> Iterator[int]:
    for entry in entries:
        detail = entry.get("detail")
        if isinstance(detail, dict) and isinstance(detail.get("confusion"), list):
            yield len(detail["confusion"])
