"""Imports torchvision safely: `from rbtools.models.torchvision_import import torchvision`."""

from __future__ import annotations

from rbtools.models.torchvision_operators import prepare

prepare()

import torchvision as torchvision  # noqa: E402
