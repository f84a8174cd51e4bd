"""The finished results of a store as records, read file by file.

100,000 results are 100,000 small files; reading, checking and showing one takes some 25 microseconds.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from typing import Any, NamedTuple

from rbtools.errors import RbError
from rbtools.plain_files import open_plain
from rbtools.records import SCHEMA, checksums, metric_name, trained
from rbtools.store.checksum import described
from rbtools.store.content_store import Store

_CHUNK = 1 << 20
_FOLDER, _NAME = re.compile("[0-9a-f]{2}"), re.compile("[0-9a-f]{64}")
FOLDERS = ("results", "outcomes", "objects", "state", "cache", "leases")
ASIDE, TOTAL = "aside", "total"
_NAMED_BY_SPLIT = ("measure", "two-phase")  # the names of their entries include the split


class ListedResult(NamedTuple):
    """A result's file, and its record; None if it is damaged."""

    path: str
    record: dict[str, Any] | None


def records(store: Store, keys: Iterable[str] | None = None) -> Iterator[ListedResult]:
    """All results in the order of their keys, or those whose keys begin with one of `keys`.

    Raises RbError for a key that no result has.
    """
    if keys is None:
        for folder in folders(store, "results"):
            yield from records_in(store, folder)
    else:
        yield from _found(store, _named(store, keys))


def records_in(store: Store, folder: str) -> Iterator[ListedResult]:
    """The results of one of the 256 folders."""
    return _found(store, paths(store, "results", [folder]))


def _found(store: Store, files: Iterable[str]) -> Iterator[ListedResult]:
    for path in files:
        try:
            status = os.stat(path)
            data = read(path, status.st_size)
        except FileNotFoundError:  # removed since it was listed
            continue
        except OSError:  # not a plain file, or not readable
            yield ListedResult(path, None)
            continue
        result = record(path.rpartition("/")[2], data, status.st_mtime)
        if result is not None and (name := checkpoint_of(result)) is not None:
            result["stored"]["checkpoint_bytes"] = size_of(store, name)
        yield ListedResult(path, result)


def folders(store: Store, kind: str) -> list[str]:
    """The folders that the files of one kind are spread over.

    Links are none: they may lead to files of the user's, and files of a store are removed.
    """
    base = f"{existing(store)}/{kind}"
    return [name for name in _listed(base) if _is_folder(base, name)]


def foreign(store: Store, kind: str) -> Iterator[str]:
    """Entries beside these folders that are no such folders."""
    base = f"{existing(store)}/{kind}"
    return (f"{base}/{name}" for name in _listed(base) if not _is_folder(base, name))


