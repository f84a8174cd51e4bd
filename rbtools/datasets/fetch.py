"""Downloads, on request only: written to a temporary file, checked, and then renamed."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import uuid
import zlib
from collections.abc import Callable, Generator
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO

from rbtools.datasets.base import Remote, damaged, is_html
from rbtools.datasets.content_hash import md5_of
from rbtools.errors import RbError
from rbtools.plain_files import plain
from rbtools.store import lease
from rbtools.store.archive import TarHeader
from rbtools.store.files import ASIDE, is_abandoned, written_whole

CHUNK = 1 << 20
TIMEOUT_SECONDS = 60.0
HINT = "Free some space, or name another folder with --data-dir (or RB_DATA)."


def bring(
    remote: Remote, home: Path, say: Callable[[str], None], check_cancelled: Callable[[], None]
) -> None:
    """Download a file into the folder of data sets, check it, and unpack it if necessary.

    Of several processes one downloads and the others wait. Raises RbError where no address answers with
    the expected file; other content is removed.
    """
    target = home / remote.name
    result = home / remote.into if remote.into else target
    there = target.exists()  # a damaged file is replaced

    def done() -> bool:
        return result.exists() and not there

    try:
        held = lease.wait(home / f".downloading-{remote.name}", check_cancelled, done)
    except OSError as error:
        raise RbError(f"Cannot write to {home}: {error.strerror}. {HINT}") from None
    if held is None:
        return
    try:
        if remote.into and result.exists():  # another process has removed it already
            return
        _clear(home)
        if not (there and (remote.md5 is None or md5_of(target) == remote.md5)):
            _from_any(remote, target, say, check_cancelled)
        if remote.into:
            say(f"unpacking {target}")
            unpack(target, home / remote.into, check_cancelled)
    finally:
        held.release()


def _clear(home: Path) -> None:
    """Remove the partial files of killed processes."""
    for path in home.glob(f"{ASIDE}*"):
        with contextlib.suppress(OSError):
            if is_abandoned(path, time.time()):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _from_any(
    remote: Remote, target: Path, say: Callable[[str], None], check_cancelled: Callable[[], None]
) -> None:
    """Try the addresses in turn; of several failures the last is raised."""
    for number, url in enumerate(remote.urls, 1):
        try:
            with written_whole(target, hint=HINT) as out:
                _fetch(url, remote, out, say, check_cancelled)
            return
        except RbError:
            if number == len(remote.urls):
                raise


def _fetch(
    url: str, remote: Remote, out: IO[bytes], say: Callable[[str], None], check_cancelled: Callable[[], None]
) -> None:
    """Copy the content of an address. Raises RbError where it is not the published one."""
    total, received, start = hashlib.md5(usedforsecurity=False), 0, b""
    with contextlib.closing(_chunks(url)) as chunks:
        for chunk, length in chunks:
            start = start or chunk[:512]
            total.update(chunk)
            out.write(chunk)
            received += len(chunk)
            total_mb = "" if length is None else f"/{length / 1e6:.0f}"
            say(f"downloading {remote.name}  {received / 1e6:.0f}{total_mb} MB")
            check_cancelled()
    if is_html(start):
        raise RbError(
            f"{url} answered with a web page, not with {remote.name}: an HTML page saved as data would be"
            " useless. A proxy or a log-in may stand in between; get the file yourself, and put it where"
            " --data-dir (or RB_DATA) says."
        )
    if length is not None and received != length:
        raise RbError(
            f"The download of {url} broke off after {received} of {length} bytes. Try again; nothing is kept."
        )
    if remote.md5 is not None and total.hexdigest() != remote.md5:
        raise RbError(
            f"What {url} answered with is not the file that was published: its MD5 is {total.hexdigest()},"
            f" expected {remote.md5}. Nothing is kept. Try again, or get the file elsewhere."
        )


def _chunks(url: str) -> Generator[tuple[bytes, int | None], None, None]:
    """The content of an address in chunks, each with the announced total length."""
    request = urllib.request.Request(url, headers={"User-Agent": "rbtools"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            announced = answer.headers.get("Content-Length")
            length = int(announced) if announced else None
            yield b"", length
            while chunk := answer.read(CHUNK):
                yield chunk, length
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # the error holds the connection
        raise RbError(
            f"Cannot download {url}: {reason}. Check the network (and https_proxy, where there is a proxy),"
            " or get the file yourself and put it where --data-dir (or RB_DATA) says."
        ) from None


def unpack(archive: Path, target: Path, check_cancelled: Callable[[], None]) -> None:
    """Unpack a tar archive so that the folder `target` is complete or absent.

    If the whole archive is in a folder of that name, this folder becomes `target`. Only files and folders
    below it are unpacked. Raises RbError if the archive is damaged or the disk is full.
    """
    aside = target.with_name(f"{ASIDE}{lease.label()}-{uuid.uuid4().hex}")
    try:
        with tarfile.open(plain(archive), tarinfo=TarHeader) as tar:
            for member in tar:
                _take(tar, member, aside)
                check_cancelled()
            # tarfile takes a damaged header for the end; gzip's checksum at its end detects that.
            while tar.fileobj is not None and tar.fileobj.read(CHUNK):
                check_cancelled()
        inner = aside / target.name
        os.replace(inner if inner.is_dir() else aside, target)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, OverflowError) as error:
        raise damaged(archive, "a tar archive", error, "Remove it, and get it again.") from None
    except OSError as error:
        raise RbError(f"Cannot unpack {archive} into {target}: {error.strerror or error}. {HINT}") from None
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(aside)


def _take(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    parts = PurePosixPath(member.name).parts
    if ".." in parts or member.name.startswith("/"):
        raise ValueError(f"it has a file that would lie outside, {member.name}")
    stream = tar.extractfile(member) if member.isfile() else None
    if stream is None:
        return
    path = folder.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    with stream, open(path, "wb") as out:
        shutil.copyfileobj(stream, out, CHUNK)
    os.utime(path, (time.time(), member.mtime))
