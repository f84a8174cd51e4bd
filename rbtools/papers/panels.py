"""A figure of a paper with several panels: finished figures beside and below one another, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.artist import Artist
from matplotlib.transforms import Bbox

from rbtools.plots import base, style

if TYPE_CHECKING:
    from matplotlib.backend_bases import RendererBase
    from matplotlib.figure import Figure

GAP = 0.15  # inches between rows


class FigurePanel(Artist):
    """A finished figure whose lower left corner lies at x, y (inches) of another.

    matplotlib cannot move axes between figures; but all positions in a figure follow from its box in inches.
    """

    def __init__(self, panel: Figure, x: float, y: float) -> None:
        super().__init__()
        self.panel = panel
        panel.bbox_inches.set(Bbox.from_bounds(x, y, *panel.get_size_inches()))

    def draw(self, renderer: RendererBase) -> None:
        """Draw the panel with the renderer of the whole."""
        assert self.figure is not None
        self.panel.set_dpi(self.figure.dpi)
        self.panel.draw(renderer)


def joined(panels: Sequence[tuple[str, Figure]], columns: int, width: float) -> Figure:
    """One figure of all, row by row, a letter at the upper left corner of each.

    panels: a letter and a figure each, of width / columns inches; width: of the whole, in inches.
    """
    rows = [panels[at : at + columns] for at in range(0, len(panels), columns)]
    heights = [max(figure.get_figheight() for _, figure in row) for row in rows]
    with style.applied():
        whole = base.blank(width)
        total = sum(heights) + GAP * (len(rows) - 1)
        whole.set_figheight(total)
        top = total
        for row, height in zip(rows, heights, strict=True):
            for place, (letter, figure) in enumerate(row):
                x = place * width / columns
                whole.add_artist(FigurePanel(figure, x, top - figure.get_figheight()))
                whole.text(
                    (x + 0.03) / width, top / total, f"({letter})", va="top", weight="bold", size=style.SIZE
                )
            top -= height + GAP
    return whole
