"""Atomic writing: a file appears with its complete content or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from rbtools.errors import RbError, UsageError

ASIDE = ".aside-"
STANDARD_OUTPUT = 1  # the descriptor of the command's standard output, which cli/output.py moves
_HINT = "Free some space, or name another folder with --store (or RB_STORE)."


def write_whole(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write to a temporary file, sync it, and rename it. Readers see either the old or the new content.

    Without `sync`, a power cut may leave an empty file; omit `sync` only for files that are checked when they
    are read and are easy to compute again. Raises RbError if the folder cannot be written.
    """
    with written_whole(path, sync=sync) as stream:
        stream.write(data)


@contextlib.contextmanager
def written_whole(path: Path, *, sync: bool = True, hint: str = _HINT) -> Iterator[IO[bytes]]:
    """Yields a stream. Its content appears at `path` if the block ends without an exception. The `name` of
    the stream is the name of the temporary file. Raises RbError, with the system's reason and the hint, if
    the file cannot be written."""
    aside = f"{path.parent}/{ASIDE}{uuid.uuid4().hex}"
    try:
        os.makedirs(path.parent, exist_ok=True)
        with open(aside, "xb") as stream:
            yield stream
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
        os.replace(aside, path)
        if sync:
            _sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        if isinstance(error, OSError):
            raise cannot_write(path, error, hint) from error
        raise


@contextlib.contextmanager
def user_output(path: Path, *, hint: str) -> Iterator[IO[bytes]]:
    """Yields a stream for an output file that the user named. A plain file, or the target of a link, is
    replaced as by `written_whole`. If the file is a device or a pipe, the content is written to it directly.
    A name of standard output, such as /dev/stdout, means the command's own, even while records go to a copy.

    Raises RbError, with the system's reason and the hint, if the file cannot be written.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        status = None
    except OSError as error:
        raise cannot_write(path, error, hint) from error
    if status is None or (stat.S_ISREG(status.st_mode) and not _is_descriptor(path)):
        with written_whole(Path(os.path.realpath(path)), hint=hint) as stream:
            yield stream
        return
    try:
        # Append, because /dev/stdout may be a file to which others write.
        with open(os.open(_moved(path), os.O_WRONLY | os.O_APPEND | os.O_NOCTTY), "wb") as stream:
            yield stream
    except OSError as error:
        raise cannot_write(path, error, hint) from error


def _moved(path: Path) -> Path:
    """The name of the descriptor that is now standard output, if the path names standard output."""
    folder = os.path.realpath(path.parent)
    ours = folder == os.path.realpath("/dev/fd") and path.name == "1"
    return Path(f"/dev/fd/{STANDARD_OUTPUT}") if ours or f"{folder}/{path.name}" == "/dev/stdout" else path


def _is_descriptor(path: Path) -> bool:
    """Whether a path is another name of an open file, such as /dev/stdout or /dev/fd/3."""
    folder = os.path.realpath(path.parent)
    return folder == "/dev" or folder.startswith("/proc/")


def write_all(target: Path, documents: Iterable[tuple[str, bytes]], *, hint: str = _HINT) -> None:
    """Write files, given as (path relative to `target`, content); an empty path means `target` itself. Raises
    RbError if a file cannot be written."""
    for below, content in documents:
        path = target / below if below else target
        if path.is_dir():
            raise RbError(f"{path} is a folder. Expected the name of a file to write.")
        with user_output(path, hint=hint) as stream:
            stream.write(content)


def check_folder_of(path: Path) -> None:
    """Raise UsageError if the folder of a file that the user named does not exist. The folder is not created,
    because its name is probably mistyped."""
    folder = path.parent
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(f"Cannot write {path}: {folder} {problem}. Name a file in an existing folder.")


def check_writable(folder: Path) -> None:
    """Raise RbError if no file can be written in this folder. Call this before long work begins."""
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(b"\0")
    except OSError as error:
        raise cannot_write(folder, error) from error


def _sync_folder(folder: Path) -> None:
    """Sync the folder, so that the new name survives a power cut, if the file system supports this."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def cannot_write(path: Path, error: OSError, hint: str = _HINT) -> RbError:
    return RbError(f"Cannot write {path}: {error.strerror or error}. {hint}")
