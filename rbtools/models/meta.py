"""Networks without memory for parameters: tensor shapes, numbers of parameters and of multiply-adds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from rbtools import models
from rbtools.models.tensor_names import OPTIONAL

# The functions that fill parameters with initial values. On the meta device there is nothing to fill, but
# torch would need milliseconds for each tensor.
_FILLS = {getattr(nn.init, name) for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")}
_FILLS |= {Tensor.normal_, Tensor.uniform_, Tensor.erfinv_, Tensor.mul_, Tensor.add_, Tensor.clamp_}


class _MetaInit(TorchFunctionMode):
    """Parameters need no memory and are not initialised: layers create them by `torch.empty`.

    Other tensors keep their memory, because some networks compute constants with them while they are built.
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
    """Within this context, networks are built on the meta device. The random state does not change."""
    with torch.random.fork_rng(devices=[]), _MetaInit():
        yield


@lru_cache(maxsize=64)
def shapes_of(
    fields: tuple[tuple[str, Any], ...], classes: int, shape: models.Shape
) -> dict[str, torch.Size]:
    """Returns the shapes of the tensors that a file must contain. Raises the errors of `models.build`."""
    tensors = _built(fields, classes, shape).state_dict()
    return {key: value.shape for key, value in tensors.items() if not key.endswith(OPTIONAL)}


def _built(fields: tuple[tuple[str, Any], ...], classes: int, shape: models.Shape) -> nn.Module:
    with meta_init():
        return models.build(dict(fields), classes=classes, shape=shape)


@cache
def of_arch(fields: tuple[tuple[str, Any], ...], classes: int, shape: models.Shape) -> tuple[int, int]:
    """Returns the numbers of parameters and multiply-adds. Raises the errors of `models.build`."""
    network = _built(fields, classes, shape).to("meta").eval()
    return parameters(network), multiply_adds(network, torch.empty(2, *shape, device="meta"))


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def multiply_adds(network: nn.Module, images: Tensor) -> int:
    """Counts the multiply-adds of all matrix products in a forward pass (convolutions, linear and recurrent
    layers, attention), per image. `images` is a batch (N, C, H, W) on the network's device.

    Torch counts two operations per multiply-add, but none for fused kernels, so they are disabled.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # torch warns when the flags of mkldnn are set
        for kernels in (torch.backends.mkldnn, torch.backends.cudnn):  # those of recurrent layers
            stack.enter_context(kernels.flags(enabled=False))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        counter = stack.enter_context(FlopCounterMode(display=False))
        with torch.no_grad():
            network(images)
    return int(counter.get_total_flops()) // 2 // len(images)
