"""numpy's array files: memory-mapped unless compressed, never with pickled objects."""

from __future__ import annotations

import math
import struct
import zipfile
from pathlib import Path
from typing import IO, Any, NamedTuple

from rbtools.lazy import np
from rbtools.plain_files import opened

# bytes of a zip member's header before the lengths of its name and extra fields
_LOCAL_HEADER = struct.Struct("<26xHH")
_LOCAL_SIZE = 30


class Header(NamedTuple):
    """The header of an .npy file; `size` is its length in bytes."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    size: int


def header(file: IO[bytes]) -> Header:
    """Read the header of an .npy file. Raises ValueError if it is no such file, or holds Python objects."""
    start = file.tell()
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"its format version {version} is unknown")
    try:
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(file)
    except OSError:
        raise
    except ValueError as error:  # only the first line of numpy's message: the others advise to trust the file
        raise ValueError(str(error).partition("\n")[0]) from None
    except Exception as error:  # Python's parser, which numpy uses, raises nearly any error for odd text
        raise ValueError(f"its header is damaged: {error}") from None
    if min(shape, default=0) < 0:
        raise ValueError(f"its shape {shape} has a negative size")
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never loaded")
    if not dtype.itemsize:
        raise ValueError("its numbers have no bytes, so there may be any number of them")
    return Header(shape, fortran, dtype, file.tell() - start)


def mapped(path: Path, offset: int = 0, length: int | None = None) -> np.ndarray:
    """The array of an .npy file that begins at that byte of a file and has that length, as a memory map.

    Raises ValueError if it is no such file, holds Python objects, or ends early; OSError.
    """
    with opened(path) as file:
        file.seek(offset)
        head = header(file)
        needed = head.dtype.itemsize * math.prod(head.shape)
        end = file.seek(0, 2) if length is None else offset + length
        there = min(end, file.seek(0, 2)) - offset - head.size
        if there < needed:
            raise ValueError(f"it ends after {there} of {needed} bytes")
        # Copy on write: torch requires writable arrays, and the file must not change.
        return np.memmap(
            file, head.dtype, "c", offset + head.size, head.shape, order="F" if head.fortran else "C"
        )


def offset_in_zip(path: Path, member: zipfile.ZipInfo) -> int | None:
    """The offset of a member's bytes in a zip, or None where they are compressed."""
    if member.compress_type != zipfile.ZIP_STORED:
        return None
    with opened(path) as file:
        file.seek(member.header_offset)
        name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_SIZE))
    return member.header_offset + _LOCAL_SIZE + int(name) + int(extra)
