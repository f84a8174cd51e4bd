"""Plots of images: one image under corruptions, and saved adversarial images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rbtools.commands.corrupt import severity_param
from rbtools.plots import base, renderer, style, words
from rbtools.plots.output_file import output_param
from rbtools.registry import param

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Images = Sequence["np.ndarray"]
_LARGEST, _BLOCK = 1.4, 3.0  # inches: the largest tile; the width of a block of names and tiles
_HALF = 0.48  # half a tile, as a share of its place


@dataclass(frozen=True, kw_only=True)
class ContactSheet(base.Drawing):
    """The options of a figure of corrupted images. The caller provides the images."""

    names: str = param("all", "", metavar="[NAME,...]", positional=True)
    output: str = output_param()
    severity: str = severity_param()

    def of(self, clean: np.ndarray, rows: Mapping[str, Images], severities: Sequence[int]) -> Figure:
        """Draw an image, uint8 (H, W, C), and one corrupted version of it for each severity."""
        with words.own(self.label):
            rows = {words.label(name).replace("_", " "): tiles for name, tiles in rows.items()}
        blocks = max(1, min(math.ceil(len(rows) / 3), int(self.width / _BLOCK)))
        down = math.ceil(len(rows) / blocks)
        heads = ["clean", *map(str, severities)]
        panels = []
        for start in range(0, len(rows), down):
            block = dict(list(rows.items())[start : start + down])
            draw = partial(_tiles, rows=[[clean, *tiles] for tiles in block.values()], down=down)
            panels.append(renderer.Panel(draw, x="severity", columns=heads, rows=[*block]))

        def height(width: float) -> float:
            return down * min(_LARGEST, width / len(heads)) * len(clean) / len(clean[0])

        with style.applied(self.font_size):
            return self.rendered(
                renderer.FigureSpec(panels, height, least=(self.width - 1) / blocks, alike=False)
            )


@dataclass(frozen=True, kw_only=True)
class AdversarialSheet(base.Drawing):
    """The options of a figure of adversarial images. The caller provides the images."""

    saved: tuple[str, ...] = param((), "", metavar="FILE...", positional=True)
    output: str = output_param()
    images: int = param(6, "Number of images.", bounds="[1, 256]", metavar="N")

    def of(self, ids: Sequence[int], rows: Mapping[str, Images]) -> Figure:
        """Draw one row of images, uint8 (H, W, C), for each name, with the numbers of the images on top."""
        with words.own(self.label):
            names = [words.label(name) for name in rows]
        tile = next(iter(rows.values()))[0]
        draw = partial(_tiles, rows=[*rows.values()], down=len(rows))
        panel = renderer.Panel(draw, x="image", columns=[*map(str, ids)], rows=names)

        def height(width: float) -> float:
            return len(rows) * min(_LARGEST, width / len(ids)) * len(tile) / len(tile[0])

        with style.applied(self.font_size):
            return self.rendered(renderer.FigureSpec([panel], height, least=self.width - 1, alike=False))


def _tiles(axes: Axes, rows: Sequence[Images], down: int) -> None:
    for row, images in enumerate(rows):
        for column, image in enumerate(images):
            shown = image.repeat(3, 2) if image.shape[2] == 1 else image
            at = (column - _HALF, column + _HALF, row + _HALF, row - _HALF)
            axes.imshow(shown, extent=at, interpolation="nearest")
    axes.set(xlim=(-0.5, len(rows[0]) - 0.5), ylim=(down - 0.5, -0.5), frame_on=False, aspect="equal")
    axes.grid(visible=False)
    axes.tick_params(length=0)
