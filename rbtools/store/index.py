"""An index of a store's records as text, one file for each folder of results.

An entry is valid only while the stamp of its result's file is unchanged: an outdated text is never shown,
and the index may be deleted at any time. Listing 100,000 results takes only as many `stat`
calls.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

import orjson

from rbtools import __version__
from rbtools.errors import RbError
from rbtools.plain_files import read_plain
from rbtools.records import dumps
from rbtools.store import listing, stamps
from rbtools.store.checksum import sealed, unsealed
from rbtools.store.content_store import Store
from rbtools.store.files import write_whole

# Version of the records' shape and of this file; a development version may change without its number.
VERSION = f"{__version__}/2"
WORTH_WRITING = 16  # new entries: fewer are read again next time


class _Entry(NamedTuple):
    """The stamp of a result's file when it was read, the checkpoint of a training, and the record's text."""

    name: str
    stamp: str
    checkpoint: str | None
    text: bytes


class Texts(NamedTuple):
    """The records of one folder as JSON, in the order of their keys, and the damaged files."""

    lines: list[bytes]
    damaged: list[str]


def texts(store: Store, folder: str) -> Texts:
    """The result of `listing.records_in` for a folder, as lines; only changed files are read."""
    place = Path(listing.existing(store), "index", folder)
    known = _read(place)
    entries: list[_Entry] = []
    lasting: list[_Entry] = []
    damaged: list[str] = []
    fresh = 0
    for name, path, status in _files(f"{store.folder}/results/{folder}"):
        entry, (stamp, settled) = known.get(name), stamps.stamp(status)
        if entry is None or entry.stamp != stamp or not settled:
            try:
                record = listing.record(name, listing.read(path, status.st_size), status.st_mtime)
            except FileNotFoundError:  # removed meanwhile
                continue
            except OSError:  # no plain file, or one that we may not read
                record = None
            if record is None:
                damaged.append(path)
                continue
            entry = _Entry(name, stamp, listing.checkpoint_of(record), dumps(record))
            fresh += settled
        entries.append(entry)
        lasting += [entry] if settled else []
    if fresh >= WORTH_WRITING:
        _write(place, lasting)
    return Texts([_line(store, entry) for entry in entries], damaged)


def _files(folder: str) -> list[tuple[str, str, os.stat_result]]:
    files = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for file in entries:
            if not file.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):
                    files.append((file.name, file.path, file.stat(follow_symlinks=False)))
    return sorted(files)


def _line(store: Store, entry: _Entry) -> bytes:
    """The text, updated for whether a training's checkpoint still exists."""
    if entry.checkpoint is None:
        return entry.text
    # "stored" is the record's last field, so the text ends with its brace and the record's.
    return entry.text[:-2] + b',"checkpoint_bytes":%d}}' % listing.size_of(store, entry.checkpoint)


def _read(place: Path) -> dict[str, _Entry]:
    """The entries of an undamaged index of this version; none for any other."""
    try:
        body = unsealed(read_plain(place, follow=False))
    except OSError:
        return {}
    if body is None:
        return {}
    head, *lines = body.split(b"\n")
    try:
        header = orjson.loads(head)
        if header["version"] != VERSION:
            return {}
        return {
            name: _Entry(name, stamp, checkpoint, text)
            for (name, stamp, checkpoint), text in zip(header["files"], lines, strict=True)
        }
    except (ValueError, LookupError, TypeError):  # somebody else's
        return {}


def _write(place: Path, entries: list[_Entry]) -> None:
    head = orjson.dumps({"version": VERSION, "files": [entry[:3] for entry in entries]})
    with contextlib.suppress(RbError):  # a store that cannot be written is read file by file
        write_whole(place, sealed(b"\n".join([head, *(entry.text for entry in entries)])), sync=False)
