"""The base class of all figures, and the conversion of a figure to the bytes of a file."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.errors import RbError
from rbtools.plots import renderer, style, words
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Record = dict[str, Any]
ENDINGS = ("png", "svg", "pdf")
LEAST_WIDTH, MOST_WIDTH = 2.0, 40.0
# Without dates and versions, so that equal records give equal bytes.
_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The options of every figure. Each plot adds its own options, and `spec` describes its figure."""

    endings: ClassVar[tuple[str, ...]] = ENDINGS
    detail: ClassVar[str] = ""  # the part of the details of evaluations that the figure shows

    width: float = param(
        6.5, "Width of the figure in inches; a column of a paper is about 3.3 inches wide.", check="positive"
    )
    title: str = param("", "Title of the figure.")
    xlim: str = param("", "Limits of the horizontal axis, such as 0:16.", metavar="LOW:HIGH")
    ylim: str = param("", "Limits of the (left) vertical axis, such as 0:1.", metavar="LOW:HIGH")
    font_size: float = param(
        style.SIZE,
        "Font size of labels in points; numbers and legends are 1 point smaller.",
        bounds="[4, 30]",
    )
    label: tuple[str, ...] = param(
        (),
        "Show WORDS instead of the name of a metric, a family of metrics, a method, a data set or a model"
        " (its checkpoint, or its name in the figure). Example: pgd20.8=PGD. The option can be repeated.",
        metavar="NAME=WORDS",
    )

    def __post_init__(self) -> None:
        if not LEAST_WIDTH <= self.width <= MOST_WIDTH:
            raise RbError(
                f"The width of a figure is {self.width:g} inches. Expected {LEAST_WIDTH:g} to {MOST_WIDTH:g}."
            )

    def draw(self, records: Iterable[Record]) -> Figure:
        """Draw the records as a matplotlib Figure on the Agg canvas. Its label, which is not drawn, is the
        number of records. Raises RbError if there are no records, or if they lack the data to draw."""
        held = list(records)
        if not held:
            raise RbError("There are no records to draw.")
        with style.applied(self.font_size), words.own(self.label):
            drawn = self.rendered(self.spec(held))
        drawn.set_label(str(len(held)))
        return drawn

    def rendered(self, spec: renderer.FigureSpec) -> Figure:
        limits = {name: _limits(f"--{name}lim", getattr(self, f"{name}lim")) for name in ("x", "y")}
        chosen = {name: ends for name, ends in limits.items() if ends is not None}
        return renderer.render(spec, self.width, self.title, chosen)

    def spec(self, records: Sequence[Record]) -> renderer.FigureSpec:
        raise NotImplementedError


def _limits(option: str, text: str) -> tuple[float, float] | None:
    if not text:
        return None
    try:
        low, high = map(float, text.split(":"))
    except ValueError:
        low, high = 0.0, 0.0
    if not -math.inf < low < high < math.inf:
        raise RbError(f"{option} is '{text}'. Expected two numbers, the lower one first, such as 0:1.")
    return low, high


def encode(drawn: Figure | str, ending: str) -> bytes:
    """Encode a Figure as "png", "svg" or "pdf", or a string in UTF-8."""
    if isinstance(drawn, str):
        return drawn.encode()
    stream = io.BytesIO()
    with style.applied():
        drawn.savefig(stream, format=ending, metadata=_METADATA[ending])
    return stream.getvalue()
