"""The plot `box`: accuracy by attack and distance, or by corruption and severity, over all records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.datasets import DATASETS, WITH_PATH, describe
from rbtools.errors import RbError
from rbtools.plots import record_values, style, weightings, words
from rbtools.plots.base import Record
from rbtools.plots.renderer import FigureSpec, Panel
from rbtools.records import metric_name
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Numbers of classes of published data sets that rbtools does not have.
_OTHERS = {"fashionmnist": 10, "imagenet": 1000}
FEW = 5  # up to this number of records, points are drawn instead of a box
_BOX = 0.12  # the least inches of a box


# Title of a panel, label of its horizontal axis, and the names, numbers and colours of its boxes.
Boxes = tuple[str, str, list[str], list[list[float]], list[str]]


@dataclass(frozen=True, kw_only=True)
class Box(weightings.Composed):
    """Distributions of metrics over records, with a panel for each attack or corruption. A box shows the
    middle half of the records, and the line in the box shows their median. Whiskers end at the last record
    within 1.5 times the height of the box. If there are at most five records, each of them is shown as a
    point.

    With --group, each metric has a panel that contains a box for each group of records. With --weighting,
    each weighting of the composite score (see rb-score) has a panel. For example, PRBench's figure 6 is
    --preset prbench-code --weighting prbench --within dataset,arch.name.

    Needs at least one metric: the accuracies under attacks and corruptions, or the metrics in --metric.
    """

    name: ClassVar[str] = "box"

    metric: str | None = param(
        None,
        "Metrics, globs and expressions, separated by commas; with --weighting, the metrics of the"
        " score, as in rb-score.  [default: acc, and all accuracies under attacks and corruptions]",
        metavar="EXPR",
    )
    group: str | None = param(
        None,
        "Draw a box for each group of records with the same value of this field, such as"
        " train.method.  [default: train.method with --weighting]",
        metavar="EXPR",
    )
    facet: str | None = param(
        None, "Separate panels for records that differ in these fields.", metavar="LIST"
    )
    together: bool = param(
        False, "Draw one panel for all metrics instead of one for each attack or corruption."
    )
    n_classes: int | None = param(
        None,
        "Number of classes, which determines the line for random guessing.  [default: the data set's]",
        check="positive",
    )

    def spec(self, records: Sequence[Record]) -> FigureSpec:
        parts: Mapping[str, Sequence[int]] = {"": range(len(records))}
        if self.facet is not None:
            parts = record_values.groups(records, self.facet, "--facet")
        group, share = self.group, False
        if self.weightings:
            axis, group = "composite score (1 is best)", group or "train.method"
            score = self.scored(records)
            usual = {term.metric: term.weight for term in score.terms}
            some = weightings.weightings(self.weightings, usual)
            columns = {title: score.weighed(weights) for title, weights in some.items()}
        else:
            names = self._names(records)
            axis, share = words.axis(names), words.are_accuracies(names)
            columns = {name: record_values.column(records, name, "--metric") for name in names}
        facets = {facet: [records[place] for place in places] for facet, places in parts.items()}
        counts = {facet: (self.n_classes or classes(facets[facet])) if share else None for facet in facets}
        known = set(counts.values()) - {None}
        chance = f"chance ({1 / known.pop():.3g})" if len(known) == 1 else "chance"  # type: ignore[operator]
        panels, sizes = [], set()
        for facet, places in parts.items():
            own = {name: [column[place] for place in places] for name, column in columns.items()}
            if group is not None:
                drawn = _by_group(record_values.groups(facets[facet], group, "--group"), own)
            else:
                drawn = _by_family(own, self.together)
            for title, over, ticks, boxes, colours in drawn:
                draw = partial(_draw, boxes=boxes, colours=colours, classes=counts[facet], chance=chance)
                sizes |= {len(numbers) for numbers in boxes if len(numbers) > FEW}
                heading = ", ".join(filter(None, (words.label(facet), title)))
                panels.append(Panel(draw, heading, over, axis, ticks))
        note = f"Each box: {words.span(sizes)} models." if sizes else ""
        least = max(1.1, _BOX * max(len(panel.columns) for panel in panels))
        return FigureSpec(panels, least=least, note=note)

    def _names(self, records: Sequence[Record]) -> list[str]:
        if self.metric is not None:
            return record_values.chosen(records, self.metric, "--metric")
        known = metric_name.names(records)
        chosen = [
            name
            for name in known
            if words.are_accuracies([name])
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
    groups: Mapping[str, Sequence[int]], columns: Mapping[str, Sequence[float | None]]
) -> Iterator[Boxes]:
    colours = [look["color"] for look in style.look([*groups]).values()]
    for name, column in columns.items():
        boxes = [record_values.present([column[place] for place in places]) for places in groups.values()]
        title = words.label(name) if len(columns) > 1 else ""  # the label of the axis names a single metric
        yield title, "", [words.label(group) for group in groups], boxes, colours


def _by_family(columns: Mapping[str, Sequence[float | None]], together: bool) -> Iterator[Boxes]:
    """The families of metrics in order of first occurrence, each sorted by distance, after the single
    metrics. If `together` is true, all metrics are single metrics."""
    found = {} if together else words.families(columns)
    found = {family: members for family, members in found.items() if len(members) > 1}
    several = {name for members in found.values() for _, name in members}
    single = [name for name in columns if name not in several]
    alone = words.label(single[0]) if len(single) == 1 and found else ""
    panels = [(alone, "", single, [""] if alone else [words.label(name) for name in single])]
    for (title, over), members in found.items():
        panels.append((title, over, [name for _, name in members], [f"{x:.3g}" for x, _ in members]))
    for title, over, names, ticks in panels:
        boxes = [record_values.present(columns[name]) for name in names]
        if any(boxes):
            yield title, over, ticks, boxes, [style.BLUE] * len(boxes)


def _draw(axes: Axes, boxes: list[list[float]], colours: list[str], classes: int | None, chance: str) -> None:
    for place, (numbers, colour) in enumerate(zip(boxes, colours, strict=True)):
        if len(numbers) > FEW:
            _box(axes, numbers, place, colour)
        else:
            axes.plot([place] * len(numbers), numbers, linestyle="", marker="o", color=colour, markersize=3.5)
    middle, half = (len(boxes) - 1) / 2, max(len(boxes), 3) / 2 + 0.1
    axes.set_xlim(middle - half, middle + half)
    axes.grid(visible=False, axis="x")
    if classes is not None:
        axes.axhline(1 / classes, color=style.BLACK, linestyle=(0, (4, 2)), linewidth=0.9, label=chance)


def _box(axes: Axes, column: Sequence[float], place: int, colour: str) -> None:
    line = {"color": colour, "linewidth": 0.9}
    drawn = axes.boxplot(
        [column],
        positions=[place],
        widths=0.62,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": colour + "33", "edgecolor": colour, "linewidth": 0.9},
        whiskerprops=line,
        capprops=line,
        medianprops={"color": colour, "linewidth": 1.8},
        flierprops={"marker": ".", "markersize": 4.5, "markerfacecolor": colour, "markeredgecolor": "none"},
    )
    for fliers in drawn["fliers"]:
        fliers.set_rasterized(True)  # thousands of points would make an SVG of many megabytes


def classes(records: Sequence[dict[str, Any]]) -> int | None:
    """The number of classes of the data sets; None if the number is unknown or differs between data sets."""
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


def _plain(name: str) -> str:  # `cifar10` is also written CIFAR-10
    return name.lower().replace("-", "").replace("_", "")
