"""A part of a store as one archive, to be imported into another store.

The archive is a tar file with the file names of the store: unpacked, it is a store. It begins with the
store's `format.json` and ends with the number of its files, so that truncation is detected.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple, cast

import orjson

from rbtools.errors import RbError
from rbtools.plain_files import opened
from rbtools.store import listing, upkeep
from rbtools.store.content_store import FORMAT, MARKER, Store
from rbtools.store.files import written_whole

FIRST, LAST = "format.json", "complete.json"
_MEMBER = re.compile(r"(objects|results|outcomes|state)/([0-9a-f]{2})/(\2[0-9a-f]{62})")
_CHUNK = 1 << 20
_SMALL = 1 << 16
# The most bytes of a header that only extends the next one, for example by a long name. The reader allocates
# as many bytes as the header claims; in Python before 3.11.10 and 3.12.6 it takes time quadratic in their
# number.
MOST_BYTES = 8192
_PAX = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_EXTENDS = (*_PAX, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_MOST_ENDS = 1000


class Cut(RbError):
    """The archive ends early, or is damaged; files imported before that stay."""


class ArchiveMember(NamedTuple):
    """A file of the store, and its kind."""

    kind: str
    path: str


def everything(store: Store, *, weights: bool) -> Iterator[ArchiveMember]:
    """All files to export; without `weights` no checkpoints and no unfinished trainings."""
    for kind in ("results", "outcomes", *(("objects", "state") if weights else ())):
        for path in listing.paths(store, kind):
            yield ArchiveMember(kind, path)


def belonging(
    store: Store, results: Iterable[listing.ListedResult], *, weights: bool
) -> Iterator[ArchiveMember]:
    """Some results with their outcomes per example and, with `weights`, the trained checkpoints."""
    seen: set[str] = set()
    for path, record in results:
        yield ArchiveMember("results", path)
        stored = {} if record is None else record["stored"]
        wanted = [("outcomes", stored.get("outcomes"))]
        if weights and record is not None:
            wanted += [("objects", listing.checkpoint_of(record)), ("objects", listing.best_of(record))]
        for kind, name in wanted:
            file = store.path(kind, str(name)) if listing.is_name(name) else None
            if file is not None and str(file) not in seen:
                seen.add(str(file))
                yield ArchiveMember(kind, str(file))


class Written(NamedTuple):
    """A file that was written into an archive, or why it was left out."""

    bytes: int
    problem: str | None


def put(files: Iterable[ArchiveMember], stream: IO[bytes]) -> Iterator[Written]:
    """Write files into an archive, each checked first. Raises OSError if it cannot be written."""
    count = 0
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, FIRST, MARKER)
        for kind, path in files:
            try:
                wrong = upkeep.problem(kind, path)
                if wrong is None:
                    size = _add_file(tar, kind, path)
            except FileNotFoundError:  # the checkpoint was removed
                continue
            count += wrong is None
            yield Written(0 if wrong else size, f"{path} is damaged: {wrong}" if wrong else None)
        _add(tar, LAST, orjson.dumps({"files": count}))


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def _add_file(tar: tarfile.TarFile, kind: str, path: str) -> int:
    with opened(path) as stream:
        status = os.fstat(stream.fileno())
        name = os.path.basename(path)
        entry = tarfile.TarInfo(f"{kind}/{name[:2]}/{name}")
        entry.size, entry.mtime = status.st_size, int(status.st_mtime)
        tar.addfile(entry, stream)
    tar.members = []  # type: ignore[attr-defined]  # it would keep an object for every file
    return entry.size


class Taken(NamedTuple):
    """An entry that was imported, that was already there (`new` is False), or that was refused, and why."""

    name: str
    bytes: int
    new: bool
    problem: str | None = None


def take(store: Store, stream: IO[bytes], name: str) -> Iterator[Taken]:
    """Import the entries of an archive into the store; undamaged ones that it has already are kept.

    Every entry is checked before it appears under its name. Links, names that lead elsewhere and files that
    no store has are refused. Raises RbError for a file that is no archive or has another format, Cut if it
    ends early or is damaged.
    """
    count, promised = 0, None
    try:
        with tarfile.open(fileobj=ending(stream), mode="r|*", tarinfo=TarHeader) as tar:
            _check_first(tar, name)
            while (entry := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # as above
                if entry.name == LAST and entry.isreg() and entry.size < _SMALL:
                    promised = _json(tar, entry).get("files")
                    continue
                count += 1
                yield _take_one(store, tar, entry)
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, OverflowError) as error:
        raise Cut(f"The archive {name} is damaged or ends early: {error}.") from error
    if promised is None:
        raise Cut(f"The archive {name} ends early: it does not say how many files it holds.")
    if promised != count:
        raise Cut(f"The archive {name} is damaged: it holds {count} files and says {promised}.")


def _check_first(tar: tarfile.TarFile, name: str) -> None:
    entry = tar.next()
    is_first = entry is not None and entry.name == FIRST and entry.isreg() and entry.size < _SMALL
    version = _json(tar, entry).get("format") if is_first and entry is not None else None
    if version is None:
        raise RbError(f"{name} is no archive of a store. Expected one that rb-store export wrote.")
    if version != FORMAT:
        raise RbError(
            f"The archive {name} has format {version}; this rbtools reads format {FORMAT}. Use the rbtools"
            " that wrote it."
        )


def _json(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> dict[str, object]:
    stream = tar.extractfile(entry)
    with contextlib.suppress(orjson.JSONDecodeError):
        content = orjson.loads(stream.read() if stream is not None else b"")
        return content if isinstance(content, dict) else {}
    return {}


def _take_one(store: Store, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> Taken:
    match = _MEMBER.fullmatch(entry.name)
    if match is None or entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or entry.issparse():
        return Taken(entry.name, 0, False, "it is no file of a store")
    kind, _, name = match.groups()
    path = store.path(kind, name)
    stream = tar.extractfile(entry)
    if path is None or stream is None:
        return Taken(entry.name, 0, False, "there is no store to import it into")
    with contextlib.suppress(FileNotFoundError):
        if upkeep.problem(kind, str(path)) is None:
            return Taken(entry.name, 0, False)
    store.mark()
    try:
        # Only objects are later trusted without being read, so only they are synced to the disk.
        with written_whole(path, sync=kind == "objects") as aside:
            while chunk := stream.read(_CHUNK):
                aside.write(chunk)
            aside.flush()
            if wrong := upkeep.problem(kind, aside.name, path.name):
                raise _Refused(wrong)
            if kind == "results":  # when it was computed
                with contextlib.suppress(OverflowError, ValueError):
                    os.utime(aside.name, (entry.mtime, entry.mtime))
    except _Refused as wrong:
        return Taken(entry.name, 0, False, str(wrong))
    return Taken(entry.name, entry.size, True)


class _Refused(Exception):
    """The content of an entry does not fit its name."""


class TarHeader(tarfile.TarInfo):
    """A header; one of more than `MOST_BYTES` that extends the next raises tarfile.ReadError."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: Any, errors: str) -> TarHeader:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _EXTENDS and header.size > MOST_BYTES:
            raise tarfile.ReadError(f"a header claims {header.size} bytes of names")
        return header


def ending(stream: IO[bytes]) -> IO[bytes]:
    """The stream for tarfile's mode `r|`, which reads on at the end for as long as a header claims."""
    return cast("IO[bytes]", _Ending(stream))


class _Ending:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._ends = stream, 0

    def read(self, size: int = -1) -> bytes:
        """Some bytes. Raises EOFError after repeated reads at the end."""
        data = self._stream.read(size)
        self._ends += not data
        if self._ends > _MOST_ENDS:
            raise EOFError("a file in it is cut off")
        return data
