"""Upkeep of a store: damaged files are found; unused ones, or all that can be computed again, are removed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import orjson

from rbtools.errors import RbError
from rbtools.plain_files import read_plain
from rbtools.store import files, lease, listing
from rbtools.store.checksum import described, digest, hash_of_file, unsealed
from rbtools.store.content_store import KINDS, Store, is_current
from rbtools.store.listing import FOLDERS

CHECKED = (*KINDS, "cache")
FOREIGN = "it is no file of a store"
STALE_STATE_SECONDS = 30 * 24 * 3600.0
_LEFT_BEHIND = (files.ASIDE, ".stale-", ".now-")


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
                        store.hash_now(path)  # this also replaces the cached hash
                yield Checked(kind, path, wrong)
            except FileNotFoundError:  # finished and removed meanwhile
                continue


def problem(kind: str, path: str) -> str | None:
    """The problem of a file of that kind, in words.

    Raises FileNotFoundError if it does not exist.
    """
    name = os.path.basename(path)
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
    body = unsealed(data, name if kind in ("outcomes", "state") else "")
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
        return True  # the checksum of outcomes and states also covers their key
    result = described(data, name)
    if result is None or listing.record(name, data, time) is None:
        return False
    of = result.get("about", {}).get("of")
    return of is None or digest(of) in (name, result["what"].get("outcomes"))


class Garbage(NamedTuple):
    """A file that can be removed, and its size."""

    kind: str
    path: str
    bytes: int


class Cleared(NamedTuple):
    """The files that can be removed, and the leases of work in progress, whose files are kept."""

    garbage: list[Garbage]
    live: list[str]


def find(store: Store, *, keep_metrics: bool = False) -> Cleared:
    """Find the files that can be removed: leases of ended processes, half-written files, states of abandoned
    trainings.

    With `keep_metrics` also checkpoints, states of trainings, and hashes of files that are gone or have
    changed; results and outcomes of single examples remain. While any process holds a lease, checkpoints
    stay: one may be about to be evaluated.
    """
    listing.existing(store)
    # Checkpoints are listed before leases: one made meanwhile has a lease, or is not in the list.
    objects = list(_own(store, "objects")) if keep_metrics else []
    dead, live = _leases(store)
    leased = {os.path.basename(path) for path in live}
    garbage = [*dead, *_asides(store), *_states(store, leased, keep_metrics)]
    if keep_metrics:
        garbage += _cache(store)
        garbage += [unused for path in objects if not live for unused in _garbage("objects", path)]
    return Cleared(garbage, live)


def remove(store: Store, garbage: Garbage) -> bool:
    """Remove a file; False if another process uses it or has removed it. Raises RbError."""
    path = Path(garbage.path)
    try:
        if garbage.kind == "leases":
            return lease.take_away(path)
        if garbage.kind == "state" and _in_progress(store, path.name):
            return False
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RbError(f"Cannot remove {path}: {error.strerror}. Check the store's permissions.") from error
    return True


def _garbage(kind: str, path: str) -> Iterator[Garbage]:
    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
        yield Garbage(kind, path, os.lstat(path).st_size)


def _own(store: Store, kind: str) -> Iterator[str]:
    """The files of one kind that have the names of a store: others may be the user's."""
    return (path for path in listing.paths(store, kind) if listing.is_name(os.path.basename(path)))


def _leases(store: Store) -> tuple[list[Garbage], list[str]]:
    dead: list[Garbage] = []
    live: list[str] = []
    for path in _own(store, "leases"):
        with contextlib.suppress(OSError):  # gone meanwhile, or no plain file
            if lease.is_alive(Path(path)):
                live.append(path)
            else:
                dead += _garbage("leases", path)
    return dead, live


def _in_progress(store: Store, key: str) -> bool:
    path = store.path("leases", key)
    try:
        return path is not None and lease.is_alive(path)
    except FileNotFoundError:
        return False


def _asides(store: Store) -> Iterator[Garbage]:
    """Temporary files of processes that ended before renaming or reading them."""
    now = time.time()
    base = listing.existing(store)
    for kind in FOLDERS:
        for folder, _, names in os.walk(os.path.join(base, kind)):
            for name in names:
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    if name.startswith(_LEFT_BEHIND) and files.is_abandoned(path, now):
                        yield from _garbage("aside", str(path))


def _states(store: Store, live: set[str], all_of_them: bool) -> Iterator[Garbage]:
    """States of trainings that are finished, damaged, or have not changed for a month."""
    for path in _own(store, "state"):
        with contextlib.suppress(OSError):
            key = os.path.basename(path)
            if key not in live and (all_of_them or _is_stale(store, key, path)):
                yield from _garbage("state", path)


def _is_stale(store: Store, key: str, path: str) -> bool:
    if time.time() - os.stat(path).st_mtime > STALE_STATE_SECONDS:
        return True
    if unsealed(read_plain(path, follow=False), key) is None:
        return True
    done = store.result(key)
    return isinstance(done, dict) and store.has_object(str(done.get("checkpoint", "")))


def _cache(store: Store) -> Iterator[Garbage]:
    """Hashes of files that are gone or have changed, and damaged entries."""
    for path in _own(store, "cache"):
        with contextlib.suppress(OSError):
            if not _may_be_asked_for(read_plain(path, follow=False)):
                yield from _garbage("cache", path)


def _may_be_asked_for(data: bytes) -> bool:
    body = unsealed(data)
    if body is None:
        return False
    try:
        return is_current(str(orjson.loads(body)["key"]))
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return False
