"""Text layout: widths, titles in lines, names under ticks and beside points, legends below the figure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rbtools.plots import style, words

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.container import Container
    from matplotlib.figure import Figure


Share = Literal["all", "y", "none"]
_INCH = 72.0  # points
_SPACING = 1.35  # distance of two lines, in font sizes
_TOWER = 8  # a legend with more names has at least two columns
_SMALLEST = 5.0  # points; a smaller name cannot be read
_BESIDE, _LEVELS = 4.0, (0, 9, -9, 18, -18)  # where a name may stand beside its point, in points


def text_width(text: str, size: float) -> float:
    """The width of one line of text in inches, at a font size in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), False)
    return float(width) / _INCH


def widest(texts: Sequence[str], size: float) -> float:
    """The width of the widest text, in inches."""
    return max((text_width(text, size) for text in texts), default=0.0)


def line_height(size: float) -> float:
    """The height of a line of text in inches."""
    return size * _SPACING / _INCH


def wrapped(text: str, width: float, size: float) -> list[str]:
    """The text in lines that fit a width in inches.

    Broken between words, else after a dot or a dash; a part that is still too long is shortened.
    """
    lines: list[str] = []
    for word in words.tidy(text).split():
        joined = f"{lines[-1]} {word}" if lines else word
        if text_width(joined, size) <= width:
            lines[-1:] = [joined]
        else:
            lines += _broken(word, width, size)
    return lines


def _broken(word: str, width: float, size: float) -> list[str]:
    lines = [""]
    for piece in re.findall(r".*?[^0-9][._/-]|.+", word):
        if lines[-1] and text_width(lines[-1] + piece, size) > width:
            lines.append("")
        lines[-1] += piece
    return [fitted(line, width, size) for line in lines]


def fitted(text: str, width: float, size: float) -> str:
    """The text, without its middle if it does not fit."""
    most = len(text)
    while most > 3 and text_width(text, size) > width:
        most -= 1
        text = words.shortened(text, most)
    return text


def apart(names: Sequence[str], width: float, size: float) -> list[str]:
    """Names that fit a width in inches; names that differed still differ. If names without their middles
    are equal, they keep the part in which they differ.
    """
    texts = [fitted(name, width, size) for name in names]
    for text in {text for text in texts if texts.count(text) > 1}:
        places = [place for place, other in enumerate(texts) if other == text]
        alike = [names[place] for place in places]
        if len(set(alike)) == 1:
            continue
        start = _in_common(alike)
        end = _in_common([name[start:][::-1] for name in alike])
        for place, name in zip(places, alike, strict=True):
            texts[place] = _around(name, start, len(name) - end, width, size)
    return texts


def _in_common(names: Sequence[str]) -> int:
    """The length of the common beginning of all names."""
    pairs = enumerate(zip(*names, strict=False))
    return next((place for place, letters in pairs if len(set(letters)) > 1), min(map(len, names)))


def _around(name: str, start: int, end: int, width: float, size: float) -> str:
    """As much of a name as fits: characters `start` to `end` first, then those before and after them."""

    def shown(first: int, last: int) -> str:
        cut = words.ELLIPSIS
        return cut * (first > 0) + name[first:last] + cut * (last < len(name))

    first, last = start, end
    while last > start + 1 and text_width(shown(first, last), size) > width:
        last -= 1
    grown = True
    while grown:
        grown = False
        for wider in ((first - 1, last), (first, last + 1)):
            inside = wider[0] >= 0 and wider[1] <= len(name)
            if inside and text_width(shown(*wider), size) <= width:
                (first, last), grown = wider, True
    return shown(first, last)


def legend(figure: Figure, entries: Sequence[tuple[Artist | Container, str]]) -> float:
    """A legend at the lower edge, in as many columns as fit; returns its height in inches."""
    if not entries:
        return 0.0
    size, handle, gap = style.SMALL, 0.34, 0.2
    room = figure.get_figwidth() - 0.15
    # Many names in one column would be too high: then even the longest name leaves room for two columns.
    most = room / (2 if len(entries) > _TOWER else 1) - handle - gap - 0.01
    names = [fitted(words.tidy(name), most, size) for _, name in entries]
    lengths = [text_width(name, size) + handle + gap for name in names]
    rows = next(rows for rows in range(1, len(names) + 1) if _in_columns(lengths, rows) <= room)
    columns = math.ceil(len(names) / rows)
    handles: list[Any] = [handle for handle, _ in entries]  # matplotlib's annotations forget containers
    figure.legend(
        handles,
        names,
        loc="lower center",
        ncols=columns,
        columnspacing=1.4,
        borderaxespad=0.4,
        borderpad=0.2,
        labelspacing=_SPACING - 1.1,
    )
    return rows * line_height(size) + 0.12


def _in_columns(lengths: Sequence[float], rows: int) -> float:
    """The width of names in columns of that many rows; the last columns may be a row shorter."""
    columns = math.ceil(len(lengths) / rows)
    full, total, start = len(lengths) - columns * (rows - 1), 0.0, 0
    for column in range(columns):
        count = rows - (column >= full)
        total += max(lengths[start : start + count], default=0.0)
        start += count
    return total


def name_x(axes: Axes, names: Sequence[str], width: float, size: float | None = None) -> float:
    """Names below the places 0, 1, ... of an axis of that width in inches. Horizontal if they fit, else
    vertical, and only every second or third if even those would overlap. Returns their height in inches.
    """
    size = style.SMALL if size is None else size
    slot = width / max(len(names), 1)
    level = widest(names, size) + 0.5 * size / _INCH <= slot
    upright = line_height(size) * 0.95
    step = 1 if level else max(1, math.ceil(upright / slot))
    axes.set_xticks(range(0, len(names), step), [names[place] for place in range(0, len(names), step)])
    axes.tick_params(axis="x", labelsize=size, rotation=0 if level else 90)
    return line_height(size) if level else widest(names, size)


