"""The command line of this process, as it is stored in entries."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from rbtools.plain_files import read_plain

_LARGEST = 2**26  # bytes of a file that is hashed for a label
_typed: list[str] = []


def note(tool: str, words: Sequence[str] | None) -> None:
    """Store the arguments; `words` is None if Python calls the tool, because it then has no command line."""
    _typed[:] = [] if words is None else [tool, *words]


def label() -> str | None:
    """The command line, with file names and short hashes instead of paths; None for calls from Python."""
    return shlex.join(map(_without_paths, _typed)) if _typed else None


def _without_paths(word: str) -> str:
    """Change `--checkpoint=nets/a.pt` to `--checkpoint=a.pt@1a2b3c4d`, but keep 8/255 and names."""
    return "".join(_named(part) for part in re.split(r"([=:,])", word))


def _named(part: str) -> str:
    path = Path(os.path.expanduser(part))
    if path.is_file() and os.access(path, os.R_OK):
        small = path.stat().st_size <= _LARGEST  # the hash of a large file of weights is in the record
        return f"{path.name}@{hashlib.sha256(read_plain(path)).hexdigest()[:8]}" if small else path.name
    there = os.sep in part and path.exists()
    return path.name if there or part.startswith((os.sep, "~", f".{os.sep}", f"..{os.sep}")) else part
