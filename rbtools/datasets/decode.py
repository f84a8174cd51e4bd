"""Decode image files into one uint8 array, with Pillow."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Protocol

from rbtools.datasets import streaming
from rbtools.errors import RbError, one_line
from rbtools.lazy import np

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from rbtools.datasets.preprocessing import Preprocessing

# Images that a thread takes at a time: enough for cheap scheduling, and so few that an unreadable image is
# reported early.
CHUNK = 64
MOST_LOOKED_AT = 99  # the most images of a split whose headers are read as a sample

# Modes with more than 8 bits per channel: Pillow's own conversion would make most pixels white.
DEEP_MODES = ("I", "F")
GREY_MODES = ("L", "1")

# The content decides the format, not the file extension. Pillow's other formats are excluded because, for
# example, it runs Ghostscript on the program in an EPS image.
FORMATS = ("BMP", "DIB", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


class Encoded(Protocol):
    """Numbered encoded images, such as the files of a folder or the rows of a table."""

    def __len__(self) -> int: ...

    def path(self, index: int) -> str: ...

    def open(self, index: int) -> IO[bytes]: ...


def decode(
    images: Encoded,
    ids: Sequence[int] | np.ndarray,
    out: np.ndarray,
    preprocessing: Preprocessing | None = None,
    only_others: bool = False,
) -> None:
    """Read images into `out`, uint8 (N, 3, H, W) or (N, 1, H, W), in the order of `ids`, with a few threads.

    All images become RGB with Pillow's convert("RGB"), as in torchvision's ImageFolder, or one channel with
    convert("L"). Transparency is dropped. The converted images are scaled and cropped (with `only_others`,
    those that do not have the size of `out`). Raises RbError if an image is unreadable or, without
    `preprocessing`, has another size. The message names the first such image.
    """

    def work(place: int) -> None:
        _decode_one(images, int(ids[place]), out[place], preprocessing, only_others)

    in_threads(len(ids), work)


def images_of(
    images: Encoded,
    shape: tuple[int, int, int],
    scaled: Preprocessing | None,
    odd: Preprocessing | None = None,
) -> Tensor | streaming.Streamed:
    """All images (N, C, H, W) as one tensor or, if they are `scaled` or do not fit into memory, decoded when
    they are indexed. `odd` is the preprocessing of images with another shape. Raises RbError."""
    whole = (len(images), *shape)

    def fetch(ids: np.ndarray, out: np.ndarray) -> None:
        decode(images, ids, out, scaled or odd, only_others=scaled is None)

    if scaled is not None:
        return streaming.Streamed(whole, fetch)
    loaded = streaming.images(whole, fetch)
    if isinstance(loaded, streaming.Streamed) and odd is None:
        check_sizes(images)  # report a wrong size now, not during the work
    return loaded


def size_of(images: Encoded, index: int) -> tuple[int, int]:
    """The size (height, width) of an image, read from its header. Raises RbError if this fails."""
    with _quiet():
        return _header(images, index).size[::-1]  # Pillow has (width, height)


def is_grey(images: Encoded, index: int) -> bool:
    """Whether an image has one channel, read from its header. Raises RbError if the image is unreadable."""
    with _quiet():
        return _header(images, index).mode in GREY_MODES


def one_size(splits: Iterable[Encoded]) -> tuple[int, int]:
    """The size (height, width) of the first image of each split. Raises RbError if the sizes differ."""
    (first, size), *others = [(images.path(0), size_of(images, 0)) for images in splits]
    for other, other_size in others:
        if other_size != size:
            raise _different_sizes(first, size, other, other_size)
    return size


def check_sizes(images: Encoded) -> None:
    """Raise RbError if the images do not all have the same size. Only headers are read."""
    first = size_of(images, 0)

    def check(index: int) -> None:
        size = _header(images, index).size[::-1]
        if size != first:
            raise _odd_size(images, first, index, size)

    in_threads(len(images), check)


def evenly_spread(count: int) -> list[int]:
    """At most `MOST_LOOKED_AT` evenly spaced integers from 0 to count - 1, in ascending order."""
    looked_at = min(MOST_LOOKED_AT, count)
    return [place * count // looked_at for place in range(looked_at)]


def unreadable(path: str, error: Exception) -> RbError:
    # Pillow's message ends with a file object if the image came from memory.
    reason = one_line(str(error).split(" <_io")[0]) or type(error).__name__
    return RbError(
        f"The image {one_line(path)} cannot be read ({reason}). Repair it, or remove it from the folder."
    )


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Call `work` with 0, ..., count - 1 in several threads. The first of several errors is raised."""
    # Pillow releases the interpreter lock while it decodes, so more cores decode large images faster. Small
    # images are limited by the interpreter: a 32x32 JPEG takes 0.1 ms with any number of threads.
    threads = min(8, os.cpu_count() or 1)
    at_a_time = max(1, min(CHUNK, count // (2 * threads)))

    def chunk(start: int) -> None:
        for number in range(start, min(start + at_a_time, count)):
            work(number)

    with _quiet(), ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(chunk, range(0, count, at_a_time)):  # after an error, waiting calls are cancelled
            pass


def _decode_one(
    images: Encoded, index: int, target: np.ndarray, preprocessing: Preprocessing | None, only_others: bool
) -> None:
    channels, height, width = target.shape
    try:
        with images.open(index) as file:
            image = _open(io.BytesIO(file.read()))
        fits = image.size == (width, height)
        # The size is compared before the pixels are decoded: an unexpected huge image costs nothing.
        if preprocessing is None and not fits:
            raise _odd_size(images, (height, width), index, image.size[::-1])
        image = image.convert("RGB" if channels == 3 else "L")
        if preprocessing is not None and not (fits and only_others):
            image = preprocessing.apply(image)
        pixels = np.asarray(image).reshape(height, width, channels)
    except (MemoryError, RbError):
        raise
    except Exception as error:
        raise unreadable(images.path(index), error) from None
    target[:] = pixels.transpose(2, 0, 1)


def _header(images: Encoded, index: int) -> Image.Image:
    try:
        with images.open(index) as file:
            return _open(file)
    except Exception as error:
        raise unreadable(images.path(index), error) from None


def _open(file: IO[bytes]) -> Image.Image:
    from PIL import Image

    Image.preinit()  # otherwise Pillow loads all plug-ins when a format is not loaded yet
    image = Image.open(file, formats=FORMATS)
    if image.mode.split(";")[0] in DEEP_MODES:
        raise ValueError(f"it has more than 8 bits per channel (Pillow's mode {image.mode}); save it with 8")
    return image


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Pillow's warnings about unusual but readable files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _different_sizes(first: str, size: tuple[int, int], other: str, other_size: tuple[int, int]) -> RbError:
    """The error for two images with different sizes, which are (height, width)."""
    return RbError(
        f"The images have different sizes: {first} is {size[1]}x{size[0]}, {other} is"
        f" {other_size[1]}x{other_size[0]}. Expected one size. Scale and crop them to the size that the"
        " network was trained with: add --resize 256 --crop 224, or the transform of published"
        " weights (--transform torchvision:ResNet18_Weights.IMAGENET1K_V1)."
    )


def _odd_size(images: Encoded, first: tuple[int, int], index: int, size: tuple[int, int]) -> RbError:
    sizes = [size_of(images, number) for number in evenly_spread(len(images))]
    error = _different_sizes(images.path(0), first, images.path(index), size)
    usual = max((first, size), key=sizes.count)
    if 2 * sizes.count(usual) <= len(sizes):
        return error
    odd = images.path(index) if usual == first else images.path(0)
    share = f"{sizes.count(usual)} of {len(sizes)} images checked are {usual[1]}x{usual[0]}"
    return RbError(f"{error} {share}: perhaps only {odd} has another size. Remove or scale it.")
