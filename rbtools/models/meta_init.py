"""Networks without numbers: built for their names and shapes, or to be filled from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _MetaInit(TorchFunctionMode):
    """Lets `torch.empty`, with which layers make their parameters, take no memory.

    The meta device as a whole would not do: some networks compute their sizes, or the constants that
    their forward pass reads, with small tensors while they are built.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


@contextmanager
def meta_init() -> Iterator[None]:
    """Build networks fast: parameters are on the meta device, and the random state stays as it is."""
    with torch.random.fork_rng(devices=[]), _MetaInit():
        yield
