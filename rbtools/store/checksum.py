"""Keys, and checksums at the end of stored files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import orjson

from rbtools.plain_files import opened


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


def sealed(data: bytes) -> bytes:
    """Data with its checksum at the end."""
    return data + b"\n" + hashlib.sha256(data).hexdigest().encode() + b"\n"


def unsealed(data: bytes) -> bytes | None:
    """The data without its checksum, or None if the checksum does not fit."""
    body, mark = data[:-66], data[-66:]
    return body if mark == b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n" else None


def hash_of_file(path: str | os.PathLike[str]) -> str:
    """SHA-256 of the bytes of a plain file, in hexadecimal."""
    sha = hashlib.sha256()
    with opened(path) as stream:
        while chunk := stream.read(1 << 20):
            sha.update(chunk)
    return sha.hexdigest()
