"""Scales images of any size and crops their centre, as in torchvision, so that they have one size."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.datasets import decode, streaming
from rbtools.datasets.base import Dataset, DatasetSource, Description, HashCache
from rbtools.errors import RbError, unknown
from rbtools.lazy import np
from rbtools.registry import Registry

if TYPE_CHECKING:
    from PIL import Image

MOST_PIXELS = 4096  # of a side
OPTIONS = ("resize", "crop", "interpolation", "squash", "transform")
INTERPOLATIONS = ("bilinear", "bicubic")
# For LIBRARY:NAME: a function `name -> {"preprocessing": text, "normalize": [mean, std]}`.
TRANSFORMS = Registry("library of transforms", {}, group="transforms", closed=True)
_TEXT = re.compile(r"(?:crop|(squash-)?(bilinear|bicubic)-(\d{1,4})|(squash))-(\d{1,4})", re.ASCII)


class Preprocessing(NamedTuple):
    """The shorter side is scaled to `resize` pixels (both sides with `squash`; no scaling for None). Then a
    square with sides of `crop` pixels is cut out of the centre.

    Images are scaled by Pillow, with antialiasing, as the transforms of torchvision and timm do for Pillow's
    images. Records and keys contain this object as a string such as `bilinear-256-224`.
    """

    crop: int
    resize: int | None = None
    interpolation: str = "bilinear"
    squash: bool = False

    def __str__(self) -> str:
        how = "crop" if self.resize is None else f"{self.interpolation}-{self.resize}"
        return f"{'squash-' * self.squash}{how}-{self.crop}"

    @property
    def options(self) -> str:
        """The equivalent options of the command line."""
        if self.resize is None:
            return f"--crop {self.crop}"
        squash = " --squash" * self.squash
        return f"--resize {self.resize}{squash} --crop {self.crop} --interpolation {self.interpolation}"

    def apply(self, image: Image.Image) -> Image.Image:
        """The scaled and cropped image. Raises ValueError if the scaled image would be unreasonably large."""
        from PIL import Image

        if self.resize is not None:
            side, (width, height), shorter = self.resize, image.size, min(image.size)
            size = (side, side)
            if not self.squash:
                size = int(side * width / shorter), int(side * height / shorter)
            if size[0] * size[1] > 8 * MOST_PIXELS**2:
                raise ValueError(f"it is {width}x{height} and would become {size[0]}x{size[1]} after scaling")
            image = image.resize(size, Image.Resampling[self.interpolation.upper()])
        # The rounding is that of torchvision's CenterCrop. Pixels outside the image are black.
        left, top = (
            round((length - self.crop) / 2) if length >= self.crop else -((self.crop - length) // 2)
            for length in image.size
        )
        return image.crop((left, top, left + self.crop, top + self.crop))


def parse(text: str) -> Preprocessing:
    """Parse a string; `squash-224` means `squash-bilinear-224-224`. Raises RbError if it is not valid."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise RbError(
            f"'{text[:40]}' is not a valid preprocessing. Expected INTERPOLATION-RESIZE-CROP, such as"
            " bilinear-256-224, squash-bicubic-256-224 or crop-288."
        )
    squash, interpolation, side, both, crop = match.groups()
    resize = int(crop) if both else None if side is None else int(side)
    return _checked(Preprocessing(int(crop), resize, interpolation or "bilinear", bool(squash or both)))


def of_options(
    preprocessing: Preprocessing | str | None = None,
    *,
    resize: int | None = None,
    crop: int | None = None,
    interpolation: str | None = None,
    squash: bool = False,
    transform: str | None = None,
) -> Preprocessing | None:
    """The preprocessing that command-line options or a record describe, or None if there is none. Raises
    RbError if the options contradict each other."""
    if not (squash or any(value is not None for value in (resize, crop, interpolation))):
        text = preset(transform)["preprocessing"] if transform is not None else preprocessing
        return parse(text) if isinstance(text, str) else text
    if transform is not None:
        raise RbError(
            f"--transform {transform} already determines how images are scaled and cropped. Leave it out,"
            " or leave out --resize, --crop, --interpolation and --squash."
        )
    if resize is None and (squash or interpolation is not None):
        raise RbError("--interpolation and --squash need a size. Add --resize with a number of pixels.")
    if interpolation not in (None, *INTERPOLATIONS):
        raise RbError(f"--interpolation is {interpolation}. Choose from: {', '.join(INTERPOLATIONS)}.")
    side = resize if crop is None and squash else crop
    if side is None:
        raise RbError(
            f"--resize {resize} scales the shorter side, but the longer sides still differ. Add --crop with"
            f" the side of the square to cut out (--crop {resize}), or add --squash to scale both sides."
        )
    return _checked(Preprocessing(side, resize, interpolation or "bilinear", squash))


