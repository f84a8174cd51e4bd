"""Which process a lease or a half-written file belongs to, and whether that process is gone."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from typing import Any


def _space() -> str:
    """The space that process numbers are counted in: containers of one host may share its name."""
    try:
        return "".join(filter(str.isdigit, os.readlink("/proc/self/ns/pid")))
    except OSError:
        return ""


HOST, SPACE = socket.gethostname(), _space()
_HOST_IN_LABELS = re.sub(r"[^\w.]", "_", HOST)


def myself() -> dict[str, Any]:
    """This process, as others can look it up."""
    return {"host": HOST, "space": SPACE, "pid": os.getpid()}


def label() -> str:
    """This process as a part of a file's name, without a hyphen."""
    return f"{_HOST_IN_LABELS}+{SPACE}+{os.getpid()}"


def from_label(text: str) -> dict[str, Any]:
    """The process that a label names; one that is never gone where it is none."""
    host, _, rest = text.partition("+")
    space, _, pid = rest.partition("+")
    return {"host": HOST if host == _HOST_IN_LABELS else None, "space": space, "pid": pid}


def is_gone(holder: Mapping[str, Any]) -> bool:
    """Whether that was a process of this very host which does not exist any more.

    False where it cannot be told: of another host, of another container, or a text that names none.
    """
    try:
        if holder["host"] != HOST or holder.get("space", SPACE) != SPACE:
            return False
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, KeyError, TypeError, ValueError, OverflowError):
        return False
    return False
