"""Import torchvision safely: `from rbtools.models.torchvision_import import torchvision`.

Its operators are declared first where they cannot be loaded: see `torchvision_operators`.
"""

from __future__ import annotations

from rbtools.models.torchvision_operators import prepare

prepare()

import torchvision  # noqa: E402

__all__ = ["torchvision"]
