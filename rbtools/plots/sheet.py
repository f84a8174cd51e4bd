"""A contact sheet: one image under corruptions, a row for each, a column for each severity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rbtools.plots import base, layout, style

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure


Images = Sequence["np.ndarray"]
_GAP, _BETWEEN, _LARGEST = 0.03, 0.15, 0.8  # inches between tiles, between blocks; the largest tile
_BLOCK = 3.0  # the width in inches for a block of names and tiles


@dataclass(frozen=True, kw_only=True)
class ContactSheet(base.Drawing):
    """The options of a contact sheet; the caller provides the images."""

    def of(
        self, caption: str, clean: np.ndarray, rows: Mapping[str, Images], severities: Sequence[int]
    ) -> Figure:
        """The Figure of an image, uint8 (H, W, C), and of its corrupted versions, one for each severity."""
        with style.applied():
            figure = base.blank(self.width)
            height = self._tiles(figure, clean, rows, severities)
            base.finish(figure, base.Painted(f"{caption}, by severity", height), self.title)
        return figure

    def _tiles(
        self, figure: Figure, clean: np.ndarray, rows: Mapping[str, Images], severities: Sequence[int]
    ) -> float:
        """Names and tiles in blocks side by side; in inches, downwards. Returns the height."""
        blocks = max(1, min(math.ceil(len(rows) / 3), int(self.width / _BLOCK)))
        down = math.ceil(len(rows) / blocks)
        wide = (self.width - 0.1 - _BETWEEN * (blocks - 1)) / blocks
        names = {name: name.replace("_", " ") for name in rows}
        left = min(0.4 * wide, layout.widest(list(names.values()), style.SMALL)) + 0.06
        tile = min(_LARGEST, (wide - left) / (len(severities) + 1) - _GAP)
        top = layout.line_height(style.SMALL)
        across, below = left + (len(severities) + 1) * (tile + _GAP), tile * len(clean) / len(clean[0])
        axes = figure.add_subplot()
        axes.set_axis_off()
        for block in range(blocks):
            start = block * (across + _BETWEEN)
            for column, head in enumerate(["clean", *map(str, severities)]):
                axes.text(
                    start + left + column * (tile + _GAP) + tile / 2,
                    0,
                    head,
                    ha="center",
                    va="top",
                    size=style.SMALL,
                )
        for number, (name, tiles) in enumerate(rows.items()):
            start, y = (number // down) * (across + _BETWEEN), top + (number % down) * (below + _GAP)
            text = layout.fitted(names[name], left - 0.06, style.SMALL)
            axes.text(start + left - 0.06, y + below / 2, text, ha="right", va="center", size=style.SMALL)
            for column, image in enumerate([clean, *tiles]):
                x = start + left + column * (tile + _GAP)
                shown = image.repeat(3, 2) if image.shape[2] == 1 else image
                axes.imshow(shown, extent=(x, x + tile, y + below, y), interpolation="nearest")
        total = top + down * (below + _GAP)
        axes.set_xlim(0, blocks * across + (blocks - 1) * _BETWEEN)
        axes.set_ylim(total, 0)
        return total + 0.05
