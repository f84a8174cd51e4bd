"""Fits text into the available space, and writes the numbers and names along axes."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rbtools.plots import style, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis


# Texts that are not broken into lines: a range in brackets, a short remark in parentheses, a value, a number.
_WHOLE = re.compile(r"\[[^][]*\]|\([^()]{,14}\)| = | (?=\d+$)")
_BOUND = "\u00a0"  # a space between words that stay on one line
_INCH = 72.0  # points
_SPACING = 1.35  # distance between two lines, in font sizes
SMALLEST = 5.0  # points; a smaller name cannot be read


def text_width(text: str, size: float) -> float:
    """The width of one line of text in inches, at a font size in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), False)
    return float(width) / _INCH


def widest(texts: Sequence[str], size: float) -> float:
    """The width of the widest text, in inches."""
    return max((text_width(text, size) for text in texts), default=0.0)


def line_height(size: float) -> float:  # in inches
    return size * _SPACING / _INCH


def wrapped(text: str, width: float, size: float) -> str:
    """Break the text into lines that fit a width in inches; lines are broken between words if possible."""
    text = _WHOLE.sub(lambda found: found[0].replace(" ", _BOUND), words.tidy(text))
    letters = int(1.3 * width * len(text) / (text_width(text, size) or 1)) + 1
    while True:
        lines = textwrap.wrap(text, letters, break_on_hyphens=False)
        if letters == 1 or widest(lines, size) <= width:
            return "\n".join(lines).replace(_BOUND, " ")
        letters -= 1


def fitted(text: str, width: float, size: float, *, end: bool = False) -> str:
    """Shorten the text in the middle (or at the end) to a width in inches."""
    most = len(text)
    while most > 3 and text_width(text, size) > width:
        most -= 1
        text = text[: most - 1] + words.ELLIPSIS if end else words.shortened(text, most)
    return text


def apart(names: Sequence[str], width: float, size: float) -> list[str]:
    """Shorten names to a width in inches. Names that would become equal lose their common prefix instead."""
    texts = [fitted(name, width, size) for name in names]
    for text in {text for text in texts if texts.count(text) > 1}:
        alike = {name for name, other in zip(names, texts, strict=True) if other == text}
        columns = enumerate(zip(*alike, strict=False))
        start = next((place for place, letters in columns if len(set(letters)) > 1), 0)
        if len(alike) > 1:
            shown = {name: fitted(words.ELLIPSIS + name[start:], width, size, end=True) for name in alike}
            texts = [shown.get(name, other) for name, other in zip(names, texts, strict=True)]
    return texts


def name_places(axes: Axes, which: str, names: Sequence[str], room: float, most: float = 1.5) -> None:
    """Write names at the positions 0, 1, ... of an axis ("x" or "y") that is `room` inches long; each name
    may be at most `most` inches long. Names are broken into lines if all of them fit, and otherwise shortened
    and, below an axis, vertical. Empty names leave their space to the others, which are moved apart. If there
    are too many names, those that would overlap an earlier name are left out."""
    slot, size = room / max(len(names), 1), style.small()
    across, lines = (max(slot - 0.04, 0.01), 3.0) if which == "x" else (most, slot / line_height(size))
    shown = [wrapped(name, across, size) for name in names]
    fit = all(
        text.replace("\n", " ") == words.tidy(name) and text.count("\n") < lines - 0.99
        for name, text in zip(names, shown, strict=True)
    )
    if not fit:
        size = max(SMALLEST, min(size, slot / line_height(1)))
        shown = apart(names, most, size)
    least = 1.0 if fit else 0.85 * line_height(size) / slot
    places = [place for place, name in enumerate(shown) if name]
    if len(places) * least > len(names):
        places = [place for number, place in enumerate(places) if number % math.ceil(least) == 0]
    spots = [float(place) for place in places]
    for number in range(1, len(spots)):
        spots[number] = max(spots[number], spots[number - 1] + least)
    for number, place in enumerate(reversed(spots), start=1):
        spots[-number] = min(place, len(names) - 0.5 if number == 1 else spots[1 - number] - least)
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks(spots, [shown[place] for place in places])
    axis.set_tick_params(labelsize=size, rotation=90 if which == "x" and not fit else 0)


def round_steps(axis: Axis) -> None:
    """Let the ticks be 1, 2 or 5 apart, and not 2.5, which needs one more digit for every second tick."""
    from matplotlib.ticker import AutoLocator

    if type(locator := axis.get_major_locator()) is AutoLocator:
        locator.set_params(steps=[1, 2, 5, 10])


def short_number(value: float, _: object = None) -> str:
    """The label of a tick, such as 1.2M, 350k or 0.05. Powers of ten would need superscripts."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.4g}{letter}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def plain_numbers(axis: Axis) -> None:
    """Write large numbers along this axis in short form, and leave other numbers to matplotlib."""
    from matplotlib.ticker import FuncFormatter

    low, high = axis.get_view_interval()
    if max(abs(low), abs(high)) >= 10_000:
        axis.set_major_formatter(FuncFormatter(short_number))


def whole_numbers(axis: Axis) -> None:
    """Place the ticks of a linear axis only at integers."""
    from matplotlib.ticker import MaxNLocator

    locator = axis.get_major_locator()
    assert isinstance(locator, MaxNLocator)
    locator.set_params(integer=True)
