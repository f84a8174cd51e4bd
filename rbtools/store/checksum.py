"""Keys, checksums at the end of stored files, and stamps that show whether a file has changed.

A stamp is a string that is computed without reading the file, and that changes when the file changes. The
stamp contains the time of change (ctime), because programs cannot set this time. A stamp is not `settled` if
the content may change without changing the stamp. There are two such cases. Just after a change, another one
may follow within the resolution of the times. And some file systems, such as FAT and some network file
systems, have no inodes or times of change.
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
# A file system without times of change reports the time of modification instead, in whole hundredths of a
# second (exFAT) or seconds (FAT, SFTP); finer times are whole hundredths only by chance.
_COARSE_NS = 10_000_000


def as_json(value: object, *, sort: bool = False) -> bytes:
    """Encode as JSON without white space. Integers beyond 64 bits are written exactly."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort else None)
    except TypeError:
        return json.dumps(value, sort_keys=sort, ensure_ascii=False, separators=(",", ":")).encode()


def canonical(description: object) -> bytes:
    return as_json(description, sort=True)


def digest(description: Mapping[str, Any]) -> str:
    """The key of a description: 64 hexadecimal digits of the SHA-256 of its canonical JSON text."""
    return hashlib.sha256(canonical(description)).hexdigest()


class DamagedFile(Exception):
    """Raised for a damaged stored file; the message is the reason."""


def sealed(body: bytes, key: str = "") -> bytes:
    """Append the checksum to a file's content as its last line. For a file that does not contain its key, the
    checksum also covers the key."""
    return body + _mark(body, key)


def content(kind: str, name: str, data: bytes) -> Any:
    """The content of a stored file: bytes for outcomes and states, otherwise a dictionary. Raises DamagedFile
    if the data do not match their checksum or the file's name."""
    keyless = kind in ("outcomes", "state")
    body, mark = data[:-66], data[-66:]
    if mark != _mark(body, name if keyless else ""):
        raise DamagedFile("its content does not match its checksum")
    if keyless:
        return body
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
        for loads in (orjson.loads, json.loads):  # only json keeps integers beyond 64 bits, such as seeds
            fields = loads(body)
            if name == (digest(fields["what"]) if kind == "results" else hash_of_text(fields["key"])):
                return fields
    raise DamagedFile("its description does not match its name")


def _mark(body: bytes, key: str) -> bytes:
    return b"\n" + hashlib.sha256(key.encode() + body).hexdigest().encode() + b"\n"


def hash_of_text(text: str) -> str:
    """SHA-256 of a string in hexadecimal. The string may be a file name that is not valid Unicode."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def hash_of_file(path: str | os.PathLike[str]) -> str:
    """SHA-256, in hexadecimal, of a plain file and of the shards that it lists."""
    sha = hashlib.sha256()
    for one in (path, *shards_of(path)):
        with opened(one) as stream:
            while chunk := stream.read(1 << 20):
                sha.update(chunk)
    return sha.hexdigest()


class Stamp(NamedTuple):
    """The stamp of a file. If `settled` is true, values cached with this stamp are valid."""

    text: str
    settled: bool


def stamp_of(path: str | os.PathLike[str]) -> Stamp:
    """The stamp of a file and of the shards that it lists. Links are followed. Raises OSError."""
    stamps = [stamp(os.stat(one)) for one in (path, *shards_of(path))]
    return Stamp(" ".join(one.text for one in stamps), all(one.settled for one in stamps))


def stamp(status: os.stat_result) -> Stamp:
    """The stamp of a file with this status, which must be read before the file's content."""
    size, changed, modified = status.st_size, status.st_ctime_ns, status.st_mtime_ns
    text = f"{size} {modified} {changed} {status.st_ino} {status.st_dev}"
    changes_known = status.st_ino > 0 and changed > 0 and (changed != modified or changed % _COARSE_NS > 0)
    return Stamp(text, changes_known and changed / 1e9 < time.time() - RESOLUTION_SECONDS)
