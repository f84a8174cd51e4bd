"""The process that owns a lease or a half-written file, and whether it has ended."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from typing import Any


def _space() -> str:
    """The namespace of process numbers: containers of one host may share its host name."""
    try:
        return "".join(filter(str.isdigit, os.readlink("/proc/self/ns/pid")))
    except OSError:
        return ""


HOST, SPACE = socket.gethostname(), _space()
_HOST_IN_LABELS = re.sub(r"[^\w.]", "_", HOST)


def myself() -> dict[str, Any]:
    """The identity of this process, for others to look up."""
    return {"host": HOST, "space": SPACE, "pid": os.getpid()}


def label() -> str:
    """This process as a part of a file's name, without a hyphen."""
    return f"{_HOST_IN_LABELS}+{SPACE}+{os.getpid()}"


def from_label(text: str) -> dict[str, Any]:
    """The process that a label names; for an invalid label, one that counts as running."""
    host, _, rest = text.partition("+")
    space, _, pid = rest.partition("+")
    return {"host": HOST if host == _HOST_IN_LABELS else None, "space": space, "pid": pid}


def is_gone(holder: Mapping[str, Any]) -> bool:
    """Whether that is a process of this host that has ended.

    False if that is unknown: for another host, another container, or an invalid text.
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
