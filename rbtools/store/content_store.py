"""Content-addressed storage of results, checkpoints and the state of unfinished work.

A key is the SHA-256 of a canonical JSON description of everything that determines a result. The
layout under the store's folder, every file written whole, two hexadecimal digits a folder:

    format.json            the version of this layout
    objects/ab/abcd...     checkpoints, named by the SHA-256 of their bytes
    results/ab/abcd...     {"what": description, "value": result, "about": words}, named by the key
    outcomes/ab/abcd...    what an evaluation found per example, named by the key
    state/ab/abcd...       a training, or a part of an evaluation, that is not finished, named by the key
    leases/ab/abcd...      who trains or searches just now: safe to delete when nobody does
    cache/ab/abcd...       {"key": ..., "value": ...}, hashes of files by path and stamp (`checksum`),
                           classes of lists of examples: safe to delete

All but objects end in a line with the SHA-256 of the bytes before it, of outcomes and states with their key
before these bytes. If that does not fit, or the description or the key in the file has not the hash that is
its name, the file counts as absent and is written again. So does what is no plain file, or is a link.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from rbtools.errors import RbError
from rbtools.plain_files import NoPlainFile, is_plain, read_plain
from rbtools.store import checksum, lease
from rbtools.store.checksum import as_json, canonical, described, digest, hash_of_file, sealed, unsealed
from rbtools.store.files import check_writable, write_whole

__all__ = [
    "FORMAT",
    "KINDS",
    "Store",
    "canonical",
    "digest",
    "hash_of_file",
    "object_name",
    "sealed",
    "unsealed",
]

FORMAT = 1
KINDS = ("objects", "results", "outcomes", "state")
FILE = "file:"
MARKER = canonical({"format": FORMAT, "what": "rbtools store"})


class Store:
    """Finished work in one folder. With `folder=None` nothing is stored or found.

    The folder is made on the first write. With `force` only what this object has written itself is found.
    `found` and `computed` count units of work; `damaged` names files whose content did not fit their
    checksum or their name; `trouble` is the reason why something could not be stored. Raises RbError if the
    folder has another format or is no folder.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, *, force: bool = False) -> None:
        self.folder = None if folder is None else Path(folder).absolute()
        self.force = force
        self.found = 0
        self.computed = 0
        self.damaged: list[Path] = []
        self.trouble: str | None = None
        self._checked = False
        self._own: set[tuple[str, str]] = set()  # with `force`: the files that this object has written

    def result(self, key: str) -> Any | None:
        """The finished result of that key, or None."""
        data = self._unforced("results", key)
        value = None if data is None else (described(data, key) or {}).get("value")
        if data is not None and value is None:
            self._found_damaged("results", key)
        return value

    def keep_result(
        self, key: str, what: Mapping[str, Any], value: object, about: Mapping[str, Any] | None = None
    ) -> None:
        """Keep a finished result with the description that its key is the hash of.

        `about` has further information that is not in the key, such as names, for `rb-store ls`.
        """
        result = {"what": what, "value": value, **({} if about is None else {"about": about})}
        self._try_to_write("results", key, sealed(as_json(result)))

    def outcomes(self, key: str) -> bytes | None:
        """The stored outcomes per example, or None."""
        return self._unsealed("outcomes", key)

    def keep_outcomes(self, key: str, data: bytes) -> None:
        """Store outcomes per example."""
        self._try_to_write("outcomes", key, sealed(data, key))

    def state(self, key: str) -> bytes | None:
        """The state of an interrupted training or a part of an evaluation, or None."""
        return self._unsealed("state", key)

    def keep_state(self, key: str, data: bytes) -> None:
        """Store the state of an unfinished training."""
        self._try_to_write("state", key, sealed(data, key))

    def keep_part(self, key: str, data: bytes) -> None:
        """Store a part of an evaluation among the states. A power cut may lose it."""
        self._try_to_write("state", key, sealed(data, key), sync=False)

    def drop_state(self, key: str) -> None:
        """Remove the state of a training, or the part of an evaluation, that is now finished."""
        path = self.path("state", key)
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()

    def check_writable(self) -> None:
        """Raise RbError if a checkpoint could not be stored; a training checks this before it starts."""
        if self.folder is None:
            raise RbError("A training needs a store for its checkpoint. Leave out --store none.")
        check_writable(self.folder / "objects")

    def keep_object(self, data: bytes) -> str:
        """Store a checkpoint; return its name, "sha256:" and the hash of its bytes."""
        name = object_name(data).removeprefix("sha256:")
        path = self.path("objects", name)
        if path is None:
            raise RbError("A training needs a store for its checkpoint. Leave out --store none.")
        if not (is_plain(path) and self.file_hash(path) == f"sha256:{name}"):
            self._write("objects", name, data)
        return f"sha256:{name}"

    def object(self, name: str) -> Path:
        """The file of a checkpoint named "sha256:...".

        Raises RbError if it is missing, or if its content does not fit its name.
        """
        path = self.path("objects", name.removeprefix("sha256:"))
        if path is None or not is_plain(path):
            raise RbError(
                f"The checkpoint {name[:19]}... is not in the store"
                f" {self.folder if self.folder else '(--store none)'}. Name the store it was trained into"
                " with --store (or RB_STORE), or train it again with rb-train."
            )
        if self.file_hash(path) != name:
            self._found_damaged("objects", path.name)
            raise RbError(
                f"The checkpoint {path} is damaged: its content does not fit its name. Train it again with"
                " rb-train (the damaged file is then replaced)."
            )
        return path

    def has_object(self, name: str) -> bool:
        """Whether the store has that checkpoint, undamaged."""
        try:
            self.object(str(name))
        except RbError:
            return False
        return True

    def file_hash(self, path: str | os.PathLike[str]) -> str:
        """ "sha256:..." of a file's bytes, read once for each path and stamp that is settled."""
        key, settled = _file_key(path)
        return (self.get(key) if settled else None) or self.hash_now(path)

    def hash_now(self, path: str | os.PathLike[str]) -> str:
        """ "sha256:..." of a file's bytes, read now: a disk error may change them without changing the
        stamp."""
        key, settled = _file_key(path)
        name = f"sha256:{hash_of_file(os.path.abspath(path))}"
        if settled and self.get(key) != name:
            self.put(key, name)
        return name

    def get(self, key: str) -> str | None:
        """A cached text (hashes of files and data sets, classes of examples), or None."""
        text = _utf8(key)
        data = self._read(self.path("cache", hashlib.sha256(text).hexdigest()))
        body = None if data is None else unsealed(data)
        return None if body is None else _cached(body, text.decode())

    def put(self, key: str, value: str) -> None:
        """Cache a text. A store that cannot be written has no cache; that is no error."""
        data = sealed(orjson.dumps({"key": _utf8(key).decode(), "value": value}))
        with contextlib.suppress(RbError):
            self._write("cache", hashlib.sha256(_utf8(key)).hexdigest(), data, sync=False)

    @contextlib.contextmanager
    def claimed(
        self, key: str, done: Callable[[], bool], check_cancelled: Callable[[], None]
    ) -> Iterator[None]:
        """Hold the lease of a unit of work that others are not to do meanwhile, or return without it once
        another has `done` it. A store that cannot be written has no leases: the work is then done without.
        """
        path, held = self.path("leases", key), None
        with contextlib.suppress(OSError):
            held = None if path is None else lease.wait(path, check_cancelled, done)
        try:
            yield
        finally:
            if held is not None:
                held.release()

    def path(self, kind: str, name: str) -> Path | None:
        """The path of a file of that kind and name, existing or not; None without a store."""
        # Folders of two digits: 100,000 results are some 400 files in each of 256 folders.
        if self.folder is None:
            return None
        self.check()
        return self.folder.joinpath(kind, name[:2], name)

    def files(self, kind: str) -> Iterator[Path]:
        """All files of one kind, in the order of their names."""
        if self.folder is None:
            return
        self.check()
        for folder in sorted(self.folder.glob(f"{kind}/??")):
            yield from sorted(path for path in folder.iterdir() if not path.name.startswith("."))

    def _unforced(self, kind: str, name: str) -> bytes | None:
        """A file that may be used in place of the work, as it is stored."""
        return None if self.force and (kind, name) not in self._own else self._read(self.path(kind, name))

    def _unsealed(self, kind: str, key: str) -> bytes | None:
        """The content of a file that may be used in place of the work, and that was written for that key."""
        data = self._unforced(kind, key)
        body = None if data is None else unsealed(data, key)
        if data is not None and body is None:
            self._found_damaged(kind, key)
        return body

    def _found_damaged(self, kind: str, name: str) -> None:
        path = self.path(kind, name)
        if path is not None and path not in self.damaged:  # read it several times before it is replaced
            self.damaged.append(path)

    def _read(self, path: Path | None) -> bytes | None:
        """The bytes of a file; None if it is absent, or something else is in its place."""
        try:
            return None if path is None else read_plain(path, follow=False)
        except (FileNotFoundError, NotADirectoryError, NoPlainFile):
            return None
        except OSError as error:
            raise RbError(
                f"Cannot read {path}: {error.strerror}. Check the store's permissions, or name another"
                " with --store."
            ) from error

    def _try_to_write(self, kind: str, name: str, data: bytes, *, sync: bool = True) -> None:
        """Write a file that can be computed again: on a full disk the result must still be output."""
        try:
            self._write(kind, name, data, sync=sync)
        except RbError as error:
            self.trouble = str(error)

    def _write(self, kind: str, name: str, data: bytes, *, sync: bool = True) -> None:
        path = self.path(kind, name)
        if path is None or self.folder is None:
            return
        self.mark()
        write_whole(path, data, sync=sync)
        if self.force:
            self._own.add((kind, name))

    def mark(self) -> None:
        """Write the format of this folder, if that is missing."""
        if self.folder is None:
            return
        marker = self.folder / "format.json"
        if not marker.exists():
            write_whole(marker, MARKER)

    def check(self) -> None:
        """Raise RbError if the folder is a store of another format, or no folder."""
        if self._checked or self.folder is None:
            return
        if self.folder.exists() and not self.folder.is_dir():
            raise RbError(f"The store {self.folder} is a file. Name a folder with --store (or RB_STORE).")
        data = self._read(self.folder / "format.json")
        try:
            version = FORMAT if data is None else orjson.loads(data)["format"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            version = "unreadable"
        if version != FORMAT:
            raise RbError(
                f"The store {self.folder} has format {version}; this rbtools reads format {FORMAT}. Use the"
                " rbtools that wrote it, or name another folder with --store."
            )
        self._checked = True


def object_name(data: bytes) -> str:
    """The name of a checkpoint: "sha256:" and the hash of its bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _file_key(path: str | os.PathLike[str]) -> tuple[str, bool]:
    """The key of a file's hash in the cache, and whether it is valid without reading the file. Raises
    OSError."""
    absolute = os.path.abspath(path)
    text, settled = checksum.stamp_of(absolute)
    return f"{FILE}{text}:{absolute}", settled


def is_current(key: str) -> bool:
    """Whether a key of the cache can still be used: not if its file is gone or has changed."""
    if not key.startswith(FILE):
        return True
    try:
        return _file_key(key.removeprefix(FILE).partition(":")[2])[0] == key
    except (OSError, ValueError):
        return False


def _cached(body: bytes, key: str) -> str | None:
    """The text in a file of the cache; None where it is that of another key, or has none."""
    try:
        entry = orjson.loads(body)
        value = entry["value"] if entry["key"] == key else None
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return None
    return value if isinstance(value, str) else None


def _utf8(text: str) -> bytes:
    """A text as bytes, also with file names that are not valid Unicode."""
    return text.encode("utf-8", "backslashreplace")
