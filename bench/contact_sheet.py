"""Every kind of figure at the width of a paper's column and of its page, on a light and on a dark page.

    python -m bench.contact_sheet FOLDER

Writes FOLDER/sheet-WIDTH-PAGE.png, whose figures show made records. What a figure says on standard error is
printed before its name.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rbtools.plots import PLOTS, base
from rbtools.plots.sheet import ContactSheet
from rbtools.spaces import nasbench201
from tests.plots.conftest import record
from tests.plots.test_paper_plots import searched

WIDTHS = {3.3: 4, 6.9: 2}  # inches, and the figures beside each other
PAGES = {"light": "#FFFFFF", "dark": "#1E1E1E"}
GAP = 40  # pixels

EIGHT = [
    {
        **record(number),
        "arch": nasbench201.arch((5071, 5590)[number // 4]),
        "train": {**record(number)["train"], "method": ("erm", "pgd", "trades", "mart")[number % 4]},
    }
    for number in range(8)
]
# Own checkpoints: one network, and no training that would tell them apart.
OWN = [
    {**one, "arch": {"name": "mycnn:MyCNN"}, "train": None, "checkpoint_file": f"runs/{name}.pth"}
    for name, one in zip(("adv", "normal", "augmented"), EIGHT, strict=False)
]
CROWD = [record(number) for number in range(40)]
SEARCHES = [searched(name) for name in ("random", "local", "evolution")]
for place, one in enumerate(SEARCHES, start=1):
    mean = np.linspace(0, 1, 30) ** (1 / place) * 0.3 + 0.1
    one["search"]["trajectory"] = {"mean": [*mean], "low": [*(mean - 0.02)], "high": [*(mean + 0.02)]}
ASKED: list[tuple[str, list[dict[str, Any]], dict[str, Any]]] = [
    ("curves", EIGHT, {"over": "eps", "metric": "pgd20.*"}),
    ("curves", OWN, {"over": "eps", "metric": "pgd20.*"}),
    ("curves", CROWD, {"over": "eps"}),
    ("curves", EIGHT[:2], {"over": "epoch", "metric": "loss", "right": "acc"}),
    ("scatter", EIGHT, {"y": "pgd20.8", "colour": "train.method", "pareto": True}),
    ("scatter", OWN, {"y": "pgd20.8"}),
    ("scatter", CROWD, {"x": "params", "y": "acc", "log_x": True, "colour": "pgd20.8"}),
    ("box", CROWD, {"metric": "acc,pgd20.*"}),
    ("box", CROWD, {}),
    ("hist", CROWD, {"metric": "acc,pgd20.8"}),
    ("ranks", EIGHT, {"metric": "acc,pgd20.4,pgd20.8"}),
    ("ranks", EIGHT, {"metric": "acc,pgd20.4,pgd20.8", "view": "changes"}),
    ("heatmap", CROWD, {"metric": "acc,pgd20.*,corrupt.fog.*,ge.*"}),
    ("heatmap", CROWD, {"metric": "acc,pgd20.*,corrupt.fog.*"}),
    ("heatmap", CROWD, {}),
    ("heatmap", EIGHT[:2], {"view": "values"}),
    ("heatmap", CROWD, {"view": "values", "metric": "pgd20.*,fgsm.*"}),
    ("bars", EIGHT, {"metric": "pgd20.8"}),
    ("bars", EIGHT[:4], {"metric": "corrupt.*.3,acc"}),
    ("scatter", EIGHT, {"y": "pgd20.8", "xlim": "0.5:1", "ylim": "0:1", "font_size": 10.0}),
    ("bars", EIGHT, {"metric": "acc,pgd20.8,ge.*", "weightings": ("equal", "robust=pgd20.8=5")}),
    ("confidence", EIGHT, {"metric": "pgd20.*"}),
    ("confidence", EIGHT, {"view": "prediction", "metric": "pgd20.*"}),
    ("confidence", EIGHT, {"view": "class", "metric": "pgd20.8"}),
    ("confusion", EIGHT, {"metric": "pgd20.8"}),
    ("confusion", EIGHT, {"metric": "pgd20.4,pgd20.8"}),
    ("cells", EIGHT, {"top": 1}),
    ("cells", CROWD, {"view": "operations"}),
    ("search", SEARCHES, {}),
]


def main(folder: Path) -> None:
    for width, beside in WIDTHS.items():
        drawn = []
        for kind, records, options in ASKED:
            drawn.append(PLOTS.build(kind, width=width, **options).draw(records))
            print(width, len(drawn), kind, options)
        drawn.append(ContactSheet(output="", width=width).of(_photograph(0), _rows(), (1, 3, 5)))
        pictures = [Image.open(io.BytesIO(base.encode(one, "png"))).convert("RGB") for one in drawn]
        for page, colour in PAGES.items():
            _page(pictures, beside, colour).save(folder / f"sheet-{width}-{page}.png")


def _photograph(severity: int) -> np.ndarray:
    steps = np.linspace(0, 255 - 40 * severity, 32)
    return np.stack([*np.meshgrid(steps, steps), np.full((32, 32), 128.0)], -1).astype(np.uint8)


def _rows() -> dict[str, list[np.ndarray]]:
    return {name: [_photograph(level) for level in (1, 3, 5)] for name in ("fog", "contrast", "pixelate")}


def _page(pictures: list[Image.Image], beside: int, colour: str) -> Image.Image:
    """The pictures in columns, each below the shortest column so far."""
    wide = max(picture.width for picture in pictures) + GAP
    heights = [GAP] * beside
    places = []
    for picture in pictures:
        column = heights.index(min(heights))
        places.append((GAP + column * wide, heights[column]))
        heights[column] += picture.height + GAP
    page = Image.new("RGB", (GAP + beside * wide, max(heights)), colour)
    for picture, place in zip(pictures, places, strict=True):
        page.paste(picture, place)
    return page


if __name__ == "__main__":
    main(Path(sys.argv[1]))
