"""What several kinds of figures draw: lines with intervals, matrices of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rbtools.lazy import np
from rbtools.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MARKED = 12  # the most points of a line with markers
_WRITTEN = 0.3  # the least inches of the figure for a column of a matrix with numbers
Interval = tuple[float, float]


def line(
    axes: Axes,
    points: Sequence[tuple[float, float]],
    look: dict[str, Any],
    label: str = "",
    intervals: Sequence[Interval | None] = (),
    marked: int = MARKED,
) -> None:
    """A line through points, with markers if they are few, and a band of the intervals of those that have
    one."""
    x, y = zip(*points, strict=True)
    shown = {"markersize": 3.5, **look}
    if len(points) > marked:
        shown["marker"] = ""
    axes.plot(x, y, label=label or None, **shown)
    banded = [(at, *ends) for at, ends in zip(x, intervals, strict=False) if ends is not None]
    if banded:
        axes.fill_between(*zip(*banded, strict=True), color=look["color"], alpha=0.18, linewidth=0)


def matrix(
    axes: Axes,
    table: np.ndarray,
    written: Callable[[float], str],
    is_dark: Callable[[float], bool],
    **colours: Any,
) -> None:
    """Coloured cells (rows, columns), with numbers where they have room; NaN is grey."""
    axes.set_facecolor("#BDBDBD")
    axes.imshow(table, aspect="auto", interpolation="nearest", **colours)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    figure = axes.figure
    across = axes.get_gridspec().ncols * table.shape[1]  # type: ignore[union-attr]
    if figure.get_figwidth() / across < _WRITTEN:  # type: ignore[union-attr]
        return
    for (row, column), value in np.ndenumerate(table):
        ink = "white" if is_dark(value) else "black"
        axes.text(
            column,
            row,
            written(value),
            ha="center",
            va="center",
            size=style.SMALL - 1,
            color=ink,
            clip_on=True,
        )
