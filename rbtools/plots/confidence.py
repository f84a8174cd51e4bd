"""The plot `confidence`: the confidences of networks in correct and wrong predictions, and for each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plots import details, marks, style, words
from rbtools.plots.base import Drawing, Record
from rbtools.plots.renderer import FigureSpec, Panel, write_names
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MOST_NAMED = 10
_FAR = 10  # at this ratio of the last two distances (such as 255 to 8), all steps of the axis are equal
# The panels of --view class: title and labels of axes.
SCHEMES = {
    "label": ("images of the class", "true class", "mean probability of the class"),
    "argmax": ("images predicted as the class", "predicted class", "mean probability of the class"),
    "prediction": ("all images", "prediction", "mean largest probability"),
}
Steps = Sequence[tuple[float, list[dict[str, Any]]]]  # distance -> details of the records


@dataclass(frozen=True, kw_only=True)
class Confidence(Drawing):
    """Confidences of evaluations with --detail, as medians and the middle 80 % of the records.

    The view distance shows how the mean largest probability of correct and of wrong predictions depends on
    the distance. The view prediction draws the mean for wrong predictions over the mean for correct
    predictions, with a point for each distance and the distance above the point. The view class shows three
    parts for each evaluation in --metric (by default the last evaluation): the mean probability of each class
    over the images of the class (label), the mean probability of each class over the images that are
    predicted as this class (argmax), and the largest probability of correct and of wrong predictions
    (prediction). The view label shows how the mean probability of every class over the images of one class
    (--class) depends on the distance.

    Needs evaluations of rb-attack with --detail.
    """

    name: ClassVar[str] = "confidence"
    detail: ClassVar[str] = "confidence"

    metric: str | None = param(
        None, "Metrics and globs, separated by commas.  [default: all metrics with details]", metavar="LIST"
    )
    view: str = param(
        "distance",
        "What to draw: confidence on correct and wrong images over the distance; wrong against correct; by"
        " class; or on the images of one class (label) over the distance.",
        choices=("distance", "prediction", "class", "label"),
    )
    image_class: int = param(
        0, "With --view label, the number of the class, starting at 0.", name="class", check="non-negative"
    )

    def spec(self, records: Sequence[Record]) -> FigureSpec:
        by_metric = details.of(records, self.metric, self.detail)
        return self._by_class(by_metric) if self.view == "class" else self._over(by_metric)

    def _over(self, by_metric: details.Details) -> FigureSpec:
        families = words.families(by_metric)
        if not families:
            raise RbError(
                f"None of {', '.join(by_metric)} depends on a distance or severity. Use --view class."
            )
        places = _places({0.0, *(value for names in families.values() for value, _ in names)})
        panels = []
        most = max(map(len, by_metric.values()))
        for (title, over), names in families.items():
            clean = [(0.0, "acc")] if "acc" in by_metric and over != "severity" else []
            steps = [(value, by_metric[name]) for value, name in clean + names]
            draw = partial(self._draw, steps=steps, places=places)
            of = over
            y = "mean largest probability"
            if self.view == "label":
                y = f"mean probability on images of class {self.image_class}"
            if self.view == "prediction":
                y = "mean largest probability if wrong"
                of = f"mean largest probability if correct; next to each point: {of}"
            panels.append(Panel(draw, title, of, y))
        note = _note(most, "Bars" if self.view == "prediction" else "Bands")
        return FigureSpec(panels, least=1.25 if self.width < 4 else 1.9, note=note)

    def _draw(self, axes: Axes, steps: Steps, places: dict[float, float]) -> None:
        if self.view == "prediction":
            _against(axes, steps)
            return
        if places:
            steps = [(places[value], rows) for value, rows in steps]
            axes.set_xticks(list(places.values()), [f"{value:g}" for value in places])
        if self.view == "label":
            _labels(axes, steps, self.image_class)
            return
        for number, (name, colour) in enumerate((("correct", style.BLUE), ("wrong", style.VERMILLION))):
            _quantiles(
                axes,
                [(x, [row["confidence"]["prediction"][number] for row in rows]) for x, rows in steps],
                {"color": colour, "linestyle": style.DASHES[number], "marker": style.MARKERS[number]},
                f"where {name}",
            )

    def _by_class(self, by_metric: details.Details) -> FigureSpec:
        names = list(by_metric) if self.metric is not None else list(by_metric)[-1:]
        panels = []
        for name in names:
            title = f"{words.label(name)}: " if len(names) > 1 else ""
            rows = by_metric[name]
            pairs = np.array([[value or np.nan for value in row["confidence"]["prediction"]] for row in rows])
            columns = {name: _classes(name, rows) for name in ("label", "argmax")}
            columns["prediction"] = list(pairs.T)
            for scheme, shown in columns.items():
                ticks = ["correct", "wrong"] if scheme == "prediction" else [*map(str, range(len(shown)))]
                heading, x, y = SCHEMES[scheme]
                panels.append(Panel(partial(_spread, columns=shown), title + heading, x, y, ticks))
        most = max(map(len, by_metric.values()))
        return FigureSpec(panels, note=_note(most, "Bars"))


def _note(models: int, spread: str) -> str:
    return f"Medians over {models} models. {spread}: the middle 80 % of the models." if models > 1 else ""


def _places(distances: set[float]) -> dict[float, float]:
    """Maps distances to positions with equal steps; empty if an axis with the distances is legible."""
    ordered = sorted(distances)
    if len(ordered) < 3 or ordered[-1] < _FAR * ordered[-2]:
        return {}
    return {value: float(place) for place, value in enumerate(ordered)}


def _matrices(rows: Sequence[dict[str, Any]], scheme: str) -> np.ndarray:
    """The mean probabilities by label or by argmax, shape (records, classes, classes)."""
    found = [row["confidence"].get(scheme) or [] for row in rows]
    if len({len(matrix) for matrix in found}) > 1 or not found[0]:
        raise RbError(
            "The records have no confidences by class, or have different numbers of classes. Choose records"
            " with --where."
        )
    return np.array(found)


def _labels(axes: Axes, steps: Steps, label: int) -> None:
    """Draws each class's mean probability over the images of class `label`, as the median over records. The
    class `label` has a band with the middle 80 % of the records. Of the other classes, only the ten whose
    probability increases most are named."""
    xs = [x for x, _ in steps]
    classes = _matrices([row for _, details in steps for row in details], "label").shape[1]
    rows = [_matrices(details, "label") for _, details in steps]
    if label >= classes:
        raise RbError(f"--class is {label}. The classes are 0 to {classes - 1}.")
    middles = np.array([np.median(matrices[:, label], axis=0) for matrices in rows])
    order = [int(place) for place in np.argsort(-middles.max(0), kind="stable") if place != label]
    for number, other in enumerate([label, *order]):
        own, named = number == 0, number <= MOST_NAMED
        look = {**(style.line(number) if named else {"color": style.PALE}), "linewidth": 2.0 if own else 1.0}
        points = list(zip(xs, middles[:, other], strict=True))
        ends = [tuple(np.quantile(one[:, label, label], (0.1, 0.9))) for one in rows] if own else []
        marks.line(
            axes, points, {**look, "zorder": 3 if named else 1}, f"class {other}" if named else "", ends
        )


def _quantiles(
    axes: Axes, steps: Sequence[tuple[float, list[Any]]], look: dict[str, Any], label: str
) -> None:
    """The median and the middle 80 % over all records that have correct (or wrong) images."""
    found = [
        (x, np.quantile(known, (0.1, 0.5, 0.9))) for x, values in steps if (known := [v for v in values if v])
    ]
    points = [(x, middle) for x, (_, middle, _) in found]
    if points:
        marks.line(axes, points, look, label, [(low, high) for _, (low, _, high) in found])


def _against(axes: Axes, steps: Steps) -> None:
    """For each distance, a point at the medians over the records that have both means, with bars for the
    middle 80 % of these records."""
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
        write_names(axes, points, names)


def _classes(scheme: str, rows: Sequence[dict[str, Any]]) -> list[np.ndarray]:
    """Each class's mean probability over its images (label), or over the images predicted as it (argmax)."""
    diagonal = np.diagonal(_matrices(rows, scheme), axis1=1, axis2=2)
    counts = np.array([row.get("images", {}).get(scheme, [1] * diagonal.shape[1]) for row in rows])
    return list(np.where(counts > 0, diagonal, np.nan).T)


def _spread(axes: Axes, columns: Sequence[np.ndarray]) -> None:
    """Draw the median and the middle 80 % of each column at the positions 0, 1, ...; NaN is ignored."""
    for place, column in enumerate(columns):
        known = column[~np.isnan(column)]
        if len(known):
            low, middle, high = np.quantile(known, (0.1, 0.5, 0.9))
            axes.vlines(place, low, high, color=style.BLUE, linewidth=1.4, alpha=0.6)
            axes.plot(place, middle, linestyle="", marker="o", color=style.BLUE, markersize=3.5)
    axes.set_xlim(-0.6, len(columns) - 0.4)
