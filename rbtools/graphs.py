"""CUDA graphs: GPU work that is captured once and then launched as one unit."""

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
    """Return whether work on this device is captured. The default is true for a GPU with a recent torch. The
    environment variable RB_CUDA_GRAPHS disables (0) or enables (1) captures on GPUs."""
    if device.type != "cuda":
        return False
    version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    return {"0": False, "1": True}.get(os.environ.get("RB_CUDA_GRAPHS", ""), version >= _SINCE)


_BROKEN: list[torch.cuda.CUDAGraph] = []  # failed captures: torch may still access them


class Pool:
    """Memory that several graphs use one after another, and the stream on which the graphs are captured.
    `ticket` counts replays in training, because a replay may overwrite data that a backward pass needs."""

    def __init__(self, device: torch.device) -> None:
        self.handle, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        self.ticket = 0

    @contextmanager
    def capture(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """Capture GPU work instead of executing it.

        `torch.cuda.graph` would also collect garbage and empty the cache, which takes longer than a capture.
        During a capture, another thread may read and copy the next batch.
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
    """Return a pool and a graph that keeps the pool alive until `lasting_pool.cache_clear()`. After a failed
    capture, the pool must not be used again."""
    pool, graph = Pool(device), torch.cuda.CUDAGraph()
    with pool.capture(graph):
        torch.zeros(1, device=device)
    return pool, graph


@contextmanager
def no_waits() -> Iterator[None]:
    """A context in which waiting for the GPU raises RuntimeError, as in the capture of a CUDA graph."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
