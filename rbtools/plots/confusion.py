"""The plot `confusion`: confusion matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plots import details, layout, marks, words
from rbtools.plots.base import Drawing, Record
from rbtools.plots.renderer import FigureSpec, Panel, shaped
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_LEAST = 2.2  # inches of a matrix


@dataclass(frozen=True, kw_only=True)
class Confusion(Drawing):
    """Confusion matrices of evaluations with --detail, as sums over the records.

    Each row contains the images of a true class. Colours and numbers are shares of the images in a row, so
    the diagonal contains the accuracy for each class.

    Needs evaluations of rb-attack with --detail.
    """

    name: ClassVar[str] = "confusion"
    detail: ClassVar[str] = "confusion"

    metric: str | None = param(
        None,
        "Metrics and globs, separated by commas; each metric has its own matrix.  [default: the last"
        " metric with details]",
        metavar="LIST",
    )
    counts: bool = param(False, "Show the numbers of images instead of shares of each row.")
    labels: str | None = param(None, "Names of the classes, separated by commas.", metavar="LIST")

    def spec(self, records: Sequence[Record]) -> FigureSpec:
        by_metric = details.of(records, self.metric, self.detail)
        if self.metric is None:
            last = next(reversed(by_metric))
            by_metric = {last: by_metric[last]}
        panels = []
        room = (self.width - 1.2) / min(len(by_metric), max(1, int((self.width - 0.65) / _LEAST)))
        for name, rows in by_metric.items():
            counts = _sum(name, [np.array(detail["confusion"]) for detail in rows])
            names = self._names(len(counts))
            title = words.label(name) + (f", sum of {len(rows)} models" if len(rows) > 1 else "")
            draw = partial(self._matrix, counts=counts, room=room)
            panels.append(Panel(draw, title, "predicted class", "true class", names, names))
        bar = "images" if self.counts else "share of the class"
        return FigureSpec(panels, shaped(0.95, 4.0), least=_LEAST, bar=bar)

    def _matrix(self, axes: Axes, counts: np.ndarray, room: float) -> None:
        shown = counts if self.counts else counts / np.maximum(counts.sum(1, keepdims=True), 1)
        top = max(float(shown.max()), 1e-9) if self.counts else 1.0
        colours: dict[str, Any] = {"cmap": "cividis", "vmin": 0, "vmax": top}
        marks.matrix(axes, shown, room, self._written, lambda value: value < 0.55 * top, **colours)

    def _written(self, value: float) -> str:
        if self.counts:
            return layout.short_number(float(value))
        return f"{value:.2f}".removeprefix("0") if value else "0"

    def _names(self, classes: int) -> list[str]:
        if self.labels is None:
            return [str(number) for number in range(classes)]
        names = [words.shortened(words.tidy(name), 16) for name in self.labels.split(",")]
        if len(names) != classes:
            raise RbError(f"--labels has {len(names)} names, but there are {classes} classes.")
        return names


def _sum(name: str, matrices: Sequence[np.ndarray]) -> np.ndarray:
    sizes = sorted({len(matrix) for matrix in matrices})
    if len(sizes) > 1:
        raise RbError(
            f"The confusion matrices of '{name}' have {' and '.join(map(str, sizes))} classes, so they cannot"
            " be summed. Choose the records of one data set (--where)."
        )
    return sum(matrices[1:], matrices[0])
