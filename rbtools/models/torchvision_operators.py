"""The compiled operators that torchvision's import asks for, declared where they cannot be loaded.

A torchvision wheel built for CUDA cannot load its compiled operators into a CPU-only torch, and its
import then fails with "operator torchvision::nms does not exist". Data sets, transforms and models
need none of those operators: where they are missing, declaring their schemas is enough.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

# torchvision registers shape rules for these two whether its operators were loaded or not.
SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
declared: list[torch.library.Library] = []  # a declaration lasts as long as its Library object


def load_operators() -> None:
    """Load torchvision's compiled operators as its own import does, a second load does nothing.

    It has to happen first: a schema declared here would clash with the operator loaded later.
    """
    spec = importlib.util.find_spec("torchvision")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for library in sorted(Path(folder).glob("_C*")):
            if library.suffix in (".so", ".pyd"):
                try:
                    torch.ops.load_library(str(library))
                except OSError:  # linked against missing CUDA libraries
                    continue


def declare_missing_operators() -> list[str]:
    """Declare the operators that torchvision's import needs and lacks; return their names."""
    missing = [name for name in SCHEMAS if not hasattr(torch.ops.torchvision, name)]
    if missing:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in missing:
            library.define(name + SCHEMAS[name])
        declared.append(library)
    return missing


def prepare() -> None:
    """What has to happen before `import torchvision`."""
    load_operators()
    declare_missing_operators()
