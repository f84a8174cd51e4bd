"""Selects the device, and sets the number of threads and the handling of memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from rbtools import __version__
from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.lazy import torch

# Parameters of glibc's mallopt (malloc.h), and their values in bytes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT, _LARGE = 1 << 30, 32 << 20  # 32 MiB is the most that glibc accepts for _MMAP_THRESHOLD


@contextlib.contextmanager
def taken(run: Run, threads: int) -> Iterator[torch.device]:
    """Yields the device of `--device`, and sets the number of threads. Raises RbError if it is unusable."""
    device = choose(run)
    if device.type != "cpu":
        with float32(device):
            yield device
        return
    torch.set_num_threads(threads)
    _keep_memory()
    yield device


@contextlib.contextmanager
def float32(device: torch.device) -> Iterator[None]:
    """Compute with float32 tensors in full precision. By default, torch's convolutions on a GPU round their
    inputs to TF32, which has 10 bits, so that results depend on the device."""
    if device.type != "cuda":
        yield
        return
    cudnn, products = torch.backends.cudnn, torch.get_float32_matmul_precision()
    kept = {"enabled": cudnn.enabled, "benchmark": cudnn.benchmark, "deterministic": cudnn.deterministic}
    torch.set_float32_matmul_precision("highest")
    try:
        with cudnn.flags(**kept, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(products)


@cache
def _keep_memory() -> None:
    """Keep up to 1 GiB of freed memory in the process. By default, glibc returns freed memory to the system,
    which clears each page again. For a gradient of 512 images of 8x8 pixels, this caused 15,000 page faults,
    which took a third of its time."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LARGE)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT)


def choose(run: Run) -> torch.device:
    """The device of the run; "auto" prefers a GPU. Workers use the GPUs in turn. Raises RbError."""
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if run.placement.device == "auto" and not cards:
        return torch.device("cpu")
    if run.placement.device in ("auto", "cuda") and cards:
        return torch.device("cuda", run.placement.worker % cards)
    return named(run.placement.device, "--device cpu or auto")


def named(name: str, other: str) -> torch.device:
    """The device with this name. If it cannot be used, raises an RbError that recommends `other`."""
    try:
        # The device of a tensor has a number even if the GPU was named without one.
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise RbError(f"The device '{name}' cannot be used: {reason}. Use {other}.") from error


def environment(device: torch.device) -> str:
    """Everything that determines rounding, apart from the kind of device: the versions of rbtools and torch,
    and the processor with its instruction set or the GPU with its libraries."""
    words = [f"rbtools {__version__}", f"torch {torch.__version__}"]
    if device.type == "cuda":
        words += [torch.cuda.get_device_name(device), f"CUDA {torch.version.cuda}"]
        words.append(f"cuDNN {torch.backends.cudnn.version()}")
    else:
        words += [_processor(), torch.backends.cpu.get_cpu_capability()]
    return ", ".join(words)


@cache
def _processor() -> str:
    """The processor's name, or its architecture if the system does not report a name."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def usable() -> bool:
    """Whether this process can still use the GPU. After an illegal memory access, it cannot."""
    if torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return False
    return True


def out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def mps_runs() -> bool:
    """Whether NVIDIA's Multi-Process Service is running on this machine."""
    # the default folder contains a file with the number of the service's process
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or Path("/tmp") / "nvidia-mps"
    with contextlib.suppress(OSError, ValueError):
        number = int((Path(folder) / "nvidia-cuda-mps-control.pid").read_text("ascii"))
        return number > 0 and Path(f"/proc/{number}").exists()
    return False
