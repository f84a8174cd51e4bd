"""box: accuracy by attack and distance, or by corruption and severity, over all records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rbtools.datasets import DATASETS, WITH_PATH, describe
from rbtools.errors import RbError
from rbtools.plots import record_values, style, weightings, words
from rbtools.plots.base import Record
from rbtools.plots.render import Panel, Spec
from rbtools.records import metric_name
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Classes of published data sets that rbtools does not have.
_OTHERS = {"fashionmnist": 10, "imagenet": 1000}
FEW = 5  # up to this many records are points, not a box
_BOX = 0.12  # the least inches of a box


class Boxes(NamedTuple):
    """The boxes of a panel: an attack over its distances, a corruption over its severities, single metrics,
    or groups.

    columns: the numbers of each box. level: of chance. colours: of each box, where the boxes are groups.
    """

    title: str
    over: str
    names: list[str]
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

    def spec(self, records: Sequence[Record]) -> Spec:
        boxes, axis = self._boxes(records)
        levels = {one.level for one in boxes} - {None}
        chance = f"chance ({levels.pop():.3g})" if len(levels) == 1 else "chance"
        panels = [
            Panel(
                partial(_draw, boxes=one, chance=chance),
                one.title,
                words.AXES.get(one.over, ""),
                axis,
                one.names,
            )
            for one in boxes
        ]
        return Spec(panels, least=max(1.1, _BOX * max(len(one.columns) for one in boxes)))

    def _boxes(self, records: Sequence[Record]) -> tuple[list[Boxes], str]:
        """The panels, those of a facet after those of the one before, and the label of their axis."""
        parts: dict[str, Sequence[int]] = {"": range(len(records))}
        if self.facet is not None:
            parts = {**record_values.groups(records, self.facet, "--facet")}
        group, share = self.group, False
        if self.weightings is not None:
            axis, group = "composite score (1 is best)", group or "train.method"
            columns = self._scores(records)
        else:
            names = self._names(records)
            axis, share = words.axis(names), words.is_share(names)
            columns = {name: record_values.column(records, name, "--metric") for name in names}
        drawn: list[Boxes] = []
        for facet, places in parts.items():
            some = [records[place] for place in places]
            own = {name: [column[place] for place in places] for name, column in columns.items()}
            count = (self.n_classes or classes(some)) if share else None
            level = None if count is None else 1 / count
            if group is not None:
                drawn += _by_group(record_values.groups(some, group, "--group"), facet, own, level)
            else:
                drawn += _by_family(own, facet, level, self.together)
        return drawn, axis

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
    groups: Mapping[str, Sequence[int]],
    facet: str,
    columns: Mapping[str, Sequence[float | None]],
    level: float | None,
) -> list[Boxes]:
    """A panel for each metric or score, a box for each group of records."""
    looks = style.look([*groups])
    colours = [looks[name]["color"] for name in groups]
    names = [words.label(name) for name in groups]
    return [
        Boxes(
            _title(facet, words.label(name)),
            "",
            names,
            [_known([column[place] for place in places]) for places in groups.values()],
            level,
            colours,
        )
        for name, column in columns.items()
    ]


def _by_family(
    columns: Mapping[str, Sequence[float | None]], facet: str, level: float | None, together: bool
) -> list[Boxes]:
    """Families in the order in which they are met, each sorted by distance; single metrics together, all of
    them with `together`."""
    families: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for name in columns:
        parts = None if together else words.with_number(name)
        if parts is not None:
            family = (words.family(name, parts.over), words.axis_of(parts))
            families.setdefault(family, []).append((float(parts.number), name))
    families = {family: sorted(found) for family, found in families.items() if len(found) > 1}
    several = {name for found in families.values() for _, name in found}
    single = [name for name in columns if name not in several]
    panels = [
        Boxes(
            _title(facet),
            "",
            [words.label(name) for name in single],
            [_known(columns[name]) for name in single],
            level,
        )
    ]
    for (title, over), found in families.items():
        ticks = [f"{number:.3g}" for number, _ in found]
        panels.append(
            Boxes(_title(facet, title), over, ticks, [_known(columns[name]) for _, name in found], level)
        )
    return [panel for panel in panels if any(panel.columns)]


def _title(facet: str, what: str = "") -> str:
    return ", ".join(filter(None, (words.label(facet), what)))


def _known(column: Sequence[float | None]) -> list[float]:
    return [value for value in column if value is not None]


def _draw(axes: Axes, boxes: Boxes, chance: str) -> None:
    colours = boxes.colours or [style.BLUE] * len(boxes.columns)
    for place, (column, colour) in enumerate(zip(boxes.columns, colours, strict=True)):
        if len(column) > FEW:
            _box(axes, column, place, colour)
        else:
            axes.plot([place] * len(column), column, linestyle="", marker="o", color=colour, markersize=3.5)
    middle, half = (len(boxes.columns) - 1) / 2, max(len(boxes.columns), 3) / 2 + 0.1
    axes.set_xlim(middle - half, middle + half)
    axes.grid(visible=False, axis="x")
    if boxes.level is not None:
        axes.axhline(boxes.level, color=style.BLACK, linestyle=(0, (4, 2)), linewidth=0.9, label=chance)


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
        flierprops={"marker": ".", "markersize": 3.2, "markerfacecolor": colour, "markeredgecolor": "none"},
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
