"""Checks every file of a store against its name or the checksum at its end."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from typing import NamedTuple

import orjson

from rbtools.store import listing
from rbtools.store.checksum import described, digest, hash_of_file, unsealed
from rbtools.store.content_store import KINDS, Store

CHECKED = (*KINDS, "cache")
FOREIGN = "it is no file of a store"


class Checked(NamedTuple):
    """A file, and its problem, None if it has none."""

    kind: str
    path: str
    problem: str | None


def verify(store: Store) -> Iterator[Checked]:
    """Check every stored file. Nothing is taken from the cache: each is read and hashed."""
    for kind in CHECKED:
        for path in listing.foreign(store, kind):
            yield Checked(kind, path, FOREIGN)
        for path in listing.paths(store, kind):
            try:
                wrong = problem(kind, path)
                if wrong and kind == "objects":
                    with contextlib.suppress(OSError):
                        store.hash_now(path)  # replaces the cached hash
                yield Checked(kind, path, wrong)
            except FileNotFoundError:  # finished and removed meanwhile
                continue


def problem(kind: str, path: str, name: str | None = None) -> str | None:
    """What is wrong with a file of that kind and name (its own by default), in words.

    Raises FileNotFoundError if it does not exist.
    """
    name = os.path.basename(path) if name is None else name
    if not listing.is_name(name) or os.path.islink(path):
        return FOREIGN
    try:
        if kind == "objects":
            return None if hash_of_file(path) == name else "its content does not fit its name"
        status = os.stat(path)
        data = listing.read(path, status.st_size)
    except FileNotFoundError:
        raise
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    body = unsealed(data, name)
    if body is None:
        return "its content does not fit its checksum"
    try:
        fits = _fits(kind, name, data, status.st_mtime, body)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        fits = False
    return None if fits else "what it describes does not fit its name"


def _fits(kind: str, name: str, data: bytes, time: float, body: bytes) -> bool:
    """Whether the description in an undamaged file has the hash that is its name."""
    if kind == "cache":
        return hashlib.sha256(orjson.loads(body)["key"].encode()).hexdigest() == name
    if kind != "results":
        return True  # the checksum of outcomes and states is of their key too
    result = described(data, name)
    if result is None or listing.record(name, data, time) is None:
        return False
    of = result.get("about", {}).get("of")
    return of is None or digest(of) in (name, result["what"].get("outcomes"))
