"""The number of cores, the number of workers, and the number of threads per worker."""

from __future__ import annotations

import contextlib
import glob
import math
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rbtools.errors import UsageError
from rbtools.execution import ENGINES, LOCAL
from rbtools.execution.run import Run

MOST = 1024  # processes or threads: no machine has more cores, and starting more would overload it
KINDS = ("auto", "cpu", "cuda", "mps", "xpu", "hpu", "xla")  # device names of torch
SMALL = ("nasbench201", "fcnn", "rescnn")  # spaces whose networks are small: one thread is enough


_QUOTAS = "/sys/fs/cgroup"


def cores() -> int:
    """The number of cores that this process may use, according to its affinity and its control group."""
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(known, _quota(Path(_QUOTAS)) or known), 1)


def _quota(folder: Path) -> int | None:
    """The control group's quota of processor time, in cores and rounded up, or None without a quota. In
    versions 1 and 2 of control groups, files contain the time and the period in microseconds."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError):  # there is no such file, or its first word is "max"
            quota, period = map(int, " ".join((folder / name).read_text() for name in names).split())
            return math.ceil(quota / period) if quota > 0 and period > 0 else None
    return None


def threads_asked() -> int | None:
    """The smaller of the numbers of threads in OMP_NUM_THREADS and MKL_NUM_THREADS, or None. If a variable
    lists a number for each level of nesting, the first number counts."""
    said = (os.environ.get(name, "").split(",")[0].strip() for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    numbers = (int(word) for word in said if word.isascii() and word.isdigit() and len(word) < 10)
    return min((number for number in numbers if number), default=None)


def jobs(text: str | None, threads: int | None, per_gpu: int | None, device: str, engine: str) -> int:
    """The number of workers that `--jobs N|auto` specifies. Raises UsageError.

    `auto` means `per_gpu` workers (default 1) for each GPU, or, without GPUs, as many workers with `threads`
    threads each as the cores allow. Returns 0 if the engine decides the number itself (`own_capacity`).
    """
    engines: Any = ENGINES.load(engine) if engine != LOCAL else None
    if engines is not None and engines.own_capacity and text in (None, "auto"):
        return 0
    if text is None:
        return 1
    if text != "auto":
        if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MOST):
            raise UsageError(f"--jobs is '{text}'. Expected a whole number from 1 to {MOST}, or auto.")
        return int(text)
    cards = gpus(device)
    return cards * (per_gpu or 1) if cards else max(cores() // (threads or 1), 1)


def gpus(device: str) -> int:
    """The number of GPUs that a device name stands for."""
    return 0 if device == "cpu" else 1 if ":" in device else visible_gpus()


def check(threads: int | None, device: str) -> None:
    """Raise UsageError if the number of threads or the device is impossible on any machine."""
    if threads is not None and threads > MOST:
        raise UsageError(f"--threads is {threads}. Expected {MOST} at most.")
    kind, colon, number = device.partition(":")
    if kind not in KINDS or (colon and not (number.isascii() and number.isdigit())):
        raise UsageError(
            f"--device is '{device}'. Expected auto, cpu, cuda, or one of several GPUs such as cuda:1."
        )


def threads_for(run: Run, arch: object, share: int | None = None) -> int:
    """The number of CPU threads of one evaluation: the first of these rules that applies.

    - `--threads`;
    - one thread for the small networks of NAS-Bench-201 and of its theory, because more gain little;
    - OMP_NUM_THREADS or MKL_NUM_THREADS, but at most the fair share;
    - the fair share: the cores that this process may use, divided by the number of workers.

    `share` is the fair share if another one than this machine's applies.
    """
    if run.placement.threads is not None:
        return run.placement.threads
    if isinstance(arch, Mapping) and arch.get("space") in SMALL:
        return 1
    most = share or max(cores() // max(run.placement.jobs, 1), 1)
    return min(threads_asked() or most, most)


def training_threads(run: Run, arch: object) -> int:
    """The number of CPU threads of a training run. It follows the rules of `threads_for`, with all cores of
    the machine as the fair share. It must not depend on the number of parallel training runs (`--jobs`),
    because it changes the rounding of sums, and therefore the weights."""
    return threads_for(run, arch, cores())


class Kind(NamedTuple):
    """A kind of device, with the same `type` as torch's devices."""

    type: str


def kind(run: Run) -> Kind:
    """The kind of device on which a run computes, determined without importing torch."""
    device = run.placement.device
    if device == "auto":
        return Kind("cuda" if visible_gpus() else "cpu")
    return Kind(device.partition(":")[0])


def visible_gpus() -> int:
    """The GPUs that this process may use, counted without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return _cards()
    return min(_cards(), len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))


@cache
def _cards() -> int:
    return len(glob.glob("/dev/nvidia[0-9]*"))


def slurm_tasks() -> int:
    """The number of tasks of the Slurm job. In an array, every process of a step counts as a task: 4 array
    tasks with 2 processes each count as 8."""
    # The number of tasks in this step: SLURM_NTASKS is also set in the job script, which is a single process.
    return _number("SLURM_ARRAY_TASK_COUNT", 1) * _number("SLURM_STEP_NUM_TASKS", 1)


def slurm_task() -> tuple[int, int] | None:
    """The number of this task, counted from 1, and the number of tasks in its Slurm array job or step, or
    None for one task. Raises UsageError if the numbers of an array, such as 1,5,6, have gaps."""
    of_array, first = _number("SLURM_ARRAY_TASK_COUNT", 1), _number("SLURM_ARRAY_TASK_MIN", 1)
    last = _number("SLURM_ARRAY_TASK_MAX", 0)
    width = max(_number("SLURM_ARRAY_TASK_STEP", (last - first) // max(of_array - 1, 1)), 1)
    number = _number("SLURM_ARRAY_TASK_ID", first)
    place, between = divmod(number - first, width)
    even = not last or (last - first) // width + 1 == of_array
    if of_array > 1 and (between or not even or not 0 <= place < of_array):
        raise UsageError(
            f"The Slurm array has {of_array} tasks, from {first} to {last or 'an unknown number'} in steps of"
            f" {width}, and this is number {number}. Because of gaps in the numbering, it is unclear which of"
            f" the {of_array} parts this task should compute. Number the tasks evenly (--array=1-{of_array}),"
            f" or pass --shard I/{of_array} with a different I in each task."
        )
    count, in_step = slurm_tasks(), _number("SLURM_PROCID", 0)
    number = place * (count // of_array) + in_step + 1
    return (number, count) if count > 1 and number <= count else None


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else default
