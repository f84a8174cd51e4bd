"""The compiled operators that torchvision's import asks for, declared where they cannot be loaded.

A torchvision wheel built for CUDA cannot load its compiled operators into a CPU-only torch, and its
import then fails with "operator torchvision::nms does not exist". Data sets, transforms and models
need none of those operators: where they are missing, declaring their schemas is enough.
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
    """What has to happen before `import torchvision`; a second call does nothing.

    Operators are loaded first, as its import does: a schema declared here would clash with one loaded later.
    """
    spec = importlib.util.find_spec("torchvision")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for library in [*Path(folder).glob("_C*.so"), *Path(folder).glob("_C*.pyd")]:
            with contextlib.suppress(OSError):  # linked against missing CUDA libraries
                torch.ops.load_library(str(library))
    for name in OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            declared.append(torch.library.Library("torchvision", "FRAGMENT"))
            declared[-1].define(name + SCHEMA)