def is_name(text: object) -> bool:
    """Whether this is the name of a file of a store: a hash in hexadecimal."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def paths(store: Store, kind: str, only: Iterable[str] | None = None) -> Iterator[str]:
    """The files of one kind in the order of their names, without temporary files."""
    base = f"{existing(store)}/{kind}"
    for folder in _listed(base) if only is None else only:
        for name in _listed(f"{base}/{folder}") if _is_folder(base, folder) else ():
            yield f"{base}/{folder}/{name}"


def existing(store: Store) -> str:
    """The folder of an existing store. Raises RbError if there is none."""
    if store.folder is None:
        raise RbError("No store is named. Name one with --store (or RB_STORE).")
    if not store.folder.exists():
        raise RbError(
            f"There is no store {store.folder}. The tools make it when they keep their first result; name"
            " another with --store (or RB_STORE)."
        )
    store.path("results", "0")  # this checks its format
    if not (store.folder / "format.json").exists() and any(store.folder.iterdir()):
        raise RbError(
            f"The folder {store.folder} is no store: it has no format.json. Name another with --store (or"
            " RB_STORE)."
        )
    return str(store.folder)


def read(path: str, size: int) -> bytes:
    """The bytes of a file, in one read if it has the expected size. Raises OSError, for links too."""
    handle = open_plain(path, follow=False)
    try:
        data = os.read(handle, size + 1)
        if len(data) != size:  # it was replaced meanwhile, or needs several reads
            while more := os.read(handle, _CHUNK):
                data += more
        return data
    finally:
        os.close(handle)


def record(key: str, data: bytes, time: float) -> dict[str, Any] | None:
    """The record of a result's file, which other tools can read; None if the file is damaged or of another
    key.

    `stored`, the last field, has `kind` (training, evaluation, ...), `key`, `bytes` and `time` of its file,
    and for an evaluation `outcomes`, the key of the outcomes per example.
    """
    result = described(data, key)
    if result is None:
        return None
    try:
        description, about = result["what"], result.get("about", {})
        kind = about.get("kind") or description.get("kind", "other")
        fields = _MAKERS.get(kind, _other)(description, result["value"], about)
        outcomes = {"outcomes": description["outcomes"]} if "outcomes" in description else {}
        if outcomes and not is_name(outcomes["outcomes"]):
            return None
    except (KeyError, TypeError, AttributeError, ValueError):
        return None
    stored = {"kind": kind, "key": key, "bytes": len(data), "time": _in_words(int(time)), **outcomes}
    return {"schema": SCHEMA, **fields, "stored": stored}


@functools.lru_cache(maxsize=1024)
def _in_words(time: int) -> str:
    return datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _training(description: dict[str, Any], value: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    entries = trained.entries(value)
    return {
        "arch": _arch(description["arch"], about),
        **{key: about[key] for key in ("dataset",) if key in about},
        "train": trained.section(description, value),
        "checkpoint": value["checkpoint"],
        "metrics": {entry["metric"]: entry["value"] for entry in entries},
        "evals": entries,
        **checksums.of_all(entries),
    }


def _tracking(description: dict[str, Any], value: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    return {
        "arch": _arch({}, about),
        **{key: about[key] for key in ("dataset",) if key in about},
        "train": {"tracking": value["tracking"], "history": value["tracked"], "key": description["training"]},
        "checkpoint": value["checkpoint"],
        "metrics": {},
        "evals": [],
    }


def _evaluation(
    description: dict[str, Any], value: list[dict[str, Any]], about: dict[str, Any]
) -> dict[str, Any]:
    of = about["of"]
    entries, split = value, of.get("split", "test")
    if split != "test" and of.get("kind") not in _NAMED_BY_SPLIT:
        entries = [{**entry, "metric": metric_name.split_name(entry["metric"], split)} for entry in value]
    return {
        "arch": _arch(of["arch"], about),
        **{key: about[key] for key in ("dataset", "train") if key in about},
        **{key: of[key] for key in ("checkpoint",) if key in of},  # untrained weights have none
        "metrics": {entry["metric"]: entry["value"] for entry in entries if entry["value"] is not None},
        "evals": entries,
        **checksums.of_all(entries),
    }


def _other(description: dict[str, Any], value: object, about: dict[str, Any]) -> dict[str, Any]:
    """A result of an unknown kind: shown as it is stored."""
    return {"arch": _arch(description.get("arch", {}), about), "what": description, "value": value}


_MAKERS: dict[str, Callable[[Any, Any, Any], dict[str, Any]]] = {
    "training": _training,
    "tracking": _tracking,
    "evaluation": _evaluation,
}


def _arch(identity: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """An architecture's name, then its identity, in the order that rb-arch writes."""
    space = {"space": identity["space"]} if "space" in identity else {}
    # dry runs estimate times from these
    named = {key: value for key, value in about.get("arch", {}).items() if key != "macs"}
    return {**space, **named, **identity}


def checkpoint_of(record: dict[str, Any]) -> str | None:
    """The file name of a training's checkpoint among the objects; None for other results."""
    if record["stored"]["kind"] != "training":
        return None
    return str(record["checkpoint"]).removeprefix("sha256:")


def size_of(store: Store, name: str) -> int:
    """The bytes of a checkpoint; 0 if it was removed."""
    path = store.path("objects", name) if is_name(name) else None
    try:
        return 0 if path is None else os.stat(path).st_size
    except OSError:
        return 0


def _is_folder(base: str, name: str) -> bool:
    return _FOLDER.fullmatch(name) is not None and not os.path.islink(f"{base}/{name}")


def _listed(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _named(store: Store, keys: Iterable[str]) -> Iterator[str]:
    """The files whose keys begin with one of these, each once."""
    seen: set[str] = set()
    for key in keys:
        key = key.lower()
        if len(key) < 4 or not set(key) <= set("0123456789abcdef"):
            raise RbError(f"'{key}' is no key. Expected 4 or more hexadecimal digits, as rb-store ls shows.")
        near = paths(store, "results", [key[:2]])
        matching = [path for path in near if os.path.basename(path).startswith(key)]
        if not matching:
            raise RbError(
                f"The store {store.folder} has no result with the key {key}. rb-store ls lists all."
            )
        yield from (path for path in matching if path not in seen)
        seen.update(matching)


def usage(store: Store) -> list[dict[str, Any]]:
    """The size of a store: files, their bytes and their bytes on the disk, for each kind and in total.

    `aside` are temporary files, being written or left behind by a dead process.
    """
    base = existing(store)
    counts = {kind: [0, 0, 0] for kind in (*FOLDERS, ASIDE)}
    for kind in FOLDERS:
        for entry in _files(os.path.join(base, kind)):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # removed since it was listed
                continue
            count = counts[ASIDE if entry.name.startswith(".") else kind]
            count[0] += 1
            count[1] += status.st_size
            count[2] += getattr(status, "st_blocks", 0) * 512
    counts[TOTAL] = [sum(column) for column in zip(*counts.values(), strict=True)]
    return [
        {"schema": SCHEMA, "kind": kind, "files": files, "bytes": size, "disk_bytes": disk}
        for kind, (files, size, disk) in counts.items()
    ]


def _files(folder: str) -> list[os.DirEntry[str]]:
    files = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    files += _files(entry.path)
                else:
                    files.append(entry)
    except FileNotFoundError:
        return []
    return files
