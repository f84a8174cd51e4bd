"""Decode image files into one uint8 array, with Pillow."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, NamedTuple, Protocol

from rbtools.errors import RbError, one_line
from rbtools.lazy import np

if TYPE_CHECKING:
    from PIL import Image

# Files a thread takes at a time: enough to make scheduling cheap, few enough that an
# unreadable image is reported soon.
CHUNK = 64

# More than 8 bits a channel; Pillow's own conversion would turn most of it white.
DEEP_MODES = ("I", "F")
GREY_MODES = ("L", "1")

# The content decides the format, not the file's ending. Pillow's other formats are excluded, because for EPS
# it runs Ghostscript on a program in the image.
FORMATS = ("BMP", "DIB", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


class Scaling(NamedTuple):
    """How to scale an image of any size to a square: as torchvision's Resize (antialiased) and CenterCrop.
    The shorter side is scaled to `side` (None: not scaled), with `squash` both sides; then the centre is
    cropped.
    """

    side: int | None
    bicubic: bool = False
    squash: bool = False


class Encoded(Protocol):
    """Encoded images by number: files of a folder, rows of a table."""

    def __len__(self) -> int: ...

    def path(self, index: int) -> str:
        """The name of an image in messages."""

    def open(self, index: int) -> IO[bytes]:
        """A stream of its bytes, closed by the caller."""


def size_of(images: Encoded, index: int) -> tuple[int, int]:
    """(height, width) of an image, from its header alone. Raises RbError naming an unreadable file."""
    with _quiet():
        return _header(images, index)[0]


def one_size(splits: Iterable[Encoded]) -> tuple[int, int]:
    """(height, width) of the first image of each split. Raises RbError where they differ."""
    (first, size), *others = [(images.path(0), size_of(images, 0)) for images in splits]
    for other, other_size in others:
        if other_size != size:
            raise mixed_sizes(first, size, other, other_size)
    return size


def is_grey(images: Encoded, index: int) -> bool:
    """Whether an image has one channel."""
    with _quiet():
        return _header(images, index)[1]


def sample(count: int, most: int = 99) -> list[int]:
    """At most so many of `count` numbers from 0 on, evenly spread."""
    return sorted({place * count // min(most, count) for place in range(min(most, count))})


def check_sizes(images: Encoded) -> None:
    """Raise RbError where the images are not all of one size, by their headers alone."""
    first = size_of(images, 0)

    def work(number: int) -> None:
        size, _ = _header(images, number)
        if size != first:
            raise odd_size(images, first, number, size)

    _in_threads(len(images), work)


def decode(
    images: Encoded, ids: Sequence[int] | np.ndarray, out: np.ndarray, resize: int | Scaling | None = None
) -> None:
    """Read images as RGB into `out`, uint8 (N, 3, H, W), in the order of `ids`, by a few threads.

    Greyscale, palette and CMYK images become RGB as Pillow's convert("RGB") does it, which is what
    torchvision's ImageFolder gives; transparency is dropped. With (N, 1, H, W) they are greyscale. With
    `resize`, an image of another size is scaled to that shorter side and cropped to its centre, as by
    torchvision's Resize (bilinear) and CenterCrop; with a `Scaling`, every image is. Raises RbError naming
    the first file that is unreadable, or of another size.
    """
    _in_threads(len(ids), lambda place: _decode_one(images, int(ids[place]), out[place], resize))


def _in_threads(count: int, work: Callable[[int], None]) -> None:
    """Do work for 0 ... count - 1; of several errors the first one is raised."""
    # Pillow releases the interpreter lock while it decodes, so large images scale with the cores. Small ones
    # are bound by the interpreter: 32x32 JPEGs take 0.1 ms each, however many threads there are.
    threads = min(8, os.cpu_count() or 1)
    size = max(1, min(CHUNK, count // (2 * threads)))

    def piece(start: int) -> None:
        for number in range(start, min(start + size, count)):
            work(number)

    with _quiet(), ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(piece, range(0, count, size)):  # after an error it cancels what has not begun
            pass


def mixed_sizes(first: str, size: tuple[int, int], other: str, other_size: tuple[int, int]) -> RbError:
    """The error for two images of different (height, width)."""
    wanted = f"{size[1]}x{size[0]}"
    return RbError(
        f"The images have different sizes: {first} is {wanted}, {other} is {other_size[1]}x{other_size[0]}."
        f" Expected one size; resize them, for example with ImageMagick: mogrify -resize {wanted}! FILES."
    )


def odd_size(images: Encoded, first: tuple[int, int], index: int, size: tuple[int, int]) -> RbError:
    """The error for an image of another size than the first one, which says which of the two most have."""
    sizes = [size_of(images, number) for number in sample(len(images))]
    error = mixed_sizes(images.path(0), first, images.path(index), size)
    usual = max((first, size), key=sizes.count)
    odd = images.path(index) if usual == first else images.path(0)
    share = f"{sizes.count(usual)} of {len(sizes)} images that were looked at are {usual[1]}x{usual[0]}"
    return RbError(f"{error} {share}, so that {odd} is the odd one.")


def _header(images: Encoded, index: int) -> tuple[tuple[int, int], bool]:
    """(height, width), and whether there is one channel."""
    try:
        with images.open(index) as file:
            image = _open(file)
            return image.size[::-1], image.mode in GREY_MODES
    except Exception as error:
        raise unreadable(images.path(index), error) from None


def _decode_one(images: Encoded, index: int, target: np.ndarray, resize: int | Scaling | None) -> None:
    channels, height, width = target.shape
    mode = "RGB" if channels == 3 else "L"
    try:
        with images.open(index) as file:
            image = _open(io.BytesIO(file.read()))
        size = image.size
        # The size is compared before the pixels are decoded: a stray huge image costs nothing.
        if size == (width, height) and not isinstance(resize, Scaling):
            pixels = image.convert(mode).tobytes()
        elif resize is not None:
            scaling = resize if isinstance(resize, Scaling) else Scaling(resize)
            pixels = _middle(image.convert(mode), scaling, width, height).tobytes()
        else:
            pixels = b""
    except MemoryError:
        raise
    except Exception as error:
        raise unreadable(images.path(index), error) from None
    if not pixels:
        raise odd_size(images, (height, width), index, size[::-1])
    target[:] = np.frombuffer(pixels, np.uint8).reshape(height, width, channels).transpose(2, 0, 1)


def _middle(image: Image.Image, scaling: Scaling, width: int, height: int) -> Image.Image:
    """Scale an image and crop its centre (height, width); pixels outside the image are black."""
    from PIL import Image

    old_width, old_height = size = image.size
    side = scaling.side
    if side is not None and scaling.squash:
        size = (side, side)
    elif side is not None and old_width <= old_height:
        size = (side, int(side * old_height / old_width))
    elif side is not None:
        size = (int(side * old_width / old_height), side)
    if size != image.size:
        image = image.resize(size, Image.Resampling.BICUBIC if scaling.bicubic else Image.Resampling.BILINEAR)
    left, top = (_start(length, part) for length, part in zip(size, (width, height), strict=True))
    return image.crop((left, top, left + width, top + height))


def _start(length: int, part: int) -> int:
    """Where the middle `part` of `whole` pixels begins; negative for an image that is too small."""
    return round((length - part) / 2) if part <= length else -((part - length) // 2)


def _open(file: IO[bytes] | str) -> Image.Image:
    from PIL import Image

    Image.preinit()  # otherwise Pillow loads all plug-ins at the first format that is not loaded yet
    image = Image.open(file, formats=FORMATS)
    if image.mode.split(";")[0] in DEEP_MODES:
        raise ValueError(f"it has more than 8 bits a channel, Pillow's mode {image.mode}; save it with 8")
    return image


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Pillow's warnings on unusual but readable files (transparent palettes, EXIF)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def unreadable(path: str, error: Exception) -> RbError:
    # Pillow's message ends with a file object where the image came from memory.
    reason = one_line(str(error).split(" <_io")[0]) or type(error).__name__
    where = one_line(path)
    return RbError(f"The image {where} cannot be read ({reason}). Repair it, or remove it from the folder.")
