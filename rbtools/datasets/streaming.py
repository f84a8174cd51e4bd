"""Images are kept in memory if they fit, and otherwise read when they are indexed.

A uint8 tensor of all images and a `Streamed` have the same interface.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rbtools.errors import RbError
from rbtools.lazy import np, torch

if TYPE_CHECKING:
    from torch import Tensor

    # fetch(ids, out): write the images with the numbers `ids`, int64 (n,), into the array `out` (n, C, H, W).
    Fetch = Callable[[np.ndarray, np.ndarray], None]
    # Images (n, C, H, W), and the event at the end of their copy to a GPU.
    Batch = tuple[Tensor, torch.cuda.Event | None]

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_UNKNOWN_MEMORY = 4 * 2**30
_AHEAD = 2  # the most batches that are read before they are indexed


class Streamed:
    """Images (N, C, H, W) that are read when they are indexed, with any index that a tensor supports.

    `dtype` is uint8 by default.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        fetch: Fetch,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.dtype = dtype or torch.uint8
        self.shape = torch.Size(shape)
        self.device = device or torch.device("cpu")
        self._fetch = fetch
        self._pool: ThreadPoolExecutor | None = None
        self._read_ahead: dict[bytes, Future[Batch]] = {}

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | slice | Sequence[int] | np.ndarray | Tensor) -> Tensor:
        ids = self._ids(index)
        future = self._read_ahead.pop(ids.numpy().tobytes(), None)
        pixels, copied = self._read(ids) if future is None else future.result()
        if copied is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(copied)
            pixels.record_stream(current)
        return pixels.reshape(*ids.shape, *self.shape[1:])

    def prefetch(self, index: Sequence[int] | np.ndarray | Tensor) -> None:
        """Start to read the next batch in a thread, while a GPU works on the current batch."""
        if self.device.type != "cuda":
            return  # computing on the CPU leaves no core free for reading
        ids = self._ids(index)
        self._pool = self._pool or ThreadPoolExecutor(1)
        while len(self._read_ahead) >= _AHEAD:
            self._read_ahead.pop(next(iter(self._read_ahead))).cancel()
        self._read_ahead[ids.numpy().tobytes()] = self._pool.submit(self._read, ids)

    def _ids(self, index: int | slice | Sequence[int] | np.ndarray | Tensor) -> Tensor:
        return torch.arange(len(self))[index.cpu() if isinstance(index, torch.Tensor) else index]

    def _read(self, ids: Tensor) -> Batch:
        on_gpu = self.device.type == "cuda"
        # Copies from pinned memory do not make Python wait; on their own stream they run beside kernels.
        out = torch.empty((ids.numel(), *self.shape[1:]), dtype=self.dtype, pin_memory=on_gpu)
        self._fetch(ids.reshape(-1).numpy(), out.numpy())
        return _copy(out, self.device) if on_gpu else (out.to(self.device), None)

    def only(self, ids: np.ndarray) -> Streamed:
        """The images with the numbers `ids`, int64 (n,), in this order."""

        def fetch(places: np.ndarray, out: np.ndarray) -> None:
            self._fetch(ids[places], out)

        return Streamed((len(ids), *self.shape[1:]), fetch, self.device, self.dtype)

    def to(self, device: torch.device | str) -> Streamed:
        """The same images; indexing then returns them on `device`."""
        return Streamed(tuple(self.shape), self._fetch, torch.device(device), self.dtype)


def images(shape: tuple[int, int, int, int], fetch: Fetch) -> Tensor | Streamed:
    """All images (N, C, H, W) as one uint8 tensor, or as a `Streamed` if they would need too much memory."""
    if math.prod(shape) > memory_limit():
        return Streamed(shape, fetch)
    tensor = torch.empty(shape, dtype=torch.uint8)
    fetch(np.arange(shape[0]), tensor.numpy())
    return tensor


def placed(pixels: Tensor | Streamed, device: torch.device) -> Tensor | Streamed:
    """The images on a device. If they do not fit there, each batch is moved when it is indexed."""
    if isinstance(pixels, Streamed) or device.type != "cuda" or fits(pixels.nbytes, device):
        return pixels.to(device)
    return batchwise(pixels, device)


def batchwise(pixels: Tensor | Streamed, device: torch.device) -> Tensor | Streamed:
    """The images of an evaluation, which uses each image once.

    To save GPU memory, a batch is copied to the GPU while the GPU works on the previous batch.
    """
    if isinstance(pixels, Streamed) or device.type != "cuda" or pixels.device.type != "cpu":
        return pixels.to(device)
    kept = pixels if pixels.dtype == torch.uint8 else pixels.float()

    def fetch(ids: np.ndarray, out: np.ndarray) -> None:
        torch.index_select(kept, 0, torch.from_numpy(ids), out=torch.from_numpy(out))

    return Streamed(tuple(kept.shape), fetch, device, kept.dtype)


def prefetch(pixels: Tensor | Streamed, ids: Tensor) -> None:
    """Start to read the images of the next batch if they are not on the device."""
    if isinstance(pixels, Streamed) and len(ids):
        pixels.prefetch(ids)


def _copy(pinned: Tensor, device: torch.device) -> Batch:
    stream, end = _copy_stream(device), torch.cuda.Event()
    with torch.cuda.stream(stream):
        moved = pinned.to(device, non_blocking=True)
        end.record(stream)
    return moved, end


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def fits(size: int, device: torch.device) -> bool:
    """Whether `size` bytes are at most half of a GPU's free memory."""
    free, _ = torch.cuda.mem_get_info(device)
    return size <= free // 2


def memory_limit() -> int:
    """The limit in bytes for images in memory: RB_IMAGE_MEMORY (such as 8G), or half of the free memory.

    Raises RbError if RB_IMAGE_MEMORY is not a size.
    """
    setting = os.environ.get("RB_IMAGE_MEMORY")
    if not setting:
        return _free() // 2
    size = re.fullmatch(r"((?:\d+(?:\.\d+)?|\.\d+)(?:E\d{1,2})?)([KMGT]?)B?", setting.strip().upper())
    if size is None:
        raise RbError(f"RB_IMAGE_MEMORY is '{setting}'. Expected a size such as 500M or 8G.")
    return int(float(size[1]) * _UNITS[size[2]])


def _free() -> int:
    """The free memory in bytes of the machine or, if it has less, of the container."""
    free = _UNKNOWN_MEMORY
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most = int((group / "memory.max").read_text("ascii"))
        used = int((group / "memory.current").read_text("ascii"))
        # The page cache counts as used, but is released on demand.
        statistics = dict(line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
        free = min(free, most - used + int(statistics.get("inactive_file", 0)))
    return max(free, 0)
