"""Content-addressed storage of results, checkpoints and the state of unfinished work.

A key is the SHA-256 of a canonical JSON description of everything that determines a result. The store's
folder has this layout, in which two hexadecimal digits name a folder:

    format.json            the version of this layout
    objects/ab/abcd...     checkpoints, named by the SHA-256 of their bytes
    results/ab/abcd...     {"what": description, "value": result, "about": words}, named by the key
    outcomes/ab/abcd...    the outcomes of the single examples of an evaluation, named by the key
    state/ab/abcd...       an unfinished training run, or a part of an evaluation, named by the key
    answers/ab/abcd...     the answers of a model that can only be queried, an SQLite file named by the model
    leases/ab/abcd...      leases of work in progress, which may be deleted if no process works
    cache/ab/abcd...       {"key": ..., "value": ...}, hashes of files by path and stamp (`checksum`), and
                           classes of lists of examples, which may be deleted

All files except objects and answers end in a line with the SHA-256 of the bytes before it; for outcomes
and states, the hash covers their key followed by these bytes. A file counts as absent, and is written again,
if this hash or the name of the file does not match the content, or if the file is a link or no plain file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from rbtools.errors import RbError
from rbtools.plain_files import NoPlainFile, is_plain, read_plain
from rbtools.store import checksum, lease
from rbtools.store.checksum import (
    DamagedFile,
    as_json,
    canonical,
    content,
    hash_of_file,
    hash_of_text,
    sealed,
)
from rbtools.store.files import check_writable, write_whole

FORMAT = 1
KINDS = ("results", "outcomes", "objects", "state", "answers", "cache", "leases")
FILE = "file:"
_MARKER = canonical({"format": FORMAT, "what": "rbtools store"})
_JOURNAL = "-journal"  # the end of the name of SQLite's file beside a file that is being written
_FOLDER, _NAME = re.compile("[0-9a-f]{2}"), re.compile("[0-9a-f]{64}")


class Store:
    """Finished work in one folder. With `folder=None`, nothing is stored or found.

    The folder is created at the first write. With `force`, only results that this object has written are
    found. `found` and `computed` count units of work. `damaged` lists files whose content does not match
    their checksum or their name. `trouble` is the reason why a file could not be stored. Raises RbError if
    `folder` has another format or is not a folder.
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

    # --- units of work --------------------------------------------------------------------------------

    def result(self, key: str) -> Any | None:
        return (self._finished("results", key) or {}).get("value")

    def keep_result(
        self, key: str, what: Mapping[str, Any], value: object, about: Mapping[str, Any] | None = None
    ) -> None:
        """Store a finished result with the description `what`, whose hash is the key. `about` contains
        information for `rb-store ls` that is not part of the key, such as names."""
        result = {"what": what, "value": value, **({} if about is None else {"about": about})}
        self._keep("results", key, sealed(as_json(result)))

    def outcomes(self, key: str) -> bytes | None:
        return self._finished("outcomes", key)

    def keep_outcomes(self, key: str, data: bytes) -> None:
        self._keep("outcomes", key, sealed(data, key))

    def state(self, key: str) -> bytes | None:
        """The state of an interrupted training run or a part of an evaluation, or None."""
        return self._finished("state", key)

    def keep_state(self, key: str, data: bytes, *, sync: bool = True) -> None:
        """Store what `state` returns. Without `sync`, the data may be lost in a power cut."""
        self._keep("state", key, sealed(data, key), sync=sync)

    def drop_state(self, key: str) -> None:
        """Remove the state of a finished training run, or a part of a finished evaluation."""
        if path := self.path("state", key):
            with contextlib.suppress(OSError):
                path.unlink()

    def _finished(self, kind: str, key: str) -> Any | None:
        return None if self.force and (kind, key) not in self._own else self.read(kind, key)

    def _keep(self, kind: str, name: str, data: bytes, *, sync: bool = True) -> None:
        """Write a file. An error is recorded in `trouble` and not raised, because results must be output even
        if the disk is full."""
        try:
            self._write(kind, name, data, sync=sync)
        except RbError as error:
            self.trouble = str(error)

    # --- checkpoints ----------------------------------------------------------------------------------

    def check_writable(self) -> None:
        """Raise RbError if a checkpoint cannot be stored. Training runs call this before they start."""
        if self.folder is None:
            raise RbError("Training needs a store for the checkpoint. Leave out --store none.")
        check_writable(self.folder / "objects")

    def keep_object(self, data: bytes) -> str:
        """Store a checkpoint, and return its name "sha256:..."."""
        name = object_name(data)
        if self.folder is None:
            self.check_writable()
        elif not self.has_object(name):
            self._write("objects", name.removeprefix("sha256:"), data)
        return name

    def object(self, name: str) -> Path:
        """The file of the checkpoint called "sha256:...". Raises RbError if the file is missing, or if its
        content does not match its name."""
        path = self.path("objects", name.removeprefix("sha256:"))
        if self.folder is not None and not self.folder.is_dir():
            raise RbError(
                f"The store {self.folder}, which should contain the record's checkpoint, does not exist. Name"
                " the store that contains it with --store (or RB_STORE)."
            )
        if path is None or not is_plain(path):
            raise RbError(
                f"The checkpoint {name[:19]}... is not in the store"
                f" {self.folder if self.folder else '(--store none)'}. Name the store that contains it"
                " with --store (or RB_STORE), or train it again with rb-train."
            )
        if self.file_hash(path) != name:
            self._found_damaged(path)
            raise RbError(
                f"The checkpoint {path} is damaged: its content does not match its name. Train it again with"
                " rb-train (the damaged file is then replaced)."
            )
        return path

    def has_object(self, name: str) -> bool:
        try:
            self.object(str(name))
        except RbError:
            return False
        return True

    def answers_file(self, name: str) -> Path | None:
        """The file for the answers of a model, whose folder is created. Returns None without a store."""
        path = self.path("answers", name)
        if path is not None:
            self._mark()
            check_writable(path.parent)
        return path

    # --- the cache: maps texts to texts ---------------------------------------------------------------

    def file_hash(self, path: str | os.PathLike[str]) -> str:
        """The name "sha256:..." of a file's bytes. The file is read once for each path and settled stamp."""
        key, settled = _file_key(path)
        return (self.get(key) if settled else None) or self.hash_now(path)

    def hash_now(self, path: str | os.PathLike[str]) -> str:
        """Like `file_hash`, but always read the file: a disk error may change the bytes but not the stamp."""
        key, settled = _file_key(path)
        name = f"sha256:{hash_of_file(os.path.abspath(path))}"
        if settled and self.get(key) != name:
            self.put(key, name)
        return name

    def get(self, key: str) -> str | None:
        """A cached string, or None."""
        value = (self.read("cache", hash_of_text(key)) or {}).get("value")
        return value if isinstance(value, str) else None

    def put(self, key: str, value: str) -> None:
        """Cache a string. If the store cannot be written, nothing is cached and no error is raised."""
        text = key.encode("utf-8", "backslashreplace").decode()
        with contextlib.suppress(RbError):
            data = sealed(orjson.dumps({"key": text, "value": value}))
            self._write("cache", hash_of_text(key), data, sync=False)

    # --- claims ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def claimed(
        self, name: str, done: Callable[[], bool], check_cancelled: Callable[[], None]
    ) -> Iterator[lease.Lease | None]:
        """Hold the lease of a unit of work, so that no other process does the same work at the same time. The
        block starts without the lease as soon as `done` returns True because another process has finished the
        work, or if the store cannot be written."""
        path, held = self.path("leases", name), None
        with contextlib.suppress(OSError):
            held = None if path is None else lease.wait(path, check_cancelled, done)
        try:
            yield held
        finally:
            if held is not None:
                held.release()

    @contextlib.contextmanager
    def working(self) -> Iterator[str | None]:
        """Hold a lease that shows `rb-store gc` that this process uses the store's files. Yields the name of
        the lease, or None if there is no lease."""
        name = checksum.digest({"work": uuid.uuid4().hex})
        # `gc` takes each lease for a moment, to see whether it is free.
        with self.claimed(name, lambda: False, lambda: None) as held:
            yield None if held is None else name

    # --- files ----------------------------------------------------------------------------------------

    def path(self, kind: str, name: str) -> Path | None:
        """The path of a file with this kind and name, which may be missing. Returns None without a store."""
        # Folders named by two digits: 100,000 results are about 400 files in each of 256 folders.
        if self.folder is None:
            return None
        self.check()
        return self.folder.joinpath(kind, name[:2], name)

    def files(self, kind: str, beginning: str = "") -> Iterator[Path]:
        """The files of one kind whose names begin with `beginning`, sorted by name."""
        return (path for path, own in self.walk(kind, beginning) if own)

    def walk(self, kind: str, beginning: str = "") -> Iterator[tuple[Path, bool]]:
        """Yields each path in the folders of one kind, and whether its name is that of a stored file. Links
        to folders are not followed, because they may lead to the user's own files."""
        if self.folder is None:
            return
        self.check()
        for part in _listed(self.folder / kind):
            folder = self.folder / kind / part
            if not _FOLDER.fullmatch(part) or folder.is_symlink() or not folder.is_dir():
                yield folder, False
            elif part.startswith(beginning[:2]):
                for name in _listed(folder):
                    if name.startswith(beginning):
                        own = name.removesuffix(_JOURNAL) if kind == "answers" else name
                        yield folder / name, _NAME.fullmatch(own) is not None

    def read(self, kind: str, name: str) -> Any | None:
        """The content of a file (`checksum.content`), or None if the file is absent or damaged."""
        path = self.path(kind, name)
        data = None if path is None else _bytes(path)
        if path is None or data is None:
            return None
        try:
            return content(kind, name, data)
        except DamagedFile:
            self._found_damaged(path)
            return None

    def _found_damaged(self, path: Path) -> None:
        if path not in self.damaged:  # it may be read several times before it is replaced
            self.damaged.append(path)

    def _write(self, kind: str, name: str, data: bytes, *, sync: bool = True) -> None:
        path = self.path(kind, name)
        if path is None:
            return
        self._mark()
        write_whole(path, data, sync=sync)
        if self.force:
            self._own.add((kind, name))

    def _mark(self) -> None:
        """Write the version of the layout, if this is the first file."""
        if self.folder is not None and not (self.folder / "format.json").exists():
            write_whole(self.folder / "format.json", _MARKER)

    def check(self) -> None:
        """Raise RbError if the folder is a store in another format, or if the path is not a folder."""
        if self._checked or self.folder is None:
            return
        if self.folder.exists() and not self.folder.is_dir():
            raise RbError(f"The store {self.folder} is a file. Name a folder with --store (or RB_STORE).")
        data = _bytes(self.folder / "format.json")
        try:
            version = FORMAT if data is None else orjson.loads(data)["format"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            version = "unreadable"
        if version != FORMAT:
            raise RbError(
                f"The store {self.folder} has format {version}, but this version of rbtools reads format"
                f" {FORMAT}. Use the version that wrote it, or name another folder with --store."
            )
        self._checked = True

    def existing(self) -> Path:
        """The folder of an existing store. Raises RbError if there is no store."""
        if self.folder is None:
            raise RbError("No store is given. Name one with --store (or RB_STORE).")
        if not self.folder.exists():
            raise RbError(
                f"The store {self.folder} does not exist. It is created with the first result. Name another"
                " store with --store (or RB_STORE)."
            )
        self.check()
        if not (self.folder / "format.json").exists() and any(self.folder.iterdir()):
            raise RbError(
                f"The folder {self.folder} is not a store: it has no format.json. Name a store with --store"
                " (or RB_STORE)."
            )
        return self.folder


def object_name(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _file_key(path: str | os.PathLike[str]) -> tuple[str, bool]:
    """The key of a file's cached hash, and whether the cached hash is still valid. Raises OSError."""
    absolute = os.path.abspath(path)
    text, settled = checksum.stamp_of(absolute)
    return f"{FILE}{text}:{absolute}", settled


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _bytes(path: Path) -> bytes | None:
    """The bytes of a file, or None if the file is absent or not a plain file."""
    try:
        return read_plain(path, follow=False)
    except (FileNotFoundError, NotADirectoryError, NoPlainFile):
        return None
    except OSError as error:
        raise RbError(
            f"Cannot read {path}: {error.strerror}. Check the store's permissions, or name another with"
            " --store."
        ) from error
