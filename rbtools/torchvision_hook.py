"""Lets the user's own scripts `import torchvision` even if the operators of torchvision cannot be loaded.

If torchvision needs this module, `make setup` writes a line that imports it when Python starts.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec


class _BeforeTorchvision:
    """Finds no module, but declares the missing operators before torchvision is imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            from rbtools.models.torchvision_operators import prepare

            prepare()
        return None


sys.meta_path.insert(0, _BeforeTorchvision())
