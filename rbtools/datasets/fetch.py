"""Downloads of data sets. A file is written under a temporary name, checked, and then renamed."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rbtools.datasets.content_hash import md5_of
from rbtools.errors import RbError
from rbtools.store import lease
from rbtools.store.files import written_whole

if TYPE_CHECKING:
    from rbtools.datasets.published_files import ListedFile

CHUNK = 1 << 20
TIMEOUT_SECONDS = 60.0
HINT = "Free some space, or name another folder with --data-dir (or RB_DATA)."


def bring(
    remote: ListedFile, home: Path, say: Callable[[str], None], check_cancelled: Callable[[], None]
) -> None:
    """Download a file into the data folder, check its MD5, and unpack it if it is an archive.

    If several processes need the same file, one process downloads it and the others wait. An existing archive
    is only unpacked. Raises RbError if the content of the file is not the published content; the file is then
    deleted.
    """
    target, result, held = home / remote.name, home / remote.path, None
    try:
        held = lease.wait(home / f".downloading-{remote.name}", check_cancelled, result.exists)
        if held is None or result.exists():
            return
        if not (target.exists() and md5_of(target) == remote.md5):
            with written_whole(target, hint=HINT) as out:
                _fetch(remote, out, say, check_cancelled)
        if result != target:
            say(f"unpacking {target}")
            _unpack(target, result)
    except OSError as error:
        raise RbError(f"Cannot write to {home}: {error.strerror or error}. {HINT}") from None
    finally:
        if held is not None:
            held.release()


def _fetch(
    remote: ListedFile, out: IO[bytes], say: Callable[[str], None], check_cancelled: Callable[[], None]
) -> None:
    total, received = hashlib.md5(usedforsecurity=False), 0
    request = urllib.request.Request(remote.url, headers={"User-Agent": "rbtools"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            while chunk := answer.read(CHUNK):
                total.update(chunk)
                out.write(chunk)
                received += len(chunk)
                say(f"downloading {remote.name}  {received / 1e6:.0f} MB of {remote.size}")
                check_cancelled()
    except (OSError, HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # the error holds the connection
        raise RbError(
            f"Cannot download {remote.url}: {getattr(error, 'reason', None) or error}. Check the network (and"
            " https_proxy, where there is a proxy), or get the file yourself and put it where --data-dir (or"
            " RB_DATA) says."
        ) from None
    if total.hexdigest() != remote.md5:
        raise RbError(
            f"What {remote.url} answered with ({received} bytes) is not the file that was published: its MD5"
            f" is {total.hexdigest()}, expected {remote.md5}. Nothing is kept. Try again, or get the file"
            " elsewhere."
        )


def _unpack(archive: Path, target: Path) -> None:
    """The folder `target` appears only when it is complete."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpacking-") as aside:
        content = Path(aside, "content")
        # Python 3.11.3 and older may have no filters. The MD5 is that of the published archive.
        safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        shutil.unpack_archive(archive, content, **(safe if ".tar" in archive.name else {}))
        inner = content / target.name  # if it does not exist, the archive's files are at its top level
        os.rename(inner if inner.is_dir() else content, target)
