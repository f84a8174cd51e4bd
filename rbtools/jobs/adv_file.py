"""The file of adversarial images, FILE.adv: their differences from the images of the data set, quantised.

    rb-adv 1\n  HEADER\n  BLOCK BLOCK ...

HEADER is a line of JSON. A block has the images of a batch: six little-endian numbers of 32 bits (images, and
the bytes of five parts), then the parts, each compressed by zlib: `ids` int32, the places of the images in
their split; `forms` uint8, one of FORMS for each image; and the differences of the images of each form:

- CLEAN: none. The image itself, which the attack left, or which was misclassified without it.
- COARSE: each channel of each pixel is moved by `coarse` levels, by none, or by as many back: five in a byte.
  Where `coarse` is 0 the image is moved by `eps` in all, in the ball of `norm`, each channel by as much.
- LEVELS: int8, in levels of `step`.
- EXACT: float32, for images that no quantised difference keeps adversarial.

A file may come from anybody. Every size is checked before something is unpacked, and what is unpacked is no
more than the images that the data set has.
"""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import orjson

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.plain_files import opened
from rbtools.store.files import user_output

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = b"rb-adv 1\n"
CLEAN, COARSE, LEVELS, EXACT = FORMS = (0, 1, 2, 3)
_SIZES = struct.Struct("<6I")
_LONGEST = 1 << 20  # bytes of a header
_NUMBERS = ("n", "eps", "step", "coarse")


class AdvBlock(NamedTuple):
    """Some images. ids: int64 (n,); forms: uint8 (n,); differences: float32 (n, C, H, W) on [0, 1]."""

    ids: NDArray[np.int64]
    forms: NDArray[np.uint8]
    differences: NDArray[np.float32]


