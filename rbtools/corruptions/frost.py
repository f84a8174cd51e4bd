"""Frost: the image is blended with pictures of ice crystals."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rbtools.corruptions import imaging
from rbtools.corruptions.base import Corruption, by_archive
from rbtools.errors import RbError
from rbtools.lazy import Tensor, np, torch
from rbtools.registry import param
from rbtools.rng.draws import Draws

PACKAGE = "imagecorruptions"  # the package with the photographs of frost
USED = 5  # the package has six photographs, but the reference uses the first five
CIFAR_SCALE, CIFAR_SIDE = 5, 32  # every fifth pixel of a photograph, on images of 32 pixels
GENERATED = (350, 525)  # height and width
# Mean and deviation of the five photographs, red, green and blue, in grey levels.
TINTS = (
    ((78, 149, 166), (27, 16, 15)),
    ((201, 205, 215), (21, 22, 23)),
    ((201, 205, 215), (21, 22, 23)),
    ((138, 153, 166), (29, 29, 30)),
    ((112, 123, 135), (44, 43, 42)),
)


@dataclass(frozen=True, kw_only=True)
class Frost(Corruption):
    """The result is c * x + d * (a random crop of a picture of frost). The constants are (c, d).

    The pictures are the photographs in the package imagecorruptions if it is installed. If the package is not
    installed, pictures with similar colours are generated. Results name the kind of pictures that were used.
    With the constants of CIFAR-10-C, the pictures are reduced to a fifth for images of 32 pixels, and less
    for larger images. With the constants of ImageNet-C, the pictures keep their size.
    """

    name = "frost"
    random = True
    severities = by_archive(
        cifar=((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        imagenet=((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    )

    textures: str = param(
        "auto",
        "Pictures of frost: the photographs in the package imagecorruptions, or generated pictures. "
        "By default (auto), photographs are used if they are installed.",
        choices=("auto", "imagecorruptions", "generated"),
    )

    def resolved(self) -> Frost:
        if self.textures != "auto":
            return self
        return replace(self, textures=PACKAGE if _files() else "generated")

    def prepared(self) -> Callable[[Tensor, tuple[float, float], Draws], Tensor]:
        if self.resolved().textures != PACKAGE:
            return partial(self._frosted, generated())
        if not _files():
            raise RbError(
                f"The photographs of frost are in the package {PACKAGE}, which is not installed. Use"
                f" --textures generated, or run pip install --no-deps {PACKAGE}."
            )
        return partial(self._frosted, _photographs()[:USED])

    def _frosted(
        self, photographs: Sequence[Tensor], levels: Tensor, constant: tuple[float, float], draws: Draws
    ) -> Tensor:
        weight, added = constant
        size = (levels.shape[2], levels.shape[3])
        reduced = self.constants_for(size) == "cifar"
        crops = cropped(_stock(tuple(photographs), size, reduced, str(levels.device)), size, draws)
        if levels.shape[1] != 3:
            crops = imaging.grey(crops)
        return levels.double().mul_(weight).add_(crops, alpha=added)


def _files() -> list[Path]:
    """The files of the photographs, found without importing the large package imagecorruptions."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    return sorted(file for folder in folders or () for file in Path(folder, "frost").glob("frost*"))


@functools.lru_cache(maxsize=1)
def _photographs() -> tuple[Tensor, ...]:
    from PIL import Image

    arrays = [np.array(Image.open(file).convert("RGB")) for file in _files()]
    return tuple(torch.from_numpy(array).permute(2, 0, 1) for array in arrays)


def fitted(picture: Tensor, size: tuple[int, int], reduced: bool) -> Tensor:
    """Scale a uint8 picture (3, H, W) for crops of this (height, width). The picture is reduced by selecting
    single pixels, as OpenCV does for a fifth, and enlarged only if it is too small for a crop."""
    step = CIFAR_SCALE * min(CIFAR_SIDE / max(size), 1) if reduced else 1.0
    # A crop is never at the last place, so a picture with one more pixel than the image is too small.
    step = min(step, *(have / (need + 2) for have, need in zip(picture.shape[1:], size, strict=True)))
    rows, columns = (
        ((torch.arange(int(side / step)) + 0.5) * step).long().clamp(max=side - 1)
        for side in picture.shape[1:]
    )
    return picture.cpu()[:, rows][:, :, columns]


