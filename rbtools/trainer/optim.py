"""torch's optimisers without the compiler guards around their methods. A guard imports torch's compiler at
its first call, 800 modules with all of sympy, which takes 1.3 s even if nothing is compiled. The arithmetic
and the stored state are torch's own.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from rbtools.trainer.recipe import Recipe

_GUARDED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def _unguarded(kind: type[torch.optim.Optimizer]) -> Any:
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in _GUARDED}
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))  # the guard of a step switched that off
    return type(kind.__name__, (kind,), methods)


SGD: type[torch.optim.SGD] = _unguarded(torch.optim.SGD)
Adam: type[torch.optim.Adam] = _unguarded(torch.optim.Adam)


def of(recipe: Recipe, weights: Any, *, fused: bool) -> torch.optim.Optimizer:
    """The optimiser of a recipe, for these weights or groups of weights. fused: one kernel for all."""
    options: dict[str, Any] = {"weight_decay": recipe.weight_decay, "fused": fused or None}
    if recipe.optimizer == "adam":
        return Adam(weights, lr=recipe.lr, betas=(recipe.momentum, 0.999), **options)
    return SGD(weights, lr=recipe.lr, momentum=recipe.momentum, nesterov=recipe.nesterov, **options)
