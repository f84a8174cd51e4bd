"""Makes this machine look like another one to the package: see "Another machine" in tests/README.md.

Python runs a file of this name at its start, so that the processes which tests start are covered as well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

# Tests ask for seeds below this: the trainings of two values of RBTOOLS_TEST_SEED never coincide.
SEEDS_APART = 1_000_000


def _other_seeds(module: ModuleType) -> None:
    """Every training starts from other weights and takes the images in another order."""
    mixed_seed, offset = module.mixed_seed, SEEDS_APART * int(os.environ["RBTOOLS_TEST_SEED"])
    module.mixed_seed = lambda seed, purpose: mixed_seed(seed + offset, purpose)  # type: ignore[attr-defined]


def _other_arithmetic(module: ModuleType) -> None:
    """The processor multiplies bfloat16 in hardware, or does not: `--precision auto` asks for it."""
    flags = {"yes": "flags: bf16", "no": "flags:"}[os.environ["RBTOOLS_TEST_BF16"]]
    path, read_text = module.Path, module.Path.read_text

    def read(self: Any, *args: Any, **options: Any) -> str:
        return flags if str(self) == "/proc/cpuinfo" else str(read_text(self, *args, **options))

    path.read_text = read


CHANGES: dict[str, tuple[str, Callable[[ModuleType], None]]] = {
    "rbtools.trainer.init": ("RBTOOLS_TEST_SEED", _other_seeds),
    "rbtools.execution.precision": ("RBTOOLS_TEST_BF16", _other_arithmetic),
}


class _Changing(MetaPathFinder):
    """Imports the modules that an environment variable changes, and changes them."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        variable, change = CHANGES.get(name, ("", None))
        if change is None or variable not in os.environ:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def changed(module: ModuleType) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = changed  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Changing())
