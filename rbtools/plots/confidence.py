"""confidence: confidences of networks in correct and wrong predictions, and by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plots import details, layout, style, words
from rbtools.plots.base import Drawing, Painted, Record
from rbtools.records import metric_name
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_PANELS, MOST_NAMED = 9, 10
_FAR = 10  # a last distance so many times the one before it (255 after 8) has a place as any other
# The panels of --view class, and what lies along their axes.
SCHEMES = {"label": "true class", "argmax": "predicted class", "prediction": "prediction"}
Steps = Sequence[tuple[float, list[dict[str, Any]]]]  # distance -> details of the records


@dataclass(frozen=True, kw_only=True)
class Confidence(Drawing):
    """Confidences of evaluations that were made with --detail: medians over records, and their middle 80 %.

    Over the distance: the mean of the largest probability, of correct and of wrong predictions. By
    prediction: these two against each other, a point for each distance, which stands above it. By class, for
    each evaluation of --metric (without it the last): the probability of the true class over its images
    (label), that of the predicted class over the images predicted as it (argmax), and the largest one of
    correct and of wrong predictions (prediction). By label, over the distance: the mean probability of every
    class over the images of one class (--class).

    Needs evaluations of rb-attack --detail.
    """

    name: ClassVar[str] = "confidence"
    detail: ClassVar[str] = "confidence"

    metric: str | None = param(
        None, "Metrics with commas, globs among them.  [default: all with details]", metavar="LIST"
    )
    view: str = param(
        "distance",
        "Correct and wrong over the distance, correct against wrong, by class, or of the images of one class"
        " over the distance.",
        choices=("distance", "prediction", "class", "label"),
    )
    image_class: int = param(
        0, "With --view label: the class of the images, from 0.", name="class", check="non-negative"
    )

    def paint(self, figure: Figure, records: Sequence[Record]) -> Painted:
        by_metric = details.of(records, self.metric, self.detail)
        return self._by_class(figure, by_metric) if self.view == "class" else self._over(figure, by_metric)

    def _drawn(self, axes: Axes, steps: Steps) -> list[tuple[Artist, str]]:
        """The lines of one attack or corruption."""
        if self.view == "prediction":
            return _against(axes, steps)
        if self.view == "label":
            return _labels(axes, steps, self.image_class)
        return [_line(axes, steps, place, number) for number, place in enumerate(("correct", "wrong"))]

    def _over(self, figure: Figure, by_metric: details.Details) -> Painted:
        families: dict[str, list[tuple[float, str]]] = {}
        for name in by_metric:
            parts = words.with_number(name)
            if parts is not None:
                families.setdefault(parts.family, []).append((float(parts.number), name))
        clean = by_metric.get("acc")
        if not families:
            raise RbError(
                f"None of {', '.join(by_metric)} has a distance or a severity. Draw them with --view class."
            )
        _refuse_many(list(families))
        over = [words.AXES[words.axis_of(metric_name.parse(names[0][1]))] for names in families.values()]
        grid = layout.grid(
            figure,
            len(families),
            least=1.25 if self.width < 4 else 1.9,
            share="all" if len(set(over)) == 1 else "y",
        )
        entries: list[tuple[Artist, str]] = []
        places = _places({0.0, *(value for names in families.values() for value, _ in names)})
        for axes, (family, names) in zip(grid.axes, families.items(), strict=True):
            steps = [(0.0, clean)] if clean and "corrupt" not in family else []
            steps += [(value, by_metric[name]) for value, name in sorted(names)]
            if places and self.view != "prediction":
                steps = [(places[value], rows) for value, rows in steps]
                axes.set_xticks(list(places.values()), [f"{value:g}" for value in places])
            entries = self._drawn(axes, steps)
            axes.set_title("\n".join(layout.wrapped(family, grid.width, style.SMALL)), size=style.SMALL)
            if self.view != "prediction":
                axes.set_ylim(0, 1.03)
        each = max(1.35, min(2.6, 0.62 * grid.width))
        count = max(map(len, by_metric.values()))
        of = f" of images of class {self.image_class}" if self.view == "label" else ""
        if self.view == "prediction":
            return Painted(
                f"Confidence, {words.counted(count)}; beside each point {'; '.join(dict.fromkeys(over))}",
                grid.rows * (each + 0.42),
                entries,
                "mean largest probability where correct",
                "mean largest probability where wrong",
            )
        below, higher = layout.name_below(grid, over)
        return Painted(
            f"Confidence{of}, {words.counted(count)}",
            grid.rows * (each + 0.42 + higher),
            entries,
            below,
            "mean probability" if self.view == "label" else "mean largest probability",
        )

    def _by_class(self, figure: Figure, by_metric: details.Details) -> Painted:
        names = list(by_metric) if self.metric is not None else list(by_metric)[-1:]
        panels = [(name, scheme) for name in names for scheme in SCHEMES]
        _refuse_many([f"{name} {scheme}" for name, scheme in panels])
        grid = layout.grid(figure, len(panels), least=1.9, share="y")
        for axes, (name, scheme) in zip(grid.axes, panels, strict=True):
            if scheme == "prediction":
                _predictions(axes, by_metric[name], grid.width)
            else:
                _classes(axes, name, scheme, by_metric[name], grid.width)
            axes.set_xlabel(SCHEMES[scheme], size=style.SMALL)
            axes.set_title(scheme if len(names) == 1 else f"{name}: {scheme}", size=style.SMALL)
        each = max(1.6, min(2.6, 0.55 * grid.width))
        which = f"Confidence: {words.setting(names[0])}" if len(names) == 1 else "Confidence by class"
        return Painted(
            f"{which}, {words.counted(max(len(by_metric[name]) for name in names))}",
            grid.rows * (each + 0.55),
            [],
            "",
            "mean probability",
        )


def _places(distances: set[float]) -> dict[float, float]:
    """Distance -> its place on an axis with equal steps; empty where the distances themselves are legible."""
    ordered = sorted(distances)
    if len(ordered) < 3 or ordered[-1] < _FAR * ordered[-2]:
        return {}
    return {value: float(place) for place, value in enumerate(ordered)}


def _refuse_many(names: Sequence[str]) -> None:
    if len(names) > MOST_PANELS:
        raise RbError(f"There would be {len(names)} panels, and {MOST_PANELS} fit. Name fewer with --metric.")


def _labels(axes: Axes, steps: Steps, label: int) -> list[tuple[Artist, str]]:
    """The mean probability of each class over the images of class `label`, medians over the records.

    The class itself has a thick line with the middle 80 % of the records; of more than ten others, the ten
    that gain most are named and the rest is grey.
    """
    xs = [x for x, _ in steps]
    rows = [[detail["confidence"].get("label") for detail in details] for _, details in steps]
    sizes = {0 if not matrix else len(matrix) for row in rows for matrix in row}
    if len(sizes) > 1 or sizes == {0}:
        raise RbError(
            "The confidences by class are not there, or are of different numbers of classes. Choose records"
            " with --where."
        )
    if label >= min(sizes):
        raise RbError(f"--class is {label}. The classes are 0 to {min(sizes) - 1}.")
    middles = np.array([np.median([matrix[label] for matrix in row], axis=0) for row in rows])
    order = [int(place) for place in np.argsort(-middles.max(0), kind="stable") if place != label]
    entries: list[tuple[Artist, str]] = []
    for number, other in enumerate([label, *order]):
        own, named = number == 0, number <= MOST_NAMED
        look = style.line(number) if named else {"color": style.PALE, "linestyle": "-"}
        width = 2.0 if own else 1.0
        (line,) = axes.plot(xs, middles[:, other], linewidth=width, zorder=3 if named else 1, **look)
        if named:
            entries.append((line, f"class {other}"))
    low, high = np.array(
        [np.quantile([matrix[label][label] for matrix in row], (0.1, 0.9)) for row in rows]
    ).T
    axes.fill_between(xs, low, high, color=style.COLOURS[0], alpha=0.18, linewidth=0)
    return entries


def _line(axes: Axes, steps: Steps, place: str, number: int) -> tuple[Artist, str]:
    """Median and middle 80 % over the records; without correct (or wrong) images there is no confidence."""
    xs, middles = [], []
    for x, rows in steps:
        known = [row["confidence"]["prediction"][number] for row in rows]
        known = [value for value in known if value]
        if known:
            xs.append(x)
            middles.append(np.quantile(known, (0.1, 0.5, 0.9)))
    colour, dashes = (style.BLUE, "-") if number == 0 else (style.VERMILLION, (0, (4, 1.5)))
    low, middle, high = np.array(middles).reshape(-1, 3).T
    axes.fill_between(xs, low, high, color=colour, alpha=0.18, linewidth=0)
    marker = style.MARKERS[number] if len(xs) <= 12 else ""
    (line,) = axes.plot(xs, middle, color=colour, linestyle=dashes, marker=marker, markersize=3.5)
    return line, f"where {place}"


def _against(axes: Axes, steps: Steps) -> list[tuple[Artist, str]]:
    """The mean largest probability of wrong predictions over that of correct ones, a point a distance:
    medians over the records that have both, and their middle 80 %."""
    points, names = [], []
    for distance, rows in steps:
        both = [row["confidence"]["prediction"] for row in rows]
        both = [pair for pair in both if all(pair)]
        if not both:
            continue
        (low_x, low_y), (x, y), (high_x, high_y) = np.quantile(both, (0.1, 0.5, 0.9), axis=0)
        axes.plot([low_x, high_x], [y, y], color=style.BLUE, alpha=0.3, linewidth=1)
        axes.plot([x, x], [low_y, high_y], color=style.BLUE, alpha=0.3, linewidth=1)
        points.append((float(x), float(y)))
        names.append("clean" if distance == 0 else f"{distance:g}")
    if points:
        axes.plot(*zip(*points, strict=True), color=style.BLUE, marker="o", markersize=3.5, linewidth=0.8)
        layout.write_names(axes, points, names)
    return []


def _classes(axes: Axes, name: str, scheme: str, rows: Sequence[dict[str, Any]], width: float) -> None:
    """The probability of each class over the images of it (label), or over those predicted as it (argmax)."""
    shapes = {len(row["confidence"].get("label") or ()) for row in rows}
    if len(shapes) > 1 or shapes == {0}:
        raise RbError(
            f"The confidences of '{name}' by class are not there, or are of data sets with different classes."
            " Choose records with --where."
        )
    classes = shapes.pop()
    diagonal = np.array([np.diag(np.array(row["confidence"][scheme])) for row in rows])
    counts = np.array([row.get("images", {}).get(scheme, [1] * classes) for row in rows])
    diagonal = np.where(counts > 0, diagonal, np.nan)
    _spread(axes, list(diagonal.T), style.BLUE if scheme == "label" else style.VERMILLION)
    layout.name_x(axes, [str(number) for number in range(classes)], width - 0.2)
    axes.set_xlim(-0.6, classes - 0.4)


def _predictions(axes: Axes, rows: Sequence[dict[str, Any]], width: float) -> None:
    """The largest probability of correct and of wrong predictions, over the records that have such."""
    pairs = np.array([[value or np.nan for value in row["confidence"]["prediction"]] for row in rows])
    _spread(axes, list(pairs.T), style.GREEN)
    layout.name_x(axes, ["correct", "wrong"], width - 0.2)
    axes.set_xlim(-0.6, 1.6)


def _spread(axes: Axes, columns: Sequence[np.ndarray], colour: str) -> None:
    """At 0, 1 ... the median of each column and its middle 80 %; NaN is left out."""
    for place, column in enumerate(columns):
        known = column[~np.isnan(column)]
        if len(known):
            low, middle, high = np.quantile(known, (0.1, 0.5, 0.9))
            axes.vlines(place, low, high, color=colour, linewidth=1, alpha=0.5)
            axes.plot(place, middle, linestyle="", marker="o", color=colour, markersize=3.5)
    axes.set_ylim(0, 1.03)
