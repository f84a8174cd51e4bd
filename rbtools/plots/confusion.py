"""confusion: confusion matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plots import details, layout, style, words
from rbtools.plots.base import Drawing, Painted, Record
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


_WRITTEN = 0.2  # the least inches of a cell with a number


@dataclass(frozen=True, kw_only=True)
class Confusion(Drawing):
    """Confusion matrices of evaluations that were made with --detail, summed over the records.

    Rows are true classes. Colours and numbers are shares of a row, so that the diagonal is the accuracy
    within a class.

    Needs evaluations of rb-attack --detail.
    """

    name: ClassVar[str] = "confusion"
    detail: ClassVar[str] = "confusion"

    metric: str | None = param(
        None,
        "Metrics with commas, globs among them, a matrix for each.  [default: the one with details last]",
        metavar="LIST",
    )
    counts: bool = param(False, "Numbers of images instead of shares of a row.")
    labels: str | None = param(None, "Names of the classes, with commas.", metavar="LIST")

    def paint(self, figure: Figure, records: Sequence[Record]) -> Painted:
        by_metric = details.of(records, self.metric, self.detail)
        if self.metric is None:
            last = next(reversed(by_metric))
            by_metric = {last: by_metric[last]}
        if len(by_metric) > 9:
            raise RbError(
                f"--metric means {len(by_metric)} matrices, and 9 fit: {', '.join(by_metric)}. Name fewer."
            )
        grid = layout.grid(figure, len(by_metric), least=2.2, side=0.75)
        for axes, (name, rows) in zip(grid.axes, by_metric.items(), strict=True):
            matrix = _sum(name, [np.array(detail["confusion"]) for detail in rows])
            image = self._matrix(axes, matrix, grid.width)
            if len(by_metric) > 1:
                axes.set_title("\n".join(layout.wrapped(name, grid.width, style.SMALL)), size=style.SMALL)
        bar = figure.colorbar(image, ax=grid.axes, pad=0.02, aspect=26, shrink=0.8 if grid.rows == 1 else 0.4)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=style.SMALL)
        bar.set_label("images" if self.counts else "share of the class", size=style.SIZE)
        which = f"Confusion: {words.setting(next(iter(by_metric)))}" if len(by_metric) == 1 else "Confusion"
        height = grid.rows * (grid.width * (0.86 if grid.columns == 1 else 0.98) + 0.3)
        return Painted(
            f"{which}, {words.counted(len(next(iter(by_metric.values()))))}",
            height,
            (),
            "predicted class",
            "true class",
        )

    def _matrix(self, axes: Axes, counts: np.ndarray, width: float) -> AxesImage:
        shown = counts if self.counts else counts / np.maximum(counts.sum(1, keepdims=True), 1)
        top = max(float(shown.max()), 1e-9) if self.counts else 1.0
        drawn = axes.imshow(shown, cmap="cividis", vmin=0, vmax=top)
        size, classes = (width - 0.35) / len(counts), len(counts)
        names = self._names(classes)
        layout.name_x(axes, names, width - 0.35)
        layout.name_y(axes, names, width - 0.35)
        axes.grid(visible=False)
        axes.tick_params(length=2)
        if size >= _WRITTEN:
            _write(axes, counts, shown, top, self.counts)
        return drawn

    def _names(self, classes: int) -> list[str]:
        if self.labels is None:
            return [str(number) for number in range(classes)]
        names = [words.shortened(words.tidy(name), 16) for name in self.labels.split(",")]
        if len(names) != classes:
            raise RbError(f"--labels has {len(names)} names. The matrix has {classes} classes.")
        return names


def _sum(name: str, matrices: Sequence[np.ndarray]) -> np.ndarray:
    sizes = sorted({len(matrix) for matrix in matrices})
    if len(sizes) > 1:
        raise RbError(
            f"The confusion matrices of '{name}' have {' and '.join(map(str, sizes))} classes, so they cannot"
            " be summed. Choose the records of one data set (--where)."
        )
    return sum(matrices[1:], matrices[0])


def _write(axes: Axes, counts: np.ndarray, shown: np.ndarray, top: float, as_counts: bool) -> None:
    for row in range(len(counts)):
        for column in range(len(counts)):
            value = shown[row, column]
            if value < (1 if as_counts else 0.005):
                continue
            text = layout.short_number(float(value)) if as_counts else f"{value:.2f}".lstrip("0")
            ink = "white" if value < 0.55 * top else "black"
            axes.text(column, row, text, ha="center", va="center", size=style.SMALL - 1, color=ink)
