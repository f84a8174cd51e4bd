"""Lets a user's own scripts `import torchvision` where its operators cannot be loaded.

`make setup` writes a line that imports this when Python starts, where torchvision needs it.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec


class _BeforeTorchvision:
    """Finds nothing itself: it declares torchvision's missing operators just before the import, once."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            from rbtools.models.torchvision_operators import prepare

            prepare()
        return None


sys.meta_path.insert(0, _BeforeTorchvision())
