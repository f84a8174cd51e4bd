"""A store for a machine that cannot access the real one.

It starts empty. A request for a file that it lacks raises `NeedFiles`: the owner of the real store sends the
files, and the work starts again. Written files are sent back. Files are sent as they are in a store, and
checked against their checksum at both ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rbtools.errors import RbError, shown
from rbtools.plain_files import read_plain
from rbtools.store.checksum import described, unsealed
from rbtools.store.content_store import KINDS, Store
from rbtools.store.files import cannot_write, write_whole

File = tuple[str, str]  # kind and name, as in `Store.path`
THERE = "there"  # the kind of a request that asks only whether an object exists
_WHILE_AT_WORK = ("outcomes", "state")


class NeedFiles(BaseException):
    """The work needs these files before it can go on. Not an Exception, so that no handler catches it."""

    def __init__(self, files: set[File]) -> None:
        self.files = files


def is_name(name: str) -> bool:
    """Whether this is a hash in hexadecimal, like all names in a store."""
    return re.fullmatch("[0-9a-f]{64}", name) is not None


def is_whole(kind: str, name: str, data: bytes) -> bool:
    """Whether this is the undamaged content of a file of that kind and name."""
    if kind not in KINDS or not is_name(name):
        return False
    if kind == "objects":
        return hashlib.sha256(data).hexdigest() == name
    return (described if kind == "results" else unsealed)(data, name) is not None


def export_file(store: Store, kind: str, name: str) -> bytes | None:
    """The content of a file of the store, to be sent elsewhere; None if it is missing or damaged."""
    if kind == THERE:
        return b"" if store.has_object(f"sha256:{name}") else None
    path = store.path(kind, name)
    try:
        data = None if path is None else read_plain(path, follow=False)
    except OSError:
        return None
    if data is not None and not is_whole(kind, name, data):
        if path is not None and path not in store.damaged:
            store.damaged.append(path)
        return None
    return data


def import_file(store: Store, kind: str, name: str, data: bytes) -> None:
    """Store a file that was written elsewhere. Raises RbError if it is damaged or cannot be written."""
    if not is_whole(kind, name, data):
        raise RbError(
            f"A file of {kind} arrived damaged ({shown(name, 12)}): its content does not fit its hash."
        )
    path = store.path(kind, name)
    if path is not None:
        store.mark()
        write_whole(path, data)


class RemoteStoreProxy(Store):
    """The store of a process on another machine; `home` names the real one, `folder` is its own.

    The folder exists from `begin` to `end` of a piece of work. `post(kind, name, content)` sends at once what
    an interruption should not lose: the state of a training, and outcomes.
    """

    def __init__(self, folder: Path, home: Path, *, force: bool = False) -> None:
        super().__init__(folder, force=force)
        self.home = home
        self._known: dict[File, bool] = {}
        self._touched: set[File] = set()
        self._written: set[File] = set()
        self.dropped: list[str] = []
        self._post: Callable[[str, str, bytes], None] = _nowhere

    def begin(self, known: Mapping[File, bytes | None], post: Callable[[str, str, bytes], None]) -> None:
        """Start a piece of work: `known` has the files requested from the real store, None for missing
        ones."""
        assert self.folder is not None
        self.end()
        try:
            self.folder.mkdir(mode=0o700)
        except OSError as error:
            raise cannot_write(self.folder, error) from error
        self._post = _nowhere
        for (kind, name), data in known.items():
            if data is not None and kind in KINDS:
                import_file(self, kind, name, data)
        self._known = {file: data is not None for file, data in known.items()}
        self._touched, self._written, self.dropped, self._post = set(), set(), [], post

    def end(self) -> None:
        """Remove the folder. Cached texts about data sets stay in memory."""
        assert self.folder is not None
        shutil.rmtree(self.folder, ignore_errors=True)

    def written(self) -> dict[File, bytes]:
        """The files that the work has written, without states, which were posted."""
        files = {}
        for kind, name in self._written:
            path = self.path(kind, name)
            if path is not None and kind != "state":
                files[kind, name] = read_plain(path)
        return files

    def path(self, kind: str, name: str) -> Path | None:
        if kind in KINDS:
            self._touched.add((kind, name))
        return super().path(kind, name)

    @contextlib.contextmanager
    def claimed(
        self,
        keys: Sequence[str],
        done: Callable[[], bool],
        check_cancelled: Callable[[], None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> Iterator[bool]:
        """Request all files that were missing, before anything is computed. There are no leases here."""
        if not self.force:
            self._touched |= {(kind, key) for kind in _WHILE_AT_WORK for key in keys}
        self._ask_for({file for file in self._touched if file[0] != "objects"})
        yield not done()

    def object(self, name: str) -> Path:
        """The local path of the object of that name. Raises RbError if the real store has none."""
        self._ask_for({("objects", name.removeprefix("sha256:"))})
        try:
            return super().object(name)
        except RbError as error:
            raise RbError(str(error).replace(str(self.folder), str(self.home))) from None

    def has_object(self, name: str) -> bool:
        digits = name.removeprefix("sha256:")
        if ("objects", digits) in self._written:
            return True
        self._ask_for({(THERE, digits)})
        return self._known[THERE, digits]

    def drop_state(self, key: str) -> None:
        super().drop_state(key)
        self.dropped.append(key)

    def _ask_for(self, files: set[File]) -> None:
        missing = files - self._known.keys() - self._written
        if missing:
            raise NeedFiles(missing)

    def _write(self, kind: str, name: str, data: bytes, *, sync: bool = True) -> None:
        super()._write(kind, name, data, sync=sync)
        if kind in KINDS:
            self._written.add((kind, name))
        if kind in _WHILE_AT_WORK:
            self._post(kind, name, data)


def _nowhere(kind: str, name: str, data: bytes) -> None:
    return None
