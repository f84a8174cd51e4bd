"""The style of all figures, with colours that colour-blind readers can distinguish."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

# Okabe and Ito, "Color universal design" (2008), without yellow, which is too light for lines on white. Wine,
# olive, indigo and brown from Tol's "muted" and Brewer's BrBG are added to distinguish twelve methods.
BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, ORANGE, BLACK, GREY, PALE = "#56B4E9", "#E69F00", "#000000", "#767676", "#C4C4C4"
WINE, OLIVE, INDIGO, BROWN = "#882255", "#999933", "#332288", "#8C510A"
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, WINE, BLACK, OLIVE, INDIGO, BROWN)
Dashes = str | tuple[int, tuple[float, ...]]  # a matplotlib line style
DASHES: tuple[Dashes, ...] = ("-", (0, (3.5, 1.5)), (0, (1.2, 1.2)), (0, (4, 1.3, 1.2, 1.3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


class MethodLook(NamedTuple):
    """The style of a training method in every figure."""

    words: str
    color: str
    linestyle: Dashes
    marker: str


# Lines are solid for adversarial training, dashed for noise, dotted for neither, else dash-dotted.
METHODS: dict[str, MethodLook] = {
    "erm": MethodLook("ERM", GREY, DASHES[2], "<"),
    "erm-dataaug": MethodLook("ERM + augmentation", BLACK, DASHES[2], ">"),
    "sam": MethodLook("SAM", INDIGO, DASHES[2], "P"),
    "corruption": MethodLook("Corr_U", GREEN, DASHES[1], "^"),
    "corruption gaussian": MethodLook("Corr_G", OLIVE, DASHES[1], "X"),
    "corruption laplace": MethodLook("Corr_L", BROWN, DASHES[1], "P"),
    "cvar": MethodLook("CVaR", PURPLE, DASHES[1], "v"),
    "evar": MethodLook("EVaR", INDIGO, DASHES[1], "D"),
    "at-pr": MethodLook("AT-PR", BLACK, "-", "*"),
    "pgd": MethodLook("PGD", BLUE, "-", "o"),
    "trades": MethodLook("TRADES", VERMILLION, "-", "s"),
    "mart": MethodLook("MART", WINE, "-", "D"),
    "alp": MethodLook("ALP", ORANGE, "-", "P"),
    "clp": MethodLook("CLP", INDIGO, "-", "X"),
    "kl-pgd": MethodLook("KL-PGD", SKY, "-", "v"),
    "mixed": MethodLook("mixed", BLUE, DASHES[3], "^"),
    "n-fgsm": MethodLook("N-FGSM", SKY, DASHES[3], "P"),
    "fgsm-pgi": MethodLook("FGSM-PGI", VERMILLION, DASHES[3], "X"),
}
_LOOKS = {**{look.words: look for look in METHODS.values()}, **METHODS}

SIZE = 8.0  # the usual font size of labels, in points
_SIZE: ContextVar[float] = ContextVar("_SIZE", default=SIZE)


def size() -> float:  # of labels
    return _SIZE.get()


def small() -> float:  # of ticks and legends
    return max(_SIZE.get() - 1, 3.5)


def title() -> float:
    return _SIZE.get() + 1


_SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # a font of matplotlib, so it is the same everywhere
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
    "legend.handlelength": 3.2,
    "figure.constrained_layout.use": True,
    "text.hinting": "no_hinting",  # hinted text is up to 7 % wider in one resolution than in another
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "svg.hashsalt": "rbtools",  # this gives the same identifiers in every run
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}


@contextlib.contextmanager
def applied(points: float = SIZE) -> Iterator[None]:
    """In the block, figures are drawn and written in this style, without the user's settings. `points` is the
    font size of labels."""
    from matplotlib import style

    token = _SIZE.set(points)
    sizes = dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), points)
    sizes |= dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), small())
    settings = {**_SETTINGS, **sizes, "figure.titlesize": title()}
    with warnings.catch_warnings(), style.context(["default", settings], after_reset=True):
        # Characters that the font lacks are shown as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        try:
            yield
        finally:
            _SIZE.reset(token)


def line(number: int) -> dict[str, Any]:
    """Colour and dashes of line `number`. Consecutive lines differ in both, and there are 44 combinations."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[(number % len(COLOURS) + number // len(COLOURS)) % len(DASHES)],
    }


def look(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour, dashes and marker of each name. A training method (or its words) has the same style in all
    figures. Other names have colours that no training method in `names` has."""
    taken = {_LOOKS[name].color for name in names if name in _LOOKS}
    free = [number for number, colour in enumerate(COLOURS) if colour not in taken] or [*range(len(COLOURS))]
    looks: dict[str, dict[str, Any]] = {}
    others = 0
    for name in dict.fromkeys(names):
        if name in _LOOKS:
            looks[name] = dict(zip(("color", "linestyle", "marker"), _LOOKS[name][1:], strict=True))
            continue
        number = free[others % len(free)] + len(COLOURS) * (others // len(free))
        looks[name] = {**line(number), "marker": MARKERS[others % len(MARKERS)]}
        others += 1
    return looks


def looks(parts: Sequence[tuple[str | None, ...]]) -> list[dict[str, Any]]:
    """Colour, dashes and marker of lines whose names differ in these parts. The training method (or else the
    last part) determines the colour, the other parts determine the dashes, and the number of the line
    determines its marker. If there are too few colours or dash patterns, or all lines would have one colour,
    the number determines all three."""
    places = range(min(map(len, parts), default=0))
    at = next((place for place in places if any(part[place] in METHODS for part in parts)), -1)
    tails = [str(*part[at:][:1]) for part in parts]
    met = Counter[Any]()
    heads = []
    for part in parts:
        met[part] += 1
        heads.append((part[:at] + part[at:][1:], met[part]))
    kinds = list(dict.fromkeys(heads))
    marked = [{"marker": MARKERS[number % len(MARKERS)]} for number in range(len(parts))]
    one_colour = len(parts) > 1 and len(set(tails)) == 1
    if one_colour or len(kinds) > len(DASHES) or len(set(tails)) > 2 * len(COLOURS):
        return [{**line(number), **marker} for number, marker in enumerate(marked)]
    own = look(tails)
    if len(kinds) == 1:
        return [own[tail] for tail in tails]
    return [
        {**own[tail], "linestyle": DASHES[kinds.index(head)], **marker}
        for tail, head, marker in zip(tails, heads, marked, strict=True)
    ]
