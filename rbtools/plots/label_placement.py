"""Places names beside points so that no name covers another name or a named point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rbtools.plots import layout, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation


_NEAR, _STEP, _RINGS = 0.055, 0.085, 7  # inches from a point to its name, from ring to ring, rings tried
_HINTED = 1.06  # hinting sets letters that much wider at most, by the font library's version
_DIRECTIONS = ((1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1))


class Label(NamedTuple):
    """A name that is placed once the figure has its size."""

    at: tuple[float, float]
    artist: Annotation
    width: float


def write(axes: Axes, points: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Add the names; `settle` places them when the figure's size is known."""
    from matplotlib import patheffects

    size = style.SMALL - 0.5
    labels = []
    for point, name in zip(points, names, strict=True):
        artist = axes.annotate(
            name,
            point,
            xytext=(_NEAR * 72, 0),
            textcoords="offset points",
            size=size,
            va="center",
            zorder=6,
            arrowprops={"arrowstyle": "-", "color": style.GREY, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 1},
        )
        artist.set_in_layout(False)
        artist.set_path_effects([patheffects.withStroke(linewidth=1.6, foreground="white")])
        labels.append(Label(point, artist, _HINTED * layout.text_width(name, size)))
    vars(axes.figure).setdefault("rbtools_names", []).append((axes, labels))


def settle(figure: Figure) -> None:
    """Move all names to free places; names without a free place in the axes are hidden."""
    waiting = vars(figure).get("rbtools_names", [])
    if waiting:
        figure.draw_without_rendering()
    for axes, labels in waiting:
        _settle(axes, labels, figure.dpi)


Box = tuple[float, float, float, float]


def _settle(axes: Axes, labels: Sequence[Label], dpi: float) -> None:
    high = layout.line_height(style.SMALL - 0.5) * 0.8
    dots = [tuple(axes.transData.transform(label.at) / dpi) for label in labels]
    window = axes.get_window_extent()
    frame = tuple(edge / dpi for edge in window.extents)
    taken: list[Box] = [(x - 0.03, y - 0.03, x + 0.03, y + 0.03) for x, y in dots]
    for label, (x, y) in zip(labels, dots, strict=True):
        box = next((box for box in _places(x, y, label.width, high) if _free(box, taken, frame)), None)
        if box is None:
            label.artist.set_visible(False)
            continue
        taken.append(box)
        left, low, right, top = box
        label.artist.set_horizontalalignment("center")
        label.artist.set_position((((left + right) / 2 - x) * 72, ((low + top) / 2 - y) * 72))
        close = abs((left + right) / 2 - x) - label.width / 2 < 0.1 and abs((low + top) / 2 - y) < 0.14
        assert label.artist.arrow_patch is not None  # it has arrowprops
        label.artist.arrow_patch.set_visible(not close)


def _places(x: float, y: float, width: float, high: float) -> list[Box]:
    """The candidate places of a name: rings around its point, from near to far."""
    boxes = []
    for ring in range(_RINGS):
        away = _NEAR + ring * _STEP
        for right, up in _DIRECTIONS:
            middle = x + right * (away + width / 2), y + up * (away + high / 2)
            boxes.append(
                (middle[0] - width / 2, middle[1] - high / 2, middle[0] + width / 2, middle[1] + high / 2)
            )
    return boxes


def _free(box: Box, taken: Sequence[Box], frame: Sequence[float]) -> bool:
    inside = box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]
    return inside and not any(
        box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3] for other in taken
    )
