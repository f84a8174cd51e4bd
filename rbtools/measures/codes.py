"""Activation patterns of a network's ReLUs. Imports torch: import it inside functions only."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rbtools.errors import RbError

_RELUS = {F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_}


class _Relus(TorchFunctionMode):
    """Calls `seen` with the output of every ReLU, layer or function, before anything overwrites it."""

    def __init__(self, seen: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        if function in _RELUS:
            self.seen(output)
        return output


def agreement(model: nn.Module, images: Tensor) -> Tensor:
    """The number of ReLU units in the same state for each pair of images: whole numbers in float64 (N, N).

    ReLUs that no gradient of the logits reaches do not count. Raises RbError for a model without ReLU.
    """
    total = torch.zeros(len(images), len(images), dtype=torch.float64, device=images.device)
    any_relu = False

    def seen(output: Tensor) -> None:
        nonlocal any_relu
        any_relu = True
        if output.requires_grad:
            output.register_hook(partial(count, output.detach() > 0))

    def count(on: Tensor, gradient: Tensor) -> None:
        # In float32 sums of up to 2^24 ones are exact.
        for part in on.flatten(1).split(1 << 22, dim=1):
            code = part.float()
            total.add_(code @ code.T).add_((1 - code) @ (1 - code).T)

    with torch.enable_grad():
        points = images.detach().requires_grad_()
        with _Relus(seen):
            logits = model(points)
        if not any_relu:
            raise RbError(
                "The model has no ReLU, and NASWOT counts which are on. Take another measure, such as ntk."
            )
        if logits.requires_grad:
            torch.autograd.grad(logits.sum(), points, allow_unused=True)
    return total