class Stock(NamedTuple):
    """Concatenated pictures, uint8 (3, P), with the offset, height and width of each picture."""

    pixels: Tensor
    starts: Tensor
    sizes: Tensor


def stock(pictures: Sequence[Tensor], device: str = "cpu") -> Stock:
    pixels = torch.cat([picture.flatten(1) for picture in pictures], dim=1).to(device)
    starts = torch.tensor([0, *(picture.numel() // 3 for picture in pictures)]).cumsum(0)[:-1].to(device)
    return Stock(pixels, starts, torch.tensor([picture.shape[1:] for picture in pictures], device=device))


@functools.lru_cache(maxsize=4)
def _stock(photographs: tuple[Tensor, ...], size: tuple[int, int], reduced: bool, device: str) -> Stock:
    return stock([fitted(photograph, size, reduced) for photograph in photographs], device)


def cropped(pictures: Stock, size: tuple[int, int], draws: Draws) -> Tensor:
    """Random crops, float64 (N, 3, H, W). Each crop is from one randomly selected picture."""
    height, width = size
    chosen = draws.child("picture").integers(len(pictures.starts))
    # The number of places depends on the picture's size, so a random number of 31 bits is scaled.
    places = draws.child("place").integers(1 << 31, (2,))
    room = pictures.sizes - torch.tensor(size, device=places.device)
    top, left = (places * room[chosen] >> 31).unbind(1)
    down = (top[:, None] + torch.arange(height, device=top.device)) * pictures.sizes[chosen, 1, None]
    across = left[:, None] + torch.arange(width, device=top.device) + pictures.starts[chosen, None]
    return pictures.pixels[:, down[:, :, None] + across[:, None]].transpose(0, 1).double()


@functools.lru_cache(maxsize=1)
def generated() -> tuple[Tensor, ...]:
    """Generated pictures of frost, uint8 (3, H, W): veins of ice in the colours of the photographs.

    Each picture is a sum of noise on increasingly fine lattices, folded at its middle value, which creates
    sharp crests. The noise is computed from integer hashes and is therefore the same on every machine.
    """
    pictures = []
    for number, (mean, deviation) in enumerate(TINTS):
        ice = sum(_crests(number, octave) / 1.6**octave for octave in range(7))
        ice = (ice - ice.mean()) / ice.std()  # type: ignore[union-attr]
        tint = torch.tensor([mean, deviation], dtype=torch.float64).view(2, 3, 1, 1)
        pictures.append((tint[0] + tint[1] * ice).round().clamp(0, 255).to(torch.uint8))
    return tuple(pictures)


def _crests(number: int, octave: int) -> Tensor:
    """Folded noise, float64 (H, W) in [0, 1], on a sheared lattice with 5 x 2^octave rows."""
    height, width = GENERATED
    lines = 5 * 2**octave
    y, x = torch.meshgrid(torch.arange(height) / height, torch.arange(width) / height, indexing="ij")
    down, right = (y + 0.6 * x) * lines, (x - 0.6 * y + 1) * lines
    top, left = down.floor(), right.floor()
    v, u = (down - top).double(), (right - left).double()
    corners = [_hashed(top.long() + i, left.long() + j, 8 * number + octave) for i in (0, 1) for j in (0, 1)]
    upper, lower = corners[0] * (1 - u) + corners[1] * u, corners[2] * (1 - u) + corners[3] * u
    folded: Tensor = 1 - (2 * (upper * (1 - v) + lower * v) - 1).abs()
    return folded


def _hashed(rows: Tensor, columns: Tensor, salt: int) -> Tensor:
    """A pseudorandom number in [0, 1) for each lattice point, float64."""
    word = (rows * 0x9E3779B1 + columns * 0x85EBCA77 + salt * 0xC2B2AE3D) & 0xFFFFFFFF
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):
        word = ((word ^ (word >> shift)) * factor) & 0xFFFFFFFF
    hashed: Tensor = word ^ (word >> 15)
    return hashed.double() / 2**32
