"""Reads NumPy's array files. Files with pickled objects are an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from rbtools.lazy import np
from rbtools.plain_files import plain


class Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]


def header(file: IO[bytes]) -> Header:
    """Read the header of an .npy file. Raises ValueError if it is not an .npy file, or OSError."""
    form = np.lib.format
    versions = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}
    with _damage_as_value_error():
        return Header(*versions[form.read_magic(file)](file))


def mapped(path: Path) -> np.ndarray:
    """The array of an .npy file as a memory map. Writing to the array does not change the file.

    Raises ValueError if the file is not an .npy file, contains Python objects or is too short, or OSError.
    """
    with _damage_as_value_error():
        array = np.load(plain(path), mmap_mode="c", allow_pickle=False)  # torch requires writable arrays
    if not isinstance(array, np.ndarray):
        raise ValueError("it is an archive of arrays")
    return array


@contextmanager
def _damage_as_value_error() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # Python's parser, which numpy uses, raises nearly any error for odd text
        raise ValueError(str(error).partition("\n")[0]) from None
