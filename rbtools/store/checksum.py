"""Keys, checksums at the end of stored files, and stamps of files.

A stamp is a text that changes when a file changes, made without reading it. A file's size and its time of
modification can both be kept while its content is replaced; its time of change (ctime) cannot be set. Two
cases remain, in which content may change under one stamp, and a stamp is then not `settled`: a change just
before the stamp was made (another may follow within the resolution of the times), and a file system without
inodes or without times of change, such as some network file systems and FAT.
"""

from __future__ import annotations

import contextlib
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


class DamagedFile(Exception):
    """What is wrong with a stored file, in words."""


def sealed(body: bytes, key: str = "") -> bytes:
    """A file's content with its checksum as the last line. With a key, the checksum covers the key too, for
    files that do not contain it."""
    return body + _mark(body, key)


def content(kind: str, name: str, data: bytes) -> Any:
    """What a stored file of this name holds: the bytes of outcomes and states, the fields of all others.

    Raises DamagedFile if the checksum does not fit the data, or the data are not those of that name.
    """
    keyless = kind in ("outcomes", "state")
    body, mark = data[:-66], data[-66:]
    if mark != _mark(body, name if keyless else ""):
        raise DamagedFile("its content does not fit its checksum")
    if keyless:
        return body
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
        for loads in (orjson.loads, json.loads):  # only the latter keeps integers beyond 64 bits: seeds
            fields = loads(body)
            if name == (digest(fields["what"]) if kind == "results" else hash_of_text(fields["key"])):
                return fields
    raise DamagedFile("what it describes does not fit its name")


def _mark(body: bytes, key: str) -> bytes:
    return b"\n" + hashlib.sha256(key.encode() + body).hexdigest().encode() + b"\n"


def hash_of_text(text: str) -> str:
    """SHA-256 of a text, also of file names that are not valid Unicode, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


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
