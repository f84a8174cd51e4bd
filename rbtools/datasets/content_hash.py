"""The hash of a data set's content, and its cache."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from rbtools.datasets.base import HashCache
from rbtools.plain_files import opened
from rbtools.store.checksum import stamp

if TYPE_CHECKING:
    import numpy as np

AT_ONCE = 1000  # images


def pixels_hash(pieces: Sequence[np.ndarray], labels: np.ndarray) -> str:
    """SHA-256 (hex) of the shape (N, C, H, W), the pixels in order, and the labels.

    `pieces` are uint8 arrays (n, C, H, W) of consecutive images. Each label is hashed as one byte if all
    labels are below 256, otherwise as four bytes.
    """
    shape = (sum(map(len, pieces)), *pieces[0].shape[1:])
    total = hashlib.sha256(f"rbtools images 1 {shape}".encode())
    for piece in pieces:
        for start in range(0, len(piece), AT_ONCE):  # a view if the pixels are contiguous, else a copy
            total.update(piece[start : start + AT_ONCE].reshape(-1).data)
    total.update(labels.astype("u1" if labels.max(initial=0) < 256 else "<u4").tobytes())
    return total.hexdigest()


def lines(*fields: str) -> bytes:
    """The fields as bytes, each followed by a zero byte, because no file name contains one."""
    return b"".join(os.fsencode(field) + b"\0" for field in fields)


def remembered(
    cache: HashCache | None,
    what: Iterable[str],
    files: Iterable[tuple[str, str | os.PathLike[str]]],
    make: Callable[[], str],
) -> str:
    """The hash that `make` returns, or the cached hash of the same files.

    `what` contains other values on which the hash depends, and `files` the (name, path) of each file. If the
    stamp of a file is not settled (`checksum.stamp`), the hash is computed again and not cached. Raises
    OSError if a file is missing.
    """
    if cache is None:
        return make()
    total, settled = hashlib.sha256(lines(*what)), True
    for name, path in files:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        file_stamp = stamp(status)
        total.update(lines(name, file_stamp.text))
        settled = settled and file_stamp.settled
    if not settled:
        return make()
    key = f"data:{total.hexdigest()}"
    value = cache.get(key)
    if value is None:
        value = make()
        cache.put(key, value)
    return value


def md5_of(path: str | os.PathLike[str]) -> str:
    """The MD5 of a file, which publishers of data sets use as a checksum."""
    total = hashlib.md5(usedforsecurity=False)
    with opened(path) as file:
        while chunk := file.read(1 << 20):
            total.update(chunk)
    return total.hexdigest()
