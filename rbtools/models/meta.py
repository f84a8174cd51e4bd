"""Networks without memory for their parameters: the names and shapes of their tensors, and the numbers of
parameters and multiply-adds, which are counted without computing anything."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from rbtools import models
from rbtools.models.tensor_names import OPTIONAL

# The functions that fill parameters with initial values. On the meta device there is nothing to fill, but
# torch would need milliseconds for each tensor.
_FILLS = {getattr(nn.init, name) for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")}
_FILLS |= {Tensor.normal_, Tensor.uniform_, Tensor.erfinv_, Tensor.mul_, Tensor.add_, Tensor.clamp_}


class _MetaInit(TorchFunctionMode):
    """A context in which parameters need no memory and are not initialised. Layers create their parameters by
    `torch.empty`, which allocates no memory in this context.

    Other tensors keep their memory, because some networks compute sizes or constants with small tensors
    during construction.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty:
            kwargs["device"] = "meta"
        if func in _FILLS:
            target: Tensor = args[0] if args else kwargs["tensor"]
            if target.is_meta:
                return target
        return func(*args, **kwargs)


@contextmanager
def meta_init() -> Iterator[None]:
    """A context that builds networks with parameters on the meta device (no memory, no initialisation).

    The global random state is unchanged.
    """
    with torch.random.fork_rng(devices=[]), _MetaInit():
        yield


@lru_cache(maxsize=64)
def shapes_of(
    fields: tuple[tuple[str, Any], ...], classes: int, shape: models.Shape
) -> dict[str, torch.Size]:
    """Returns the tensors that a file must contain for the architecture with these fields and values. Raises
    RbError in the same cases as `models.build`."""
    tensors = _built(fields, classes, shape).state_dict()
    return {key: value.shape for key, value in tensors.items() if not key.endswith(OPTIONAL)}


def _built(fields: tuple[tuple[str, Any], ...], classes: int, shape: models.Shape) -> nn.Module:
    with meta_init():
        return models.build(dict(fields), classes=classes, shape=shape)


@cache
def of_arch(fields: tuple[tuple[str, Any], ...], classes: int, shape: models.Shape) -> tuple[int, int]:
    """Counts the parameters and multiply-adds of the architecture with these fields and values. Raises
    RbError in the same cases as `models.build`."""
    network = _built(fields, classes, shape).to("meta").eval()
    return parameters(network), multiply_adds(network, shape)


def parameters(network: nn.Module) -> int:
    """Returns the number of values in all parameters."""
    return sum(parameter.numel() for parameter in network.parameters())


def multiply_adds(network: nn.Module, shape: models.Shape) -> int:
    """Counts the multiply-adds of convolutions, linear layers and attention for one image (C, H, W). The
    network must be on the meta device in eval mode."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its fused kernel is not counted
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(torch.empty(2, *shape, device="meta"))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return int(counter.get_total_flops()) // 2 // 2  # two images; a multiply-add is two operations
