"""Errors for damaged or wrong files."""

from __future__ import annotations

import os

from rbtools.errors import RbError, one_line
from rbtools.plain_files import opened

_HTML = (b"<!doctype html", b"<html", b"<head", b"<body", b"<script")


def is_html(start: bytes) -> bool:
    """Whether a file that begins with these bytes is a web page."""
    return start.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_HTML)


def damaged(path: str | os.PathLike[str], expected: str, error: Exception | str, advice: str = "") -> RbError:
    """The error for a file that cannot be read as `expected`.

    The message says if the file is empty or a web page saved as data, else it gives the reader's reason.
    """
    advice = advice or "Get the file again."
    try:
        with opened(path) as file:
            start = file.read(512)
    except OSError as wrong:
        return RbError(f"The file {path} cannot be read ({wrong.strerror}). Expected {expected}. {advice}")
    if not start:
        problem = "is empty"
    elif is_html(start):
        problem = "is an HTML page that was saved as data"
    else:
        reason = one_line(str(error)) or type(error).__name__
        problem = f"cannot be read ({reason}): it is cut off, damaged or something else"
    return RbError(f"The file {path} {problem}. Expected {expected}. {advice}")
