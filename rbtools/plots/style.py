"""The style of all figures, which ignores the user's matplotlibrc; colours are safe for the colour-blind."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

# Okabe and Ito, "Color universal design" (2008), the dark ones first; yellow is too light for lines on white.
BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, ORANGE, BLACK, YELLOW = "#56B4E9", "#E69F00", "#000000", "#F0E442"
GREY, PALE = "#767676", "#D9D9D9"
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
Dashes = str | tuple[int, tuple[float, ...]]  # a matplotlib line style
DASHES: tuple[Dashes, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

# Colour, dashes and marker of each training method, the same in every figure: adversarial training is solid,
# noise is dashed, training without either is dotted, other training dash-dotted.
_DASHED, _DOTTED = DASHES[1], DASHES[2]
METHODS: dict[str, tuple[str, Dashes, str]] = {
    "erm": (GREY, _DOTTED, "o"),
    "erm-dataaug": (BLACK, _DOTTED, "s"),
    "corruption": (GREEN, _DASHED, "^"),
    "cvar": (PURPLE, _DASHED, "v"),
    "evar": (ORANGE, _DASHED, "D"),
    "at-pr": (BLACK, "-", "*"),
    "pgd": (BLUE, "-", "o"),
    "trades": (VERMILLION, "-", "s"),
    "mart": (GREEN, "-", "D"),
    "alp": (PURPLE, "-", "P"),
    "clp": (ORANGE, "-", "X"),
    "kl-pgd": (SKY, "-", "v"),
    "mixed": (BLUE, DASHES[3], "^"),
    "n-fgsm": (SKY, DASHES[3], "P"),
    "fgsm-pgi": (VERMILLION, DASHES[3], "X"),
}

# Font sizes in points: labels, ticks and legends, titles.
SIZE, SMALL, TITLE = 8.0, 7.0, 9.0
_SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # a font of matplotlib, so it is the same everywhere
    "font.size": SIZE,
    "axes.titlesize": SIZE,
    "axes.labelsize": SIZE,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "figure.titlesize": TITLE,
    "text.parse_math": False,  # a $ in a name must not begin a formula
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "axes.linewidth": 0.7,
    "axes.formatter.useoffset": False,
    "axes.unicode_minus": True,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.07,  # inches; text is drawn up to a pixel wider than measured
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "svg.hashsalt": "rbtools",  # this gives the same identifiers in every run
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
}


@contextlib.contextmanager
def applied() -> Iterator[None]:
    """matplotlib with this style only, without the user's settings; needed for drawing and writing."""
    from matplotlib import style

    with warnings.catch_warnings(), style.context(["default", _SETTINGS], after_reset=True):
        # A name in a script that the font lacks is shown as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        yield


def line(number: int) -> dict[str, Any]:
    """Colour and dashes of the n-th line: different in both from its neighbours, 28 of them in all."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[(number % len(COLOURS) + number // len(COLOURS)) % len(DASHES)],
    }


def look(names: Sequence[str]) -> list[dict[str, Any]]:
    """Colour, marker and dashes of named lines or points: the methods' own if all are methods, else by
    position."""
    if set(names) <= METHODS.keys():
        return [dict(zip(("color", "linestyle", "marker"), METHODS[name], strict=True)) for name in names]
    return [{**line(number), "marker": MARKERS[number % len(MARKERS)]} for number in range(len(names))]


def marker(name: str, number: int) -> str:
    """The marker of a training method, the same in every figure, else by position."""
    return METHODS[name][2] if name in METHODS else MARKERS[number % len(MARKERS)]


def looks(parts: Sequence[tuple[str | None, ...]]) -> list[dict[str, Any]]:
    """Colour and dashes of lines that differ in these parts: a method has its own colour everywhere, else the
    last part decides the colour, and the others the dashes. If there are not enough of either, or only one
    part differs, simply by position.
    """
    places = range(min(map(len, parts), default=0))
    of_method = next((p for p in places if {part[p] for part in parts} <= METHODS.keys()), None)
    at = -1 if of_method is None else of_method
    tails = list(dict.fromkeys(part[at] for part in parts if part))
    heads = list(dict.fromkeys(part[:at] + part[at:][1:] for part in parts))
    colours = dict(zip(tails, COLOURS, strict=False))
    if of_method is not None:
        colours = {name: METHODS[str(name)][0] for name in tails}
        if len(heads) == 1 and len(tails) == len(parts):
            return [dict(zip(("color", "linestyle"), METHODS[str(part[at])], strict=False)) for part in parts]
    enough = len(set(colours.values())) == len(tails) and 1 < len(heads) <= len(DASHES)
    if len(set(parts)) < len(parts) or not enough:
        return [line(number) for number in range(len(parts))]
    return [
        {"color": colours[part[at]], "linestyle": DASHES[heads.index(part[:at] + part[at:][1:])]}
        for part in parts
    ]
