"""rbtools: small Unix tools that measure how robust image classifiers are.

In Python, each tool except rb-store is a function (`arch`, `attack`, `card`, `certify`, `convert`, `corr`,
`corrupt`, `ge`, `measure`, `plot`, `pr`, `rank`, `score`, `train`, `verify`, `rbtools.api.search`); see
`rbtools.api`. `check`, `curve` and `transfer` are subcommands of rb-attack. `read` reads files of records,
`frame` returns a pandas DataFrame, and `load` returns a record's model. `evaluate` and `fit` evaluate and
train a module. The packages `rbtools.records`, `rbtools.datasets` and `rbtools.models` are public, too.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
__date__ = "2026-11-21"  # release date of this version, printed in man pages

_API = (
    "arch attack card certify check curve convert corr corrupt frame ge load measure plot pr rank read score"
    " train transfer verify"
).split()
_LIBRARY = {
    "Fit": "rbtools.trainer.fit",
    "Result": "rbtools.evaluation.in_memory",
    "evaluate": "rbtools.evaluation.evaluate",
    "fit": "rbtools.trainer.fit",
}
_ROOMS = ("datasets", "models", "records")


def __getattr__(name: str) -> Any:
    # Imported on use, because the tools do not need these functions.
    if name in _LIBRARY:
        return getattr(importlib.import_module(_LIBRARY[name]), name)
    if name in _API:
        from rbtools import api

        return getattr(api, name)
    if name in _ROOMS:
        return importlib.import_module(f"rbtools.{name}")
    raise AttributeError(f"module 'rbtools' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*_API, *_LIBRARY, *_ROOMS, "__version__"})
