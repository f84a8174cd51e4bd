"""How much a store holds."""

from __future__ import annotations

import os
from typing import Any

from rbtools.records import SCHEMA
from rbtools.store.content_store import Store
from rbtools.store.listing import existing

FOLDERS = ("results", "outcomes", "objects", "state", "cache", "index", "leases")
ASIDE, TOTAL = "aside", "total"


def usage(store: Store) -> list[dict[str, Any]]:
    """Files, their bytes, and the bytes they take on the disk: an object for each kind, then the total.

    `aside` are files that are being written, or that a process which died left behind.
    """
    base = existing(store)
    found = {kind: [0, 0, 0] for kind in (*FOLDERS, ASIDE)}
    for kind in FOLDERS:
        for entry in _files(os.path.join(base, kind)):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # gone just now
                continue
            counts = found[ASIDE if entry.name.startswith(".") else kind]
            counts[0] += 1
            counts[1] += status.st_size
            counts[2] += getattr(status, "st_blocks", 0) * 512
    found[TOTAL] = [sum(column) for column in zip(*found.values(), strict=True)]
    return [
        {"schema": SCHEMA, "kind": kind, "files": files, "bytes": size, "disk_bytes": disk}
        for kind, (files, size, disk) in found.items()
    ]


def _files(folder: str) -> list[os.DirEntry[str]]:
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    found += _files(entry.path)
                else:
                    found.append(entry)
    except FileNotFoundError:
        return []
    return found
