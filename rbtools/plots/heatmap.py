"""heatmap: rank correlations between metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plots import layout, record_values, style, words
from rbtools.plots.base import Drawing, Painted, Record
from rbtools.registry import param
from rbtools.scoring import correlate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FEWEST = 3  # least number of records: two always agree or disagree
_WRITTEN = 0.23  # the least inches of a cell with a number
_TALLEST = 1.2  # the most height of the rows, in widths of the figure
_SHARES = (0.36, 0.3, 0.24)  # share of the width for the names beside the rows
_TINY = 5.5  # font size in points for names of several rows
_NAMES = {"spearman": "Spearman's ρ", "kendall": "Kendall's τ-b"}


class HeatmapMatrix(NamedTuple):
    """Correlations (rows, cols), NaN where there is none, and the number of records."""

    rows: list[str]
    cols: list[str]
    value: list[list[float]]
    records: int


@dataclass(frozen=True, kw_only=True)
class Heatmap(Drawing):
    """Rank correlations between metrics, from records or from the output of rb-corr.

    Grey cells have none: one of the metrics has the same value in all records.

    Needs two metrics or more in three records or more, or what rb-corr writes.
    """

    name: ClassVar[str] = "heatmap"

    metric: str = param(
        "*",
        "Metrics and expressions with commas, globs among them; --rows, --cols for a part.",
        metavar="EXPR",
    )
    rows: str | None = param(None, "Metrics of the rows.  [default: --metric]", metavar="EXPR")
    cols: str | None = param(None, "Metrics of the columns.  [default: --metric]", metavar="EXPR")
    kind: str | None = param(None, "Which correlation.  [default: spearman]", choices=("spearman", "kendall"))

    @staticmethod
    def adopt(line: dict[str, Any]) -> bool:
        """Whether this is a line of rb-corr, which is no record but can be drawn."""
        return line.get("tool") == "rb-corr" and {"row", "col", "value", "kind"} <= line.keys()

    def paint(self, figure: Figure, records: Sequence[Record]) -> Painted:
        pairs = [line for line in records if self.adopt(line)]
        kind = self.kind or (str(pairs[0]["kind"]) if pairs else "spearman")
        if pairs and len(pairs) < len(records):
            raise RbError("There are records and lines of rb-corr. Draw one or the other.")
        matrix = self._of_pairs(pairs, kind) if pairs else self._of_records(records, kind)
        return _drawn(figure, matrix, self.width, _NAMES.get(kind, kind))

    def _of_pairs(self, pairs: Sequence[Record], kind: str) -> HeatmapMatrix:
        pairs = [line for line in pairs if line["kind"] == kind]
        if not pairs:
            raise RbError(
                f"--kind is {kind}, but the lines of rb-corr have another. Ask rb-corr for --kind {kind}."
            )
        rows = list(dict.fromkeys(str(line["row"]) for line in pairs))
        cols = list(dict.fromkeys(str(line["col"]) for line in pairs))
        at = {(str(line["row"]), str(line["col"])): line["value"] for line in pairs}
        table = [[_number(at.get((row, col))) for col in cols] for row in rows]
        return HeatmapMatrix(rows, cols, table, max((int(line.get("n") or 0) for line in pairs), default=0))

    def _of_records(self, records: Sequence[Record], kind: str) -> HeatmapMatrix:
        if len(records) < FEWEST:
            raise RbError(
                f"There {'is' if len(records) == 1 else 'are'} {words.counted(len(records))}. A correlation"
                f" needs {FEWEST} or more."
            )
        rows = record_values.chosen(records, self.rows or self.metric, "--rows" if self.rows else "--metric")
        cols = record_values.chosen(records, self.cols or self.metric, "--cols" if self.cols else "--metric")
        names = list(dict.fromkeys([*rows, *cols]))
        columns = [record_values.column(records, name, "--metric") for name in names]
        numbers = np.array([[_number(value) for value in column] for column in columns]).T
        values = correlate.matrix(kind, names, numbers, rows, cols).value
        return HeatmapMatrix(rows, cols, values.tolist(), len(records))


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _drawn(figure: Figure, matrix: HeatmapMatrix, width: float, kind: str) -> Painted:
    table = np.array(matrix.value, float)
    if np.isnan(table).all():
        raise RbError(
            "There is no correlation to draw: the metrics have the same value in all records, or too few"
            f" records have both ({FEWEST} are needed)."
        )
    cell, most = _sizes(matrix, width)
    axes = figure.add_subplot()
    axes.set_facecolor("#BDBDBD")
    drawn = axes.imshow(table, cmap="PuOr", vmin=-1, vmax=1, interpolation="nearest")
    axes.grid(visible=False)
    high = _name(axes, matrix.cols, cell, most, "x")
    _name(axes, matrix.rows, cell, most, "y")
    if cell >= _WRITTEN:
        _write(axes, table)
    bar = figure.colorbar(drawn, ax=axes, location="top", aspect=34, pad=0.01, shrink=0.7)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=style.SMALL, pad=1)
    return Painted(f"{kind} over {words.counted(matrix.records)}", cell * len(matrix.rows) + high + 0.55)


def _sizes(matrix: HeatmapMatrix, width: float) -> tuple[float, float]:
    """Inches of a cell and of the names beside the rows, which are shorter where columns would have none."""
    wanted = layout.widest(matrix.rows, style.SMALL)
    for share in _SHARES:
        most = min(1.6, share * width)
        cell = min(0.6, (width - 0.25 - min(most, wanted)) / len(matrix.cols))
        if layout.label_size(cell):
            break
    return min(cell, _TALLEST * width / len(matrix.rows)), most


def _families(names: Sequence[str]) -> list[tuple[str, int, int]]:
    """Runs of metrics that differ in their last numbers only: name, first place, last place. A metric of
    rb-corr's SET:NAME has its set in the name; those without a number are a run over the sets.
    """
    runs: list[tuple[str, int, int]] = []
    for place, name in enumerate(names):
        of_set, colon, metric = name.rpartition(":")
        parts = words.with_number(metric)
        family = words.tidy(metric if parts is None else f"{of_set}{colon}{parts.family}")
        first = runs.pop()[1] if runs and runs[-1][0] == family else place
        runs.append((family, first, place))
    return runs


def _name(axes: Axes, names: Sequence[str], cell: float, most: float, which: str) -> float:
    """Names at each row or column, or if these would be too small, at each run of one family."""
    size = layout.label_size(cell)
    if size:
        shown = layout.apart(list(map(words.tidy, names)), most, size)
        if which == "x":
            return layout.name_x(axes, shown, cell * len(names), size)
        layout.name_y(axes, shown, cell * len(names), size)
        return 0.0
    runs = _families(names)
    least = layout.line_height(_TINY) / cell  # the number of rows that a line of text covers
    shown, places, end = [], [], -least
    for name, first, last in runs:
        middle = (first + last) / 2
        if middle - end >= least and last - first + 1 >= min(least, 3):
            shown.append(layout.fitted(name, most, _TINY))
            places.append(middle)
            end = middle
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks(places, shown)
    axis.set_tick_params(labelsize=_TINY, rotation=90 if which == "x" else 0)
    for _, first, _ in runs[1:]:
        (axes.axvline if which == "x" else axes.axhline)(first - 0.5, color="white", linewidth=0.4)
    return layout.widest(shown, _TINY) if which == "x" else 0.0


def _write(axes: Axes, table: np.ndarray) -> None:
    for row, line in enumerate(table):
        for column, value in enumerate(line):
            if value == value:
                ink = "white" if abs(value) > 0.55 else "black"
                text = f"{value:.2f}".replace("-", "−").replace("0.", ".").replace("1.00", "1")
                axes.text(column, row, text, ha="center", va="center", size=style.SMALL - 1, color=ink)