def of_arguments(data: Any, options: Mapping[str, Any]) -> Preprocessing | None:
    """The preprocessing of the named data set `data`. Raises RbError if `data` is not a name, or for an
    unknown option."""
    for name in options:
        if name not in OPTIONS:
            raise unknown("option", name, OPTIONS)
    if options and not isinstance(data, str):
        raise RbError(
            f"{next(iter(options))} applies only to a data set given by name. Scale the images yourself."
        )
    return of_options(**options)


def preset(name: str) -> dict[str, Any]:
    """The preprocessing (as a string) of torchvision:WEIGHTS or timm:NAME, and `normalize`, [mean, std], if
    the library has one. Raises RbError if the name is unknown, or if options cannot describe it."""
    library, colon, weights = name.partition(":")
    if not colon or library not in TRANSFORMS:
        raise RbError(
            f"--transform is '{name}'. Expected torchvision:WEIGHTS, such as"
            " torchvision:ResNet18_Weights.IMAGENET1K_V1, or timm:NAME, such as timm:resnet50.a1_in1k."
        )
    found: dict[str, Any] = TRANSFORMS.load(library)(weights)
    if "preprocessing" not in found:
        raise RbError(
            f"The transform of {name} is not a bilinear or bicubic scaling with a square crop of the centre."
            " Choose the most similar settings with --resize, --crop and --interpolation."
        )
    return found


def _checked(made: Preprocessing) -> Preprocessing:
    sides = (made.crop, made.crop if made.resize is None else made.resize)
    if not all(isinstance(side, int) and 0 < side <= MOST_PIXELS for side in sides) or sides[0] > sides[1]:
        raise RbError(
            f"{made.options}: expected whole numbers of pixels from 1 to {MOST_PIXELS}, and a crop that is"
            " not larger than the scaled side."
        )
    return made


@dataclass(frozen=True, kw_only=True)
class ScaledDataset(DatasetSource):
    """A data set of arrays. Its images are scaled and cropped when they are indexed."""

    whole: DatasetSource

    def describe(self) -> Description:
        about, side = self.whole.describe(), _of(self).crop
        return replace(about, shape=(about.shape[0], side, side))

    def load(self, split: str) -> Dataset:
        data, how = self.whole.load(split), _of(self)

        def fetch(ids: np.ndarray, out: np.ndarray) -> None:
            whole = data.images[ids].numpy()
            decode.in_threads(len(ids), lambda place: _array(how, whole[place], out[place]))

        shape = (len(data), data.images.shape[1], how.crop, how.crop)
        return replace(data, images=streaming.Streamed(shape, fetch))

    def fingerprint(self, split: str, cache: HashCache | None = None) -> str:
        """The hash of the fingerprint of the unscaled data set and of the preprocessing."""
        return hashlib.sha256(f"{self.whole.fingerprint(split, cache)} {_of(self)}".encode()).hexdigest()

    def download(self, split: str, say: Callable[[str], None], check_cancelled: Callable[[], None]) -> None:
        self.whole.download(split, say, check_cancelled)


def _of(source: ScaledDataset) -> Preprocessing:
    assert isinstance(source.preprocessing, Preprocessing)
    return source.preprocessing


def _array(how: Preprocessing, image: np.ndarray, out: np.ndarray) -> None:
    """Write a preprocessed image (C, H, W) into `out`. Pillow scales each channel separately."""
    from PIL import Image

    for place, channel in enumerate(image):
        out[place] = np.asarray(how.apply(Image.fromarray(channel)))
