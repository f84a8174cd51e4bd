"""Keys, checksums at the end of stored files, and stamps of files.

A stamp is a text that changes when a file changes, made without reading it. A file's size and its time of
modification can both be kept while its content is replaced; its time of change (ctime) cannot be set. Two
cases remain, in which content may change under one stamp, and a stamp is then not `settled`: a change just
before the stamp was made (another may follow within the resolution of the times), and a file system without
inodes or without times of change, such as some network file systems and FAT.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from rbtools.plain_files import opened, shards_of

# The coarsest resolution of file times in use, that of FAT.
RESOLUTION_SECONDS = 2.0
# A file system without times of change gives the time of modification for them, in whole hundredths of a
# second (exFAT) or seconds (FAT, SFTP); where times are finer, only chance makes them so.
_COARSE_NS = 10_000_000


def as_json(value: object, *, sort: bool = False) -> bytes:
    """JSON text without white space; integers beyond 64 bits, which a record may have, are kept."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort else None)
    except TypeError:
        return json.dumps(value, sort_keys=sort, ensure_ascii=False, separators=(",", ":")).encode()


def canonical(description: object) -> bytes:
    """The canonical JSON text of a description: keys sorted, no white space."""
    return as_json(description, sort=True)


def digest(description: Mapping[str, Any]) -> str:
    """The key of a description: 64 hexadecimal digits."""
    return hashlib.sha256(canonical(description)).hexdigest()


def sealed(data: bytes, key: str = "") -> bytes:
    """Data with a checksum at the end. With a key, the checksum covers the key too, for files that do not
    contain it."""
    return data + _mark(data, key)


def unsealed(data: bytes, key: str = "") -> bytes | None:
    """The data without their checksum; None if it does not fit the data with that key."""
    body, mark = data[:-66], data[-66:]
    return body if mark == _mark(body, key) else None


def _mark(data: bytes, key: str = "") -> bytes:
    total = hashlib.sha256(key.encode())
    total.update(data)
    return b"\n" + total.hexdigest().encode() + b"\n"


def described(data: bytes, key: str) -> dict[str, Any] | None:
    """Parse the content of a result's file; None if it is damaged or no result of that key."""
    body = unsealed(data)
    if body is None:
        return None
    for loads in (orjson.loads, json.loads):  # only the latter keeps integers beyond 64 bits, such as seeds
        try:
            result = loads(body)
            if digest(result["what"]) == key:
                return dict(result)
        except (ValueError, LookupError, TypeError, RecursionError):
            return None
    return None


def hash_of_file(path: str | os.PathLike[str]) -> str:
    """SHA-256 of the bytes of a plain file, and of the shards that it lists, in hexadecimal."""
    sha = hashlib.sha256()
    for one in (path, *shards_of(path)):
        with opened(one) as stream:
            while chunk := stream.read(1 << 20):
                sha.update(chunk)
    return sha.hexdigest()


class Stamp(NamedTuple):
    """The text of a file's stamp, and whether cached values for it are valid without reading the file."""

    text: str
    settled: bool


def stamp_of(path: str | os.PathLike[str]) -> Stamp:
    """The stamp of a file with the shards that it lists, links followed. Raises OSError."""
    stamps = [stamp(os.stat(one)) for one in (path, *shards_of(path))]
    return Stamp(" ".join(one.text for one in stamps), all(one.settled for one in stamps))


def stamp(status: os.stat_result) -> Stamp:
    """The stamp of a file with this status. To be made before the file is read."""
    size, changed, modified = status.st_size, status.st_ctime_ns, status.st_mtime_ns
    text = f"{size} {modified} {changed} {status.st_ino} {status.st_dev}"
    changes_known = status.st_ino > 0 and changed > 0 and (changed != modified or changed % _COARSE_NS > 0)
    return Stamp(text, changes_known and changed / 1e9 < time.time() - RESOLUTION_SECONDS)
