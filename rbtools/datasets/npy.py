"""numpy's array files, never with pickled objects."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

from rbtools.lazy import np
from rbtools.plain_files import plain


def header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and the type of the array that an .npy file holds. Raises ValueError if it is no such
    file."""
    form = np.lib.format
    versions = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}
    version = form.read_magic(file)
    if version not in versions:
        raise ValueError(f"its format version {version} is unknown")
    shape, _, dtype = versions[version](file)
    return shape, dtype


def mapped(path: Path) -> np.ndarray:
    """The array of an .npy file as a memory map; what is written to it stays in memory.

    Raises ValueError if it is no such file, holds Python objects, or ends early; OSError.
    """
    try:
        array = np.load(plain(path), mmap_mode="c", allow_pickle=False)  # torch requires writable arrays
    except OSError:
        raise
    except Exception as error:  # Python's parser, which numpy uses, raises nearly any error for odd text
        raise ValueError(str(error).partition("\n")[0]) from None
    if not isinstance(array, np.ndarray):
        raise ValueError("it is an archive of arrays")
    return array
