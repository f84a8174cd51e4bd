"""The finished results of a store as records."""

from __future__ import annotations

import contextlib
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rbtools.errors import RbError
from rbtools.plain_files import is_plain, read_plain
from rbtools.records import SCHEMA, checksums, metric_name, trained
from rbtools.store.checksum import DamagedFile, content
from rbtools.store.content_store import KINDS, Store
from rbtools.store.kept_answers import KeptAnswers

_NAMED_BY_SPLIT = ("measure", "two-phase")  # kinds whose entries' names include the split


class ListedResult(NamedTuple):
    """A result's file and its record, which is None if the file is damaged."""

    path: Path
    record: dict[str, Any] | None


def records(store: Store, keys: Sequence[str] = ()) -> Iterator[ListedResult]:
    """All results, sorted by key; with `keys`, only results whose keys begin with one of `keys`. Raises
    RbError if no result's key begins with one of `keys`."""
    store.existing()
    for path in _named(store, keys) if keys else store.files("results"):
        try:
            result = record(path, content("results", path.name, read_plain(path, follow=False)))
        except FileNotFoundError:  # removed since it was listed
            continue
        except (OSError, DamagedFile):
            yield ListedResult(path, None)
            continue
        if result["stored"]["kind"] == "training":
            weights = store.path("objects", str(result["checkpoint"]).removeprefix("sha256:"))
            there = weights is not None and is_plain(weights)
            result["stored"]["checkpoint_bytes"] = weights.stat().st_size if weights and there else 0
        yield ListedResult(path, result)
    for path in store.files("answers") if not keys else ():
        if "-" not in path.name:
            try:
                yield ListedResult(path, answers_record(path))
            except (OSError, RbError):
                yield ListedResult(path, None)


def _named(store: Store, keys: Sequence[str]) -> list[Path]:
    found: dict[Path, None] = {}
    for key in map(str.lower, keys):
        if len(key) < 4 or not set(key) <= set("0123456789abcdef"):
            raise RbError(f"'{key}' is not a key. Expected at least 4 hexadecimal digits, as in rb-store ls.")
        matching = list(store.files("results", key))
        if not matching:
            raise RbError(f"The store {store.folder} has no result with the key {key}. See rb-store ls.")
        found |= dict.fromkeys(matching)
    return list(found)


def record(path: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a result, built from the fields of its file.

    The last field of the record, `stored`, contains `kind` (training, evaluation, ...), `key`, `bytes` and
    `time` of the file. For an evaluation, `stored` also contains `outcomes`, the key of the outcomes of the
    single examples. Raises OSError if the file cannot be read, and DamagedFile if no tool writes such a
    result.
    """
    try:
        what, about = result["what"], result.get("about", {})
        kind = about.get("kind") or what.get("kind", "other")
        fields = _fields(kind, what, result["value"], about)
    except (LookupError, TypeError, AttributeError, ValueError):
        raise DamagedFile("its description does not match its name") from None
    outcomes = {"outcomes": what["outcomes"]} if "outcomes" in what else {}
    return {"schema": SCHEMA, **fields, "stored": {**_stored(kind, path), **outcomes}}


def _fields(kind: str, what: Any, value: Any, about: Any) -> dict[str, Any]:
    """The fields of the record; `about` contains the fields that all kinds of results have."""
    common = {name: about[name] for name in ("dataset", "train") if name in about}
    entries: list[dict[str, Any]] = []
    if kind == "training":
        arch, source, entries = what["arch"], value, trained.entries(value)
        common["train"] = trained.section(what, value)
    elif kind == "tracking":
        arch, source = {}, value
        train = {"tracking": value["tracking"], "history": value["tracked"], "key": what["training"]}
        common["train"] = train
    elif kind == "evaluation":
        source, split = about["of"], about["of"].get("split", "test")
        arch, entries = source["arch"], value
        if split != "test" and source.get("kind") not in _NAMED_BY_SPLIT:
            entries = [
                {**entry, "metric": metric_name.split_name(entry["metric"], split)} for entry in entries
            ]
    else:  # a kind of a later version: shown as it is stored
        return {"arch": _arch(what.get("arch", {}), about), "what": what, "value": value}
    return {
        "arch": _arch(arch, about),
        **common,
        **{name: source[name] for name in ("checkpoint",) if name in source},  # absent for untrained weights
        "metrics": {entry["metric"]: entry["value"] for entry in entries if entry["value"] is not None},
        "evals": entries,
        **checksums.of_all(entries),
    }


def _arch(identity: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """The fields of an architecture, in the order in which rb-arch writes them."""
    space = {"space": identity["space"]} if "space" in identity else {}
    return {**space, **about.get("arch", {}), **identity}


def answers_record(path: Path) -> dict[str, Any]:
    """The record of a model that can only be queried; `stored.answers` is the number of images with stored
    answers. Raises RbError if the file is damaged."""
    with contextlib.closing(KeptAnswers(path)) as kept:
        fields, count = kept.about()
    stored = {**_stored("answers", path), "answers": count}
    arch = {"space": "answers", **fields}
    return {"schema": SCHEMA, "arch": arch, "checkpoint": f"sha256:{path.name}", "stored": stored}


def _stored(kind: str, path: Path) -> dict[str, Any]:
    status = path.stat()
    written = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(status.st_mtime))
    return {"kind": kind, "key": path.name, "bytes": status.st_size, "time": written}


def usage(store: Store) -> list[dict[str, Any]]:
    """The number of files, their bytes, and their bytes on disk, for each kind of file and in total. `aside`
    counts temporary files, which are being written or were left by a process that died."""
    store.existing()
    counts = {kind: [0, 0, 0] for kind in (*KINDS, "aside")}
    for kind in KINDS:
        for path, _ in store.walk(kind):
            try:
                status = path.lstat()
            except FileNotFoundError:  # removed since it was listed
                continue
            if not stat.S_ISDIR(status.st_mode):
                size = [1, status.st_size, getattr(status, "st_blocks", 0) * 512]
                row = "aside" if path.name.startswith(".") else kind
                counts[row] = [sum(pair) for pair in zip(counts[row], size, strict=True)]
    counts["total"] = [sum(column) for column in zip(*counts.values(), strict=True)]
    return [
        {"schema": SCHEMA, "kind": kind, "files": files, "bytes": size, "disk_bytes": disk}
        for kind, (files, size, disk) in counts.items()
    ]
