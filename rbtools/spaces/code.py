"""The user's own modules, looked for without running anything in them."""

from __future__ import annotations

import hashlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from rbtools.errors import RbError


def digest(name: str) -> str:
    """A digest of the file of MODULE in MODULE:FUNCTION: other code is another network.

    Modules that it imports are not looked at. Raises RbError where there is no such module.
    """
    module, colon, function = name.partition(":")
    if not (colon and module and function):
        raise RbError(f"The architecture python:{name} names no function. Expected python:MODULE:FUNCTION.")
    file = _file(module)
    if file is None:
        raise no_module(module)
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def no_module(name: str) -> RbError:
    """The error for a module that is not there; many name its file."""
    meant = name.removesuffix(".py").replace("/", ".")
    what = f"Did you mean '{meant}'?" if meant != name else "Check the name."
    return RbError(f"There is no Python module {name}, in {Path.cwd()} or installed. {what}")


def _file(module: str) -> Path | None:
    PathFinder.invalidate_caches()
    places: list[str] | None = [*sys.path, str(Path.cwd())]
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:depth]), places)
        if spec is None:
            return None
        places = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
        if depth < len(parts) and places is None:
            return None
    return Path(spec.origin) if spec is not None and spec.origin else None
