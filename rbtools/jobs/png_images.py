"""Adversarial images of 8 bits as PNGs, in a folder for each result, with its claim in claim.json."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rbtools.attacks import lattice
from rbtools.errors import RbError, shown
from rbtools.lazy import np, torch
from rbtools.plain_files import opened
from rbtools.trainer.augment import pixels

if TYPE_CHECKING:
    from torch import Tensor

CLAIM = "claim.json"
_MODES = {1: "L", 3: "RGB"}  # of a PNG, by its channels


def write(folder: Path, ids: Tensor, images: Tensor) -> None:
    """Write images (n, C, H, W) of 8 bits, of 1 or 3 channels, by the examples' numbers."""
    from PIL import Image

    arrays = lattice.levels(images).byte().permute(0, 2, 3, 1).numpy()
    for number, array in zip(ids.tolist(), arrays, strict=True):
        Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array).save(folder / f"{number}.png")


def read(folder: str, ids: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The images (n, C, H, W) of these examples, on [0, 1]. Raises RbError for one that is no PNG of this
    shape (C, H, W)."""
    from PIL import Image

    arrays = []
    for number in ids.tolist():
        path = os.path.join(folder, f"{number}.png")
        try:
            with opened(path) as stream, Image.open(stream, formats=["PNG"]) as image:
                form = (image.mode, image.height, image.width)
                if form != (_MODES.get(shape[0]), *shape[1:]):  # before memory is allocated for its pixels
                    raise RbError(f"{path} is {form[0]} of {form[1]}x{form[2]} pixels. Expected {shape}.")
                arrays.append(np.asarray(image).reshape(*shape[1:], shape[0]))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise RbError(
                f"{path} is damaged: {shown(str(error), 100)}. Write it again with rb-attack --save-adv."
            ) from None
    return pixels(torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2))


def results(path: str) -> list[str]:
    """The path itself or, of a folder of such, each folder of PNGs in it."""
    if not os.path.isdir(path) or os.path.exists(os.path.join(path, CLAIM)):
        return [path]
    folders = [os.path.join(path, name) for name in sorted(os.listdir(path))]
    return [one for one in folders if os.path.exists(os.path.join(one, CLAIM))] or [path]
