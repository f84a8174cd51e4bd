"""The base class of all figures, and the bytes of a figure's file."""

from __future__ import annotations

import io
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
    """The options of every figure. A kind of figure adds its own options, and `spec` describes the figure."""

    endings: ClassVar[tuple[str, ...]] = ENDINGS
    detail: ClassVar[str] = ""  # the part of the details of evaluations that the figure shows

    width: float = param(
        6.5, "Width of the figure in inches; a column of a paper is about 3.3 inches wide.", check="positive"
    )
    title: str = param("", "Title of the figure.")
    label: tuple[str, ...] = param(
        (),
        "Show WORDS instead of the name of a metric, a family of metrics, a method, a data set or a model: of"
        " its checkpoint, or as the figure names it. pgd20.8=PGD. The option can be repeated.",
        metavar="NAME=WORDS",
    )

    def __post_init__(self) -> None:
        if not LEAST_WIDTH <= self.width <= MOST_WIDTH:
            raise RbError(
                f"The width of a figure is {self.width:g} inches. Expected {LEAST_WIDTH:g} to {MOST_WIDTH:g}."
            )

    def draw(self, records: Iterable[Record]) -> Figure:
        """A matplotlib Figure of these records, on the Agg canvas. Its label, which is not drawn, is the
        number of records. Raises RbError if there are no records, or if they lack the data to draw."""
        held = list(records)
        if not held:
            raise RbError("There are no records to draw.")
        with style.applied(), words.own(self.label):
            drawn = renderer.render(self.spec(held), self.width, self.title)
        drawn.set_label(str(len(held)))
        return drawn

    def spec(self, records: Sequence[Record]) -> renderer.FigureSpec:
        raise NotImplementedError


def encode(drawn: Figure | str, ending: str) -> bytes:
    """The bytes of a file, which is a Figure as "png", "svg" or "pdf", or a text in UTF-8."""
    if isinstance(drawn, str):
        return drawn.encode()
    stream = io.BytesIO()
    with style.applied():
        drawn.savefig(stream, format=ending, metadata=_METADATA[ending])
    return stream.getvalue()
