"""Elements that several kinds of figures contain: lines with intervals, and matrices of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rbtools.lazy import np
from rbtools.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MARKED = 12  # of more points, only some have markers
NOTHING = "#BDBDBD"  # the colour of a cell without a number
_WRITTEN = 0.2  # the least inches for each column of a matrix with numbers


def line(
    axes: Axes,
    points: Sequence[tuple[float, float]],
    look: dict[str, Any],
    label: str = "",
    intervals: Sequence[tuple[float, float] | None] = (),
) -> None:
    """Draw a line through points, with markers at equal distances if there are many points, and a band if
    points have intervals."""
    x, y = zip(*points, strict=True)
    every = 0.12 if len(points) > MARKED else None
    axes.plot(x, y, label=label or None, **{"markersize": 3.5, "markevery": every, **look})
    banded = [(at, *ends) for at, ends in zip(x, intervals, strict=False) if ends is not None]
    if banded:
        places, low, high = zip(*banded, strict=True)
        axes.fill_between(places, low, high, color=look["color"], alpha=0.18, linewidth=0)


def matrix(
    axes: Axes,
    table: np.ndarray,
    room: float = 0.0,
    written: Callable[[float], str] = str,
    is_dark: Callable[[float], bool] = bool,
    **colours: Any,
) -> None:
    """Draw a matrix (rows, columns) as coloured cells; cells with NaN are grey. The cells contain numbers if
    there is space for them when all columns together are `room` inches wide."""
    axes.set(facecolor=NOTHING, frame_on=bool(np.isnan(table).any()))
    axes.imshow(table, aspect="auto", interpolation="nearest", **colours)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    if room / table.shape[1] < _WRITTEN:
        return
    for (row, column), value in np.ndenumerate(table):
        ink = "white" if is_dark(value) else "black"
        how: dict[str, Any] = {"ha": "center", "va": "center", "size": style.small() - 1, "color": ink}
        axes.text(column, row, written(value), **how)
