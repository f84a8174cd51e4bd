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


def sealed(data: bytes, key: str = "") -> bytes:
    """Data with a checksum at the end. With a key, it is of both: for a file that does not say its key."""
    return data + _mark(data, key)


def unsealed(data: bytes, key: str = "") -> bytes | None:
    """The data without their checksum; None if it fits neither the data with that key nor these alone.

    Earlier versions sealed all files without a key.
    """
    body, mark = data[:-66], data[-66:]
    return body if mark == _mark(body, key) or (key and mark == _mark(body)) else None


def _mark(data: bytes, key: str = "") -> bytes:
    total = hashlib.sha256(key.encode())
    total.update(data)
    return b"\n" + total.hexdigest().encode() + b"\n"


def described(data: bytes, key: str) -> dict[str, Any] | None:
    """What the content of a result's file says; None where it is damaged or no result of that key."""
    body = unsealed(data)
    if body is None:
        return None
    for loads in (orjson.loads, json.loads):  # only the latter keeps integers beyond 64 bits, as of a seed
        try:
            result = loads(body)
            if digest(result["what"]) == key:
                return dict(result)
        except (ValueError, LookupError, TypeError, RecursionError):
            return None
    return None


def hash_of_file(path: str | os.PathLike[str]) -> str:
    """SHA-256 of the bytes of a plain file, in hexadecimal."""
    sha = hashlib.sha256()
    with opened(path) as stream:
        while chunk := stream.read(1 << 20):
            sha.update(chunk)
    return sha.hexdigest()
