"""Declares the compiled operators that `import torchvision` needs, if these operators cannot be loaded.

A torchvision wheel built for CUDA cannot load its compiled operators into a CPU-only torch. The import of
torchvision then fails with "operator torchvision::nms does not exist". Data sets, transforms and models do
not use these operators, so declaring their schemas is enough.
"""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path

import torch

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
OPERATORS = ("nms", "qnms")  # torchvision registers shape rules for them whether they were loaded or not
declared: list[torch.library.Library] = []  # a declaration lasts as long as its Library object


def prepare() -> None:
    """Make sure that `import torchvision` works. A second call does nothing.

    Operators are loaded where possible: a declared schema would conflict with an operator that is loaded
    later.
    """
    spec = importlib.util.find_spec("torchvision")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for library in [*Path(folder).glob("_C*.so"), *Path(folder).glob("_C*.pyd")]:
            with contextlib.suppress(OSError):  # they need CUDA libraries that are missing
                torch.ops.load_library(str(library))
    for name in OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            declared.append(torch.library.Library("torchvision", "FRAGMENT"))
            declared[-1].define(name + SCHEMA)
