"""Opens, for reading, the files that a record or an option names.

A path may come from an untrusted source, because records name data sets and checkpoints, and shared folders
contain links. Reading a device may never end, and a pipe may have no writer. Therefore only plain files are
read, and files that contain lists are read only up to a limit. Some files are named only on the command line
and are read once from beginning to end (records, settings). These may also be pipes, such as the shell's
`<(...)`.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shlex
import stat
from typing import IO, Any, TypeVar

from rbtools.errors import RbError

Path = TypeVar("Path", bound="str | os.PathLike[str]")
LARGEST_LIST = 1 << 25  # maximum size in bytes of a list of names or numbers
LARGEST_SETTINGS = 1 << 20  # maximum size in bytes of a file of settings
# How files begin that are not UTF-8 text, what they are, and which command converts them.
_PACKED, _ENCODED = "compressed ({})", "text in UTF-16, as written by PowerShell's > and by spreadsheets"
_OTHER = (
    (rb"\x1f\x8b", _PACKED.format("gzip"), "zcat"),
    (rb"\xfd7zXZ\0", _PACKED.format("xz"), "xzcat"),
    (rb"BZh[1-9](1AY&SY|\x17rE8P)", _PACKED.format("bzip2"), "bzcat"),
    (rb"\x28\xb5\x2f\xfd", _PACKED.format("zstd"), "zstdcat"),
    (rb"\xff\xfe\0\0|\0\0\xfe\xff", "text in UTF-32", "iconv -f UTF-32 -t UTF-8"),
    (rb"\xff\xfe|\xfe\xff", _ENCODED, "iconv -f UTF-16 -t UTF-8"),
    (rb"([\t\n\r -~]\0){2}", _ENCODED, "iconv -f UTF-16LE -t UTF-8"),
    (rb"(\0[\t\n\r -~]){2}", _ENCODED, "iconv -f UTF-16BE -t UTF-8"),
)


class NoPlainFile(OSError):
    """Raised for a folder, a pipe, a device, or a link that must not be followed."""

    def __init__(self, path: str | os.PathLike[str], number: int = errno.EINVAL) -> None:
        why = os.strerror(number) if number == errno.EISDIR else "it is not a plain file"
        super().__init__(number, why, os.fspath(path))


def plain(path: Path) -> Path:
    """Return the path of a plain file, which a library then opens. Raises OSError for anything else."""
    _check(os.stat(path).st_mode, path)
    return path


def is_plain(path: str | os.PathLike[str]) -> bool:
    """True if the path is a plain file; False for a link to a plain file."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def open_plain(path: str | os.PathLike[str], *, follow: bool = True) -> int:
    """Open a plain file or, with `follow`, a link to one. Returns a file descriptor. Raises OSError."""
    _check(os.stat(path, follow_symlinks=follow).st_mode, path)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    handle = os.open(path, flags)
    try:
        _check(os.fstat(handle).st_mode, path)  # the file may have been replaced since the check
    except OSError:
        os.close(handle)
        raise
    return handle


def opened(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a plain file as a stream. Raises OSError, for example if the path is not a plain file."""
    return open(open_plain(path), "rb")


def read_plain(path: str | os.PathLike[str], most: int | None = None, *, follow: bool = True) -> bytes:
    """Return the bytes of a plain file. Raises OSError, for example if it has more than `most` bytes."""
    with open(open_plain(path, follow=follow), "rb") as stream:
        return stream.read() if most is None else _bounded(stream, most, path)


def read_text(path: str | os.PathLike[str], encoding: str = "utf-8", most: int = LARGEST_LIST) -> str:
    """Return the text of a plain file, with LF as line ends. Raises OSError and the errors of `text_of`."""
    return text_of(read_plain(path, most), encoding, path)


def streamed(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file or pipe that the command line names. Raises OSError, for example for an endless device."""
    status = os.stat(path)
    if stat.S_ISBLK(status.st_mode) or (stat.S_ISCHR(status.st_mode) and not _ends(status)):
        raise OSError(errno.EINVAL, "it is a device", os.fspath(path))
    return open(path, "rb")


def read_settings(path: str | os.PathLike[str]) -> str:
    """Return the text of a small file or pipe. Raises OSError and the errors of `text_of`."""
    with streamed(path) as stream:
        return text_of(_bounded(stream, LARGEST_SETTINGS, path), "utf-8", path)


def not_utf8(start: bytes, name: str | os.PathLike[str], then: str = "| TOOL") -> str | None:
    """Return the end of an error message if the first bytes of a file are compressed or in UTF-16, else None.
    The message contains a command that converts the file, followed by `then`."""
    for pattern, what, command in _OTHER:
        if re.match(pattern, start):
            return f"is {what}. Convert it to plain text: {command} {shlex.quote(os.fspath(name))} {then}"
    return None


def text_of(data: bytes, encoding: str, path: str | os.PathLike[str]) -> str:
    """Decode a file. Raises UnicodeDecodeError, and RbError if the file is compressed or in UTF-16."""
    if other := not_utf8(data[:64], path, "> NEWFILE"):
        raise RbError(f"{os.fspath(path)} {other}, and use that file.")
    return io.TextIOWrapper(io.BytesIO(data), encoding).read()


def shards_of(path: str | os.PathLike[str]) -> list[str]:
    """Return the other files of a checkpoint: the files in an index (`*.index.json`), or the file of weights
    next to an ONNX model (`*.onnx.data`). Raises OSError if the index cannot be read, and RbError if it lists
    no files, or files in another folder."""
    if os.fspath(path).endswith(".onnx") and os.path.isfile(weights := f"{os.fspath(path)}.data"):
        return [weights]
    if not os.fspath(path).endswith(".index.json"):
        return []
    try:
        names = sorted(set(json.loads(read_text(path))["weight_map"].values()))
        folder = os.path.dirname(os.fspath(path))
        if not names or any(os.path.basename(one) != one or one.endswith(".json") for one in names):
            raise ValueError
        return [os.path.join(folder, name) for name in names]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise RbError(
            f"The checkpoint {os.fspath(path)} lists no weight files. Expected an index,"
            ' {"weight_map": {TENSOR: FILE}}, and the files in the same folder.'
        ) from None


def _check(mode: int, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(mode):
        raise NoPlainFile(path, errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL)


def _ends(status: os.stat_result) -> bool:
    """True for the null device and a terminal of this process, because reading such a device ends."""
    known = [os.stat(os.devnull), *(os.fstat(handle) for handle in range(3) if os.isatty(handle))]
    return any(one.st_rdev == status.st_rdev for one in known)


def _bounded(stream: IO[bytes], most: int, path: str | os.PathLike[str]) -> bytes:
    data = stream.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", os.fspath(path))
    return data


_DEEPEST = 50  # maximum levels of YAML, because PyYAML reads it by recursion


def parse_yaml(text: str) -> Any:
    """Parse YAML. Raises yaml.YAMLError, also for aliases, which can expand to billions of values."""
    import yaml  # only here, because --help and most runs do not need it

    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"'*{event.anchor}' is an alias")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise yaml.YAMLError(f"more than {_DEEPEST} levels")
    try:
        return yaml.safe_load(text)
    except (ValueError, OverflowError) as error:  # such as an endless number or an invalid date
        raise yaml.YAMLError(str(error)) from None
