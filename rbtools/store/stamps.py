"""Stamps of files: texts that change when a file changes, made without reading it.

A file's size and its time of modification can both be kept while its content is replaced; its time of change
(ctime) cannot be set. Two cases remain, in which content may change under one stamp, and a stamp is then not
`settled`: a change just before the stamp was made (another may follow within the resolution of the times),
and a file system without inodes or without times of change, such as some network file systems and FAT.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

# The coarsest resolution of file times in use, that of FAT.
RESOLUTION_SECONDS = 2.0
# A file system without times of change gives the time of modification for them, in whole hundredths of a
# second (exFAT) or seconds (FAT, SFTP); where times are finer, only chance makes them so.
_COARSE_NS = 10_000_000


class Stamp(NamedTuple):
    """The text of a file's stamp, and whether what was remembered under it may be believed unread."""

    text: str
    settled: bool


def stamp_of(path: str | os.PathLike[str]) -> Stamp:
    """The stamp of a file, links followed. Raises OSError."""
    return stamp(os.stat(path))


def stamp(status: os.stat_result) -> Stamp:
    """The stamp of a file with this status. To be made before the file is read."""
    size, changed, modified = status.st_size, status.st_ctime_ns, status.st_mtime_ns
    text = f"{size} {modified} {changed} {status.st_ino} {status.st_dev}"
    known = status.st_ino > 0 and changed > 0 and (changed != modified or changed % _COARSE_NS > 0)
    return Stamp(text, known and changed / 1e9 < time.time() - RESOLUTION_SECONDS)
