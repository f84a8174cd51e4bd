"""Imports torchvision safely: `from rbtools.models.torchvision_import import torchvision`.

If the operators of torchvision cannot be loaded, they are declared first (see `torchvision_operators`).
"""

from __future__ import annotations

from rbtools.models.torchvision_operators import prepare

prepare()

import torchvision  # noqa: E402

__all__ = ["torchvision"]
