"""CUDA graphs: GPU work that is captured once and then launched as a whole."""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from rbtools.lazy import torch

# version of torch; with 2.11, random numbers cannot be drawn after a failed capture
_SINCE = (2, 12)


def usable(device: torch.device) -> bool:
    """Whether work on a device is captured: on a GPU, if the version of torch supports it. RB_CUDA_GRAPHS=0
    turns it off, RB_CUDA_GRAPHS=1 on."""
    if device.type != "cuda":
        return False
    version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    return {"0": False, "1": True}.get(os.environ.get("RB_CUDA_GRAPHS", ""), version >= _SINCE)


_BROKEN: list[torch.cuda.CUDAGraph] = []  # failed captures: torch may still access them


class Pool:
    """Memory that graphs use one after another, and the stream on which they are captured. `ticket` counts
    the replays of training runs: each may overwrite data that an earlier one kept for its backward pass."""

    def __init__(self, device: torch.device) -> None:
        self.handle, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        self.ticket = 0

    @contextmanager
    def capture(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """Work inside is captured, not executed. Another thread may read and copy the next batch meanwhile.

        `torch.cuda.graph` would also collect garbage and empty the cache, which takes longer than a capture.
        """
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            graph.capture_begin(self.handle, "thread_local")
            try:
                try:
                    yield
                finally:
                    graph.capture_end()
            except BaseException:
                _BROKEN.append(graph)
                raise
        torch.cuda.current_stream().wait_stream(self.stream)


@functools.cache
def lasting_pool(device: torch.device) -> tuple[Pool, torch.cuda.CUDAGraph]:
    """A pool for graphs that come and go, with a graph that keeps it alive. `lasting_pool.cache_clear()`
    releases its memory. After a failed capture, a pool must not be used again."""
    pool, graph = Pool(device), torch.cuda.CUDAGraph()
    with pool.capture(graph):
        torch.zeros(1, device=device)
    return pool, graph


@contextmanager
def no_waits() -> Iterator[None]:
    """Inside, waiting for the GPU raises RuntimeError, because a capture does not allow it."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