def packed(
    ids: NDArray[Any],
    forms: NDArray[Any],
    levels: NDArray[Any],
    exact: NDArray[Any],
    coarse: int,
) -> bytes:
    """A block as bytes. levels: int8 (n, P), exact: float32 (n, P), of which `forms` says what counts."""
    trits = (levels[forms == COARSE] // max(coarse, 1) + 1).astype(np.uint8).ravel()
    trits = np.concatenate([trits, np.zeros(-len(trits) % 5, np.uint8)]).reshape(-1, 5)
    parts = [
        ids.astype("<i4"),
        forms.astype(np.uint8),
        (trits @ np.array([1, 3, 9, 27, 81])).astype(np.uint8),
        levels[forms == LEVELS].astype(np.int8),
        exact[forms == EXACT].astype("<f4"),
    ]
    texts = [_compressed(part) for part in parts]
    return _SIZES.pack(len(ids), *map(len, texts)) + b"".join(texts)


def _compressed(part: NDArray[Any]) -> bytes:
    """By zlib; or without looking for repetitions, which levels that are nearly random do not have, and with
    a code for each image of its own, as each has its own multiples.
    """
    machine = zlib.compressobj(9, strategy=zlib.Z_HUFFMAN_ONLY)
    images = part if part.ndim == 2 else part[None]
    rows = [machine.compress(row.tobytes()) + machine.flush(zlib.Z_SYNC_FLUSH) for row in images]
    return min(zlib.compress(part.tobytes(), 9), b"".join(rows) + machine.flush(), key=len)


def spread(signs: NDArray[Any], eps: float, norm: str) -> NDArray[np.float32]:
    """Differences float32 (n, P) of norm `eps` (l1 or l2) whose channels are moved up (1), down or not."""
    counts = np.abs(signs).sum(1, dtype=np.float64).clip(1)
    each = eps * (1 - 1e-6) / (counts if norm == "l1" else np.sqrt(counts))
    differences: NDArray[np.float32] = signs.astype(np.float32) * each.astype(np.float32)[:, None]
    return differences


def write(path: Path, header: Mapping[str, Any], blocks: IO[bytes]) -> None:
    """Write a file whole."""
    with user_output(path, hint="Name another file with --save-adv.") as target:
        target.write(MAGIC + orjson.dumps(dict(header), option=orjson.OPT_SORT_KEYS) + b"\n")
        shutil.copyfileobj(blocks, target)


def header_of(path: str | Path) -> dict[str, Any]:
    """The header of a file. Raises RbError for another file, and for one whose header is damaged."""
    with _opened(path) as stream:
        return _header(path, stream)


def _opened(path: str | Path) -> IO[bytes]:
    try:
        return opened(path)
    except OSError as error:
        raise RbError(
            f"{path} cannot be read: {error.strerror}. Expected a file of rb-attack --save-adv."
        ) from None


def _header(path: str | Path, stream: IO[bytes]) -> dict[str, Any]:
    if stream.read(len(MAGIC)) != MAGIC:
        raise RbError(
            f"{path} is no file of adversarial images. Expected one that rb-attack --save-adv FILE.adv wrote."
        )
    line = stream.readline(_LONGEST)
    try:
        header = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise _damaged(path, "its header is not JSON") from None
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no object")
    for name in _NUMBERS:
        if isinstance(header.get(name), bool) or not isinstance(header.get(name), int | float):
            raise _damaged(path, f"its header has no number '{name}'")
    whole = isinstance(header["n"], int) and header["n"] > 0 and isinstance(header["coarse"], int)
    if not whole or not 0 <= header["coarse"] <= 127 or not 0 < header["step"] <= 1 or not header["eps"] > 0:
        raise _damaged(path, "a number in its header is out of range")
    return header


def _damaged(path: str | Path, why: str) -> RbError:
    return RbError(f"{path} is damaged: {why}. Write it again with rb-attack --save-adv.")


def blocks(path: str | Path, shape: tuple[int, ...], most: int) -> Iterator[AdvBlock]:
    """The blocks of a file with images of this shape (C, H, W), at most `most` of them in all.

    Raises RbError for a damaged file.
    """
    with _opened(path) as stream:
        header = _header(path, stream)
        left = min(most, header["n"])
        while head := stream.read(_SIZES.size):
            if len(head) < _SIZES.size:
                raise _damaged(path, "it is cut off")
            count, *sizes = _SIZES.unpack(head)
            if not 0 < count <= left:
                raise _damaged(path, "it holds more images than its header says")
            left -= count
            yield _block(path, stream, count, sizes, shape, header)


def _block(
    path: str | Path,
    stream: IO[bytes],
    count: int,
    sizes: list[int],
    shape: tuple[int, ...],
    header: Mapping[str, Any],
) -> AdvBlock:
    pixels, whole = int(np.prod(shape)), os.fstat(stream.fileno()).st_size
    texts = iter(sizes)

    def part(kind: str, items: int) -> NDArray[Any]:
        """The next part, which has so many items."""
        dtype = np.dtype(kind)
        if (size := next(texts)) > whole:  # before memory is taken for it
            raise _damaged(path, "it is cut off")
        text = stream.read(size)
        machine = zlib.decompressobj()
        try:
            plain = machine.decompress(text, items * dtype.itemsize + 1)
        except zlib.error:
            raise _damaged(path, "a part of it cannot be unpacked") from None
        if len(plain) != items * dtype.itemsize or not machine.eof:
            raise _damaged(path, "a part of it has another size than it should")
        return np.frombuffer(plain, dtype)

    ids, forms = part("<i4", count).astype(np.int64), part("u1", count)
    if len(forms) and forms.max() > EXACT:
        raise _damaged(path, "an image has an unknown form")
    many = [int((forms == form).sum()) for form in FORMS]
    trits = part("u1", -(-many[COARSE] * pixels // 5))
    if len(trits) and trits.max() > 242:
        raise _damaged(path, "a difference is out of range")
    unpacked = (trits[:, None] // np.array([1, 3, 9, 27, 81]) % 3).ravel()[: many[COARSE] * pixels]
    differences = np.zeros((count, pixels), np.float32)
    step = np.float32(header["step"])
    signs = unpacked.reshape(-1, pixels).astype(np.float32) - 1
    coarse = signs * header["coarse"] * step
    if not header["coarse"]:
        coarse = spread(signs, float(header["eps"]), str(header.get("norm")))
    differences[forms == COARSE] = coarse
    differences[forms == LEVELS] = part("i1", many[LEVELS] * pixels).reshape(-1, pixels) * step
    differences[forms == EXACT] = part("<f4", many[EXACT] * pixels).reshape(-1, pixels)
    return AdvBlock(ids, forms, differences.reshape(count, *shape))