def name_y(axes: Axes, names: Sequence[str], height: float, size: float | None = None) -> None:
    """Names left of the places 0, 1, ... of an axis of that height in inches; see `name_x`."""
    size = style.SMALL if size is None else size
    step = max(1, math.ceil(line_height(size) * 0.95 / (height / max(len(names), 1))))
    axes.set_yticks(range(0, len(names), step), [names[place] for place in range(0, len(names), step)])
    axes.tick_params(axis="y", labelsize=size)


def label_size(slot: float) -> float:
    """The font size for lines of text in slots of this height in inches; 0 where it would be illegible."""
    size = min(style.SMALL, slot * _INCH / _SPACING)
    return size if size >= _SMALLEST else 0.0


def label(axes: Axes, *, x: str | None = None, y: str | None = None, room: tuple[float, float]) -> None:
    """Labels of the axes, in lines that fit the room (width, height) in inches."""
    if x is not None:
        axes.set_xlabel("\n".join(wrapped(x, room[0], style.SIZE)))
    if y is not None:
        axes.set_ylabel("\n".join(wrapped(y, room[1], style.SIZE)))


def short_number(value: float, _: object = None) -> str:
    """A tick's number: 1.2M, 350k, 0.05. Without powers of ten, which would need superscripts."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.4g}{letter}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def plain_numbers(axis: Axis) -> None:
    """Large numbers of this axis in the short form; others in matplotlib's."""
    from matplotlib.ticker import FuncFormatter

    low, high = axis.get_view_interval()
    if max(abs(low), abs(high)) >= 10_000:
        axis.set_major_formatter(FuncFormatter(short_number))


def whole_numbers(axis: Axis, steps: Sequence[float] | None = None) -> None:
    """Ticks of a linear axis at whole numbers only; `steps` as matplotlib's MaxNLocator takes them."""
    from matplotlib.ticker import MaxNLocator

    locator = axis.get_major_locator()
    assert isinstance(locator, MaxNLocator)
    locator.set_params(integer=True, **({} if steps is None else {"steps": steps}))


class Grid(NamedTuple):
    """Panels of one size: their axes, the number of rows, and the width of each in inches."""

    axes: list[Axes]
    rows: int
    columns: int
    width: float


def grid(figure: Figure, count: int, *, least: float, side: float = 0.65, share: Share = "all") -> Grid:
    """A grid of panels, each at least `least` inches wide if the figure is wide enough.

    `side` inches are for the numbers on the left; `share` says which axes are alike: "all", "y" (the vertical
    ones), "none".
    """
    room = figure.get_figwidth() - side
    columns = max(1, min(count, int(room / least)))
    rows = math.ceil(count / columns)
    columns = math.ceil(count / rows)
    across: Literal["all", "none"] = "none" if share == "y" else share
    down: Literal["all", "none"] = "all" if share == "y" else share
    panels = figure.subplots(rows, columns, squeeze=False, sharex=across, sharey=down).ravel().tolist()
    for spare in panels[count:]:
        spare.remove()
    if rows > 1 and share == "all":
        for above in panels[max(0, count - columns) : count]:
            above.tick_params(labelbottom=True)  # a shorter row below leaves panels above without tick labels
    return Grid(panels[:count], rows, columns, room / columns)


def name_below(grid: Grid, labels: Sequence[str]) -> tuple[str, float]:
    """Label the horizontal axis of each panel where they differ, as distances in other norms do.

    Returns the label that all have, else an empty one, and the height in inches that each row needs more.
    """
    if len(set(labels)) == 1:
        return labels[0], 0.0
    lines = [wrapped(text, grid.width - 0.1, style.SMALL) for text in labels]
    for axes, text in zip(grid.axes, lines, strict=True):
        axes.set_xlabel("\n".join(text), fontsize=style.SMALL, labelpad=1)
    return "", max(map(len, lines)) * line_height(style.SMALL)


def write_names(axes: Axes, points: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Add the names beside the points; `settle_names` hides those that have no room."""
    from matplotlib import patheffects

    for point, name in zip(points, names, strict=True):
        artist = axes.annotate(
            name,
            point,
            xytext=(0, 0),
            textcoords="offset points",
            size=style.SMALL - 0.5,
            va="center",
            zorder=6,
            arrowprops={"arrowstyle": "-", "color": style.GREY, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 1},
        )
        artist.set_in_layout(False)
        artist.set_path_effects([patheffects.withStroke(linewidth=1.6, foreground="white")])
        vars(axes.figure).setdefault("rbtools_names", []).append((axes, artist))


def settle_names(figure: Figure) -> None:
    """Put each name right or left of its point, or higher or lower, where it covers no other name. One
    without such a place in the axes is hidden."""
    from matplotlib.text import Text

    waiting = vars(figure).get("rbtools_names", [])
    if waiting:
        figure.draw_without_rendering()
    taken: list[Any] = []
    for axes, name in waiting:
        frame = axes.get_window_extent()
        for up, (side, away) in itertools.product(_LEVELS, (("left", _BESIDE), ("right", -_BESIDE))):
            name.set_horizontalalignment(side)
            name.set_position((away, up))
            box = Text.get_window_extent(name)
            inside = all(frame.contains(x, y) for x, y in (box.min, box.max))
            if inside and not box.count_overlaps(taken):
                taken.append(box)
                break
        else:
            name.set_visible(False)
