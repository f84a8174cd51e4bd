"""Imports numpy, torch and scipy.special at their first use: `from rbtools.lazy import np, torch`.

`--help`, completions and look-ups in the store do not need these modules, and importing torch takes more than
one second. A module that defines networks or uses decorators of torch needs torch when it is imported, and
therefore imports torch as usual. `Tensor` is only for annotations: at run time it is a string, so
`isinstance` needs `torch.Tensor`.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["F", "Tensor", "distributed", "nn", "np", "special", "torch"]

# Read when torch loads its threads. By default, a thread that waits for others spins. On a core that another
# process needed, this made training with two threads 25 times slower than with one thread.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


class _LazyModule(ModuleType):
    """A module that is imported when one of its attributes is first read."""

    def __getattr__(self, name: str) -> object:
        value = getattr(import_module(self.__name__), name)
        self.__dict__[name] = value  # the next read is as fast as for any module
        return value


if TYPE_CHECKING:
    import numpy as np
    import torch
    import torch.nn.functional as F
    from scipy import special
    from torch import Tensor, distributed, nn
else:
    Tensor = "Tensor"
    np = _LazyModule("numpy")
    torch = _LazyModule("torch")
    F = _LazyModule("torch.nn.functional")
    nn = _LazyModule("torch.nn")
    distributed = _LazyModule("torch.distributed")
    special = _LazyModule("scipy.special")
