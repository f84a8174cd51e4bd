"""The plot `heatmap`: rank correlations between metrics, or metrics over severity or distance."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plots import layout, marks, record_values, style, value_map, words
from rbtools.plots.base import Drawing, Record
from rbtools.plots.renderer import FigureSpec, Panel
from rbtools.registry import param
from rbtools.scoring import correlate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The largest height of a cell in inches, and of all rows in widths of the figure.
_HIGHEST, _TALLEST = 0.6, 1.2
_DIVERGING: dict[str, Any] = {
    "cmap": "PuOr",
    "vmin": -1,
    "vmax": 1,
    "is_dark": lambda value: abs(value) > 0.55,
}
_SEQUENTIAL: dict[str, Any] = {"cmap": "Purples", "vmin": 0, "vmax": 1, "is_dark": lambda value: value > 0.55}
_NAMES = {"spearman": "Spearman's ρ", "kendall": "Kendall's τ-b"}


class Correlations(NamedTuple):
    """Correlations (rows, columns), NaN if there are none, and the numbers of records used."""

    rows: list[str]
    cols: list[str]
    value: np.ndarray
    n: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Heatmap(Drawing):
    """Rank correlations between metrics, from records or from the output of rb-corr; or, with --view values,
    accuracies with a row for each corruption (or attack) and a column for each severity (or distance).

    A cell is grey if one of the metrics has the same value in all records, so there is no correlation. What
    the names along an axis have in common is written below all of them. Of many metrics, those of a family
    are beside each other, and only families are named. Colours run from 0 if no correlation
    is negative. n is the number of records that have both metrics. With --view values, each model has a
    panel, and of more than six models the mean is drawn.

    Needs at least two metrics in at least three records, or the output of rb-corr; with --view values, a
    metric at several severities or distances.
    """

    name: ClassVar[str] = "heatmap"

    metric: str | None = param(
        None,
        "Metrics, globs and expressions, separated by commas; --rows and --cols select the rows and"
        " columns from them.  [default: all; with --view values corrupt.*]",
        metavar="EXPR",
    )
    rows: str | None = param(None, "Metrics in the rows.  [default: --metric]", metavar="EXPR")
    cols: str | None = param(None, "Metrics in the columns.  [default: --metric]", metavar="EXPR")
    kind: str | None = param(
        None, "The rank correlation to compute.  [default: spearman]", choices=("spearman", "kendall")
    )

    view: str = param(
        "correlations",
        "What to draw: rank correlations, or the values of metrics over severity or distance.",
        choices=("correlations", "values"),
    )

    @staticmethod
    def adopt(line: dict[str, Any]) -> bool:
        """Whether `line` is from the output of rb-corr, which contains no records but can be drawn."""
        return line.get("tool") == "rb-corr" and {"row", "col", "value", "kind"} <= line.keys()

    def spec(self, records: Sequence[Record]) -> FigureSpec:
        pairs = [line for line in records if self.adopt(line)]
        if self.view == "values":
            if unused := [f"--{name}" for name in ("rows", "cols", "kind") if getattr(self, name)]:
                raise RbError(f"{unused[0]} applies only to correlations. Leave it or --view values out.")
            if pairs:
                raise RbError("--view values draws records, but the input has correlations.")
            return value_map.spec(records, self.metric or "corrupt.*", self.width)
        kind = self.kind or (str(pairs[0]["kind"]) if pairs else "spearman")
        if pairs and len(pairs) < len(records):
            raise RbError("The input contains both records and output of rb-corr. Give only one of them.")
        rows, cols, table, counts = self._of_pairs(pairs, kind) if pairs else self._of_records(records, kind)
        if np.isnan(table).all():
            raise RbError(
                "There is no correlation to draw: the metrics have the same value in all records, or too few"
                f" records have both ({correlate.FEWEST} are needed)."
            )
        (down, names), (across, columns) = (_arranged(some, self.width) for some in (rows, cols))
        table = table[np.ix_(down, across)]
        (columns, x), (names, y) = map(_without_end, (columns, names))
        beside = min(layout.widest(names, style.small()), 0.38 * self.width, 1.8)
        scale = _DIVERGING if np.nanmin(table) < 0 else _SEQUENTIAL
        look = {**scale, "written": _written, "room": self.width - 0.55 - beside}
        draw = partial(_draw, table=table, **look)

        def height(wide: float) -> float:
            return min(len(rows) * min(_HIGHEST, wide / len(cols)), _TALLEST * self.width)

        panel = Panel(draw, x=x, y=y, columns=columns, rows=names)
        n = words.span(counts.astype(int).ravel().tolist())
        return FigureSpec([panel], height, bar=f"{_NAMES.get(kind, kind)}, n = {n}", bar_at="top")

    def _of_pairs(self, pairs: Sequence[Record], kind: str) -> Correlations:
        pairs = [line for line in pairs if line["kind"] == kind]
        if not pairs:
            raise RbError(
                f"--kind is {kind}, but rb-corr computed a different kind. Run rb-corr with --kind {kind}."
            )
        rows = list(dict.fromkeys(str(line["row"]) for line in pairs))
        cols = list(dict.fromkeys(str(line["col"]) for line in pairs))
        at = {(str(line["row"]), str(line["col"])): line for line in pairs}
        value, n = (
            np.array([[at.get((row, col), {}).get(field) for col in cols] for row in rows], float)
            for field in ("value", "n")
        )
        return Correlations(rows, cols, value, n[~np.isnan(n)])

    def _of_records(self, records: Sequence[Record], kind: str) -> Correlations:
        if len(records) < correlate.FEWEST:
            raise RbError(
                f"There {'is' if len(records) == 1 else 'are'} {words.counted(len(records))}, but a"
                f" correlation needs at least {correlate.FEWEST}."
            )
        rows = record_values.chosen(
            records, self.rows or self.metric or "*", "--rows" if self.rows else "--metric"
        )
        cols = record_values.chosen(
            records, self.cols or self.metric or "*", "--cols" if self.cols else "--metric"
        )
        names = list(dict.fromkeys([*rows, *cols]))
        numbers = [correlate.floats(record_values.column(records, name, "--metric")) for name in names]
        found = correlate.matrix(kind, names, np.array(numbers).T, rows, cols)
        return Correlations(rows, cols, found.value, found.n)


def _draw(axes: Axes, table: np.ndarray, **look: Any) -> None:
    marks.matrix(axes, table, **look)
    if np.isnan(table).any():
        how: dict[str, Any] = {"linestyle": "", "marker": "s", "markersize": 7, "color": marks.NOTHING}
        axes.plot([], [], label="no correlation: all values are equal, or too few values are known", **how)


def _without_end(names: list[str]) -> tuple[list[str], str]:
    """The names without the end after a comma that they share, such as `severity 3`, and this end. Names
    without a comma do not count."""
    ends = [found[0] for name in names if (found := re.search(r", [^()]*$", name))]
    if len(ends) < 3 or len(set(ends)) > 1:
        return names, ""
    return [name.removesuffix(ends[0]) for name in names], ends[0].removeprefix(", ")


def _arranged(names: Sequence[str], width: float) -> tuple[list[int], list[str]]:
    """The order of the metrics along an axis, and their labels. If the labels would be illegible, metrics of
    a family are beside each other, and only the one in the middle has a label."""
    if len(names) * layout.line_height(layout.SMALLEST) <= 0.75 * width:
        return [*range(len(names))], [words.label(name) for name in names]
    at: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        of_set, _, metric = name.rpartition(":")  # SET:NAME from rb-corr
        parts = words.with_number(metric)
        family = words.label(metric) if parts is None else words.family(metric, parts.over).partition(", ")[0]
        at.setdefault(f"{words.label(of_set)} {family}".strip(), []).append(place)
    labels = []
    for family, places in at.items():
        labels += [""] * ((len(places) - 1) // 2) + [family] + [""] * (len(places) // 2)
    return [place for places in at.values() for place in places], labels


def _written(value: float) -> str:
    if np.isnan(value):
        return ""
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−").replace("0.", ".")
