"""Common parts of figures: size, canvas and output file."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from rbtools.errors import RbError
from rbtools.plots import layout, style
from rbtools.registry import param

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.container import Container
    from matplotlib.figure import Figure
    from matplotlib.text import Text


Record = dict[str, Any]
ENDINGS = ("png", "svg", "pdf")
LEAST_WIDTH, MOST_WIDTH = 2.0, 40.0
# Without dates and versions, so that equal records give equal bytes.
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
    legend: Sequence[tuple[Artist | Container, str]] = ()
    below: str = ""
    left: str = ""


class WeighedScore(Protocol):
    """A composite score: `rbtools.scoring.composite.Composite`, and `weightings.Own`."""

    @property
    def terms(self) -> Sequence[WeightedTerm]: ...
    def weighed(self, weights: Sequence[float]) -> list[float | None]: ...


class WeightedTerm(Protocol):
    """A metric of a score and its weight."""

    @property
    def metric(self) -> str: ...
    @property
    def weight(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The options of every figure; a kind adds its own, and draws in `paint`."""

    endings: ClassVar[tuple[str, ...]] = ENDINGS
    detail: ClassVar[str] = ""  # what it shows of the details of evaluations

    width: float = param(
        6.5, "Width of the figure in inches; the column of a paper has some 3.3.", check="positive"
    )
    title: str | None = param(None, "Title of the figure.  [default: what it shows]")

    def __post_init__(self) -> None:
        if not LEAST_WIDTH <= self.width <= MOST_WIDTH:
            raise RbError(
                f"The width of a figure is {self.width:g} inches. Expected {LEAST_WIDTH:g} to {MOST_WIDTH:g}."
            )

    def draw(self, records: Iterable[Record]) -> Figure:
        """A matplotlib Figure of these records, on the Agg canvas.

        Raises RbError without records, or if they lack the data to draw.
        """
        held = list(records)
        if not held:
            raise RbError("There are no records to draw.")
        with style.applied():
            figure = blank(self.width)
            finish(figure, self.paint(figure, held), self.title)
        return figure

    def paint(self, figure: Figure, records: Sequence[Record]) -> Painted:
        """Paint the records onto the figure, whose width is set."""
        raise NotImplementedError


def blank(width: float) -> Figure:
    """An empty Figure of that width in inches, on the Agg canvas; inside `style.applied` only."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 3))
    FigureCanvasAgg(figure)
    return figure


def finish(figure: Figure, painted: Painted, title: str | None = None) -> None:
    """Put title and legend around what was painted, and set the height for all of it."""
    width = figure.get_figwidth()
    lines = layout.wrapped(painted.title if title is None else title, width - 0.3, style.TITLE)
    around = [figure.suptitle("\n".join(lines))] if lines else []
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
        middle = 1 - share * (1 - painted.height / height / 2)
        around.append(figure.supylabel("\n".join(left), y=middle, size=style.SIZE))
    # They get their own strip: matplotlib's own labels and legends outside the axes overlap.
    figure.set_layout_engine("constrained", rect=(0, 1 - share, 1, share))
    _settle(figure, around)
    layout.settle_names(figure)


def _settle(figure: Figure, around: Sequence[Text]) -> None:
    """Compute the layout once, with rounded positions, so that the same records make the same bytes.
    matplotlib's solver orders its constraints by memory address: the last digits of its solution differ from
    run to run.
    """
    from matplotlib.transforms import Bbox

    engine = figure.get_layout_engine()
    assert engine is not None  # `finish` sets a layout engine
    for _ in range(2):  # a second pass, because the first one changes ticks
        engine.execute(figure)
    figure.set_layout_engine("none")
    for axes in figure.axes:
        box = axes.get_position(original=True)
        axes.set_position(Bbox([[round(at, 4) for at in corner] for corner in box.get_points()]))
    for text in around:
        x, y = text.get_position()
        text.set_position((round(x, 4), round(y, 4)))


def encode(drawn: Figure | str, ending: str) -> bytes:
    """The bytes of a file: of a Figure as "png", "svg" or "pdf", of a text in UTF-8."""
    if isinstance(drawn, str):
        return drawn.encode()
    stream = io.BytesIO()
    with style.applied():
        drawn.savefig(stream, format=ending, metadata=_METADATA[ending])
    return stream.getvalue()
