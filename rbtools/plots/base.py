"""What figures share: their size, the canvas they are painted on, and the file they become."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from rbtools.errors import RbError
from rbtools.plots import label_placement, layout, style
from rbtools.registry import param

Record = dict[str, Any]
ENDINGS = ("png", "svg", "pdf")
LEAST_WIDTH, MOST_WIDTH = 2.0, 40.0
# No dates and no versions: the same records make the same bytes.
_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
}


class Painted(NamedTuple):
    """The result of `paint`: the title, the height in inches, and what the frame shows around it.

    `below` and `left` label axes that several panels share. The height is without title, legend and `below`.
    """

    title: str
    height: float
    legend: Sequence[tuple[Any, str]] = ()
    below: str = ""
    left: str = ""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The options of every figure; a kind adds its own, and draws in `paint`."""

    endings: ClassVar[tuple[str, ...]] = ENDINGS

    width: float = param(
        6.5, "Width of the figure in inches; the column of a paper has some 3.3.", check="positive"
    )
    title: str | None = param(None, "What stands above the figure.  [default: what it shows]")

    def __post_init__(self) -> None:
        if not LEAST_WIDTH <= self.width <= MOST_WIDTH:
            raise RbError(
                f"The width of a figure is {self.width:g} inches. Expected {LEAST_WIDTH:g} to {MOST_WIDTH:g}."
            )

    def draw(self, records: Iterable[Record], scoring: Any) -> Any:
        """A matplotlib Figure of these records, on the Agg canvas.

        Raises RbError where there are no records, or they lack what is to be drawn.
        """
        held = list(records)
        if not held:
            raise RbError("There are no records to draw.")
        with style.applied():
            figure = blank(self.width)
            painted = self.paint(figure, held, scoring)
            finish(figure, painted, self.title)
        return figure

    def paint(self, figure: Any, records: Sequence[Record], scoring: Any) -> Painted:
        """Paint the records onto the figure, whose width is set."""
        raise NotImplementedError


def blank(width: float) -> Any:
    """An empty Figure, so many inches wide, on the Agg canvas; inside `style.applied` only."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 3))
    FigureCanvasAgg(figure)
    return figure


def finish(figure: Any, painted: Painted, title: str | None = None) -> None:
    """Put title and legend around what was painted, and set the height for all of it."""
    width = figure.get_figwidth()
    lines = layout.wrapped(painted.title if title is None else title, width - 0.3, style.TITLE)
    if lines:
        figure.suptitle("\n".join(lines))
    height = painted.height + len(lines) * layout.line_height(style.TITLE) + 0.05
    strip = layout.legend(figure, painted.legend)
    below = layout.wrapped(painted.below, width - 0.3, style.SIZE)
    total = height + strip + len(below) * layout.line_height(style.SIZE)
    share = height / total
    figure.set_figheight(total)
    if below:
        figure.text(0.5, (strip + 0.02) / total, "\n".join(below), ha="center", va="bottom", size=style.SIZE)
    if painted.left:
        left = layout.wrapped(painted.left, painted.height, style.SIZE)
        figure.supylabel("\n".join(left), y=1 - share * (1 - painted.height / height / 2), size=style.SIZE)
    # They have their strip to themselves: matplotlib's own labels and legends outside cover each other.
    figure.get_layout_engine().set(rect=(0, 1 - share, 1, share))
    _settle(figure)
    label_placement.settle(figure)


def _settle(figure: Any) -> None:
    """Lay everything out, once, at places rounded so that the same records make the same bytes.

    matplotlib's solver takes its constraints in the order of their addresses: the last digits of what it
    finds differ from run to run.
    """
    from matplotlib.transforms import Bbox

    for _ in range(2):  # ticks that the first pass changes are in their places after the second
        figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        box = axes.get_position(original=True)
        axes.set_position(Bbox([[round(at, 4) for at in corner] for corner in box.get_points()]))
    for text in (figure._suptitle, figure._supylabel):
        if text is not None:
            text.set_position([round(at, 4) for at in text.get_position()])


def encode(drawn: Any, ending: str) -> bytes:
    """The bytes of a file: of a Figure as "png", "svg" or "pdf", of a text in UTF-8."""
    if isinstance(drawn, str):
        return drawn.encode()
    stream = io.BytesIO()
    with style.applied():
        drawn.savefig(stream, format=ending, metadata=_METADATA[ending])
    return stream.getvalue()
