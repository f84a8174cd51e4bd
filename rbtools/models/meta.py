"""Networks without memory for their parameters, and the names and shapes of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

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
    with meta_init():
        network = models.build(dict(fields), classes=classes, shape=shape)
    return {key: value.shape for key, value in network.state_dict().items() if not key.endswith(OPTIONAL)}
