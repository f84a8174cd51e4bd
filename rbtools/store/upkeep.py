"""Finds damaged files in a store, and removes files that are unused or can be computed again."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rbtools.errors import RbError
from rbtools.plain_files import NoPlainFile, is_plain, read_plain
from rbtools.store import lease, listing
from rbtools.store.checksum import DamagedFile, content, digest, hash_of_file
from rbtools.store.content_store import FILE, KINDS, Store
from rbtools.store.files import ASIDE

FOREIGN = "it does not belong to a store"
STALE_STATE_SECONDS = 30 * 24 * 3600.0
_FINISHED = ("results", "outcomes", "objects")  # answers of queried models may have cost money
_ABANDONED_SECONDS = 3600.0  # an older temporary file has no writer: no pause between two writes is as long


class Checked(NamedTuple):
    """A file and a description of its problem, or None."""

    kind: str
    path: Path
    problem: str | None


def verify(store: Store) -> Iterator[Checked]:
    """Check every stored file without the cached hashes."""
    store.existing()
    for kind in KINDS:
        for path, own in store.walk(kind) if kind != "leases" else ():
            if path.name.startswith(".") or (own and "-" in path.name):
                continue
            try:
                problem = _problem(store, kind, path) if own else FOREIGN
            except FileNotFoundError:  # finished and removed meanwhile
                continue
            except NoPlainFile:
                problem = FOREIGN
            except OSError as error:
                problem = f"it cannot be read ({error.strerror})"
            yield Checked(kind, path, problem)


def _problem(store: Store, kind: str, path: Path) -> str | None:
    """A description of the file's problem, or None. Raises OSError and NoPlainFile if it cannot be read."""
    if kind == "objects":
        if not is_plain(path):
            raise NoPlainFile(path)
        if hash_of_file(path) == path.name:
            return None
        store.hash_now(path)  # this also replaces the cached hash
        return "its content does not match its name"
    if kind == "answers":
        try:
            listing.answers_record(path)
        except RbError as wrong:
            return str(wrong)
        return None
    try:
        fields = content(kind, path.name, read_plain(path, follow=False))
        if kind == "results":
            listing.record(path, fields)
            of = fields.get("about", {}).get("of")
            if of is not None and digest(of) not in (path.name, fields["what"].get("outcomes")):
                raise DamagedFile("its description does not match its name")
    except DamagedFile as wrong:
        return str(wrong)
    return None


class Garbage(NamedTuple):
    kind: str
    path: Path
    bytes: int


class Limits(NamedTuple):
    """The largest size of a store in bytes, and the longest time in seconds since a result was last used."""

    bytes: float = math.inf
    seconds: float = math.inf


NO_LIMITS = Limits()


class Cleared(NamedTuple):
    """The files that were removed (or would be, with `dry_run`), and the leases that processes hold."""

    garbage: list[Garbage]
    live: list[Path]


def clear(
    store: Store, *, keep_metrics: bool = False, limits: Limits = NO_LIMITS, dry_run: bool = False
) -> Cleared:
    """Remove leases of processes that have ended, incomplete files, and unneeded states of training runs.

    With `keep_metrics`, also remove cached hashes of files and, if no process holds a lease, checkpoints,
    states of training runs, and parts of evaluations. Results and outcomes of single examples are kept,
    unless they are beyond `limits`. With `dry_run`, nothing is removed. Raises RbError if a file cannot be
    removed.
    """
    store.existing()
    # Checkpoints are listed before leases: a new checkpoint has a lease or is not in the list.
    objects = list(store.files("objects")) if keep_metrics else []
    live = [path for path in store.files("leases") if lease.is_alive(path)]
    garbage: list[Garbage] = []
    beyond = _beyond(store, limits, garbage) if limits != NO_LIMITS and not live else ()
    for kind, path in itertools.chain(_unused(store, keep_metrics, bool(live), objects), beyond):
        if not is_plain(path):  # a file of the user, or removed meanwhile
            continue
        try:
            found = Garbage(kind, path, os.lstat(path).st_size)
            if not dry_run and kind != "leases":
                path.unlink()
            if dry_run or kind != "leases" or lease.take_away(path):
                garbage.append(found)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise RbError(
                f"Cannot remove {path}: {error.strerror}. Check the store's permissions."
            ) from error
    return Cleared(garbage, live)


def _unused(
    store: Store, keep_metrics: bool, working: bool, objects: list[Path]
) -> Iterator[tuple[str, Path]]:
    """Yields the kind and the path of each file to remove, checked just before it is removed."""
    yield from (("leases", path) for path in store.files("leases") if not lease.is_alive(path))
    now = time.time()
    for kind in KINDS:
        for path, _ in store.walk(kind):
            with contextlib.suppress(FileNotFoundError):
                if path.name.startswith(ASIDE) and now - path.stat().st_mtime > _ABANDONED_SECONDS:
                    yield "aside", path
    for path in store.files("state"):
        claim = store.path("leases", path.name)
        with contextlib.suppress(FileNotFoundError):
            unwanted = keep_metrics and not working
            if claim is not None and not lease.is_alive(claim) and (unwanted or _is_stale(store, path, now)):
                yield "state", path
    for path in store.files("cache") if keep_metrics else ():
        cached = store.read("cache", path.name)
        if cached is None or cached["key"].startswith(FILE):
            yield "cache", path
    yield from (("objects", path) for path in objects if not working)


def _beyond(store: Store, limits: Limits, garbage: Sequence[Garbage]) -> Iterator[tuple[str, Path]]:
    """Yields the files of finished work that were not used for too long, and then those that were not used
    for the longest time until the store is small enough. `garbage` is what is removed before. A baseline
    (`rb-rank --baseline store`) is nobody's result, so it stays."""
    gone = {one.path for one in garbage}
    total, used = 0, []
    for kind in KINDS:
        for path, own in store.walk(kind):
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if path in gone or not stat.S_ISREG(status.st_mode):
                    continue
                total += status.st_size
                if own and kind in _FINISHED:
                    used.append((max(status.st_atime, status.st_mtime), status.st_size, kind, path))
    oldest = time.time() - limits.seconds
    for last, size, kind, path in sorted(used):
        if last >= oldest and total <= limits.bytes:
            break
        if kind != "results" or not _is_baseline(store, path):
            total -= size
            yield kind, path


def _is_baseline(store: Store, path: Path) -> bool:
    status = path.lstat()
    found = store.read("results", path.name)
    with contextlib.suppress(OSError):  # reading it is no use of it
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return found is not None and found["what"].get("kind") == "baseline"


def _is_stale(store: Store, state: Path, now: float) -> bool:
    # damaged, unchanged for a month, or the state of a finished training run
    if now - state.stat().st_mtime > STALE_STATE_SECONDS or store.read("state", state.name) is None:
        return True
    done = store.result(state.name)
    return isinstance(done, dict) and store.has_object(str(done.get("checkpoint", "")))
