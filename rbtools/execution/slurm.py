"""The task of a Slurm job that this process is, from Slurm's environment variables."""

from __future__ import annotations

import os


def task() -> tuple[int, int] | None:
    """(number from 1 on, count) of this task of an array job, else of a step; None if there is only one.

    In an array each task of a step is a task of its own: an array of 4 with 2 processes each has 8.
    """
    array, step = _array(), _step()
    number, count = (array[0] - 1) * step[1] + step[0], array[1] * step[1]
    return (number, count) if count > 1 and 1 <= number <= count else None


def _array() -> tuple[int, int]:
    first, width = _number("SLURM_ARRAY_TASK_MIN", 1), max(_number("SLURM_ARRAY_TASK_STEP", 1), 1)
    count = _number("SLURM_ARRAY_TASK_COUNT", 1)
    return (_number("SLURM_ARRAY_TASK_ID", first) - first) // width + 1, count


def _step() -> tuple[int, int]:
    # Of this step: SLURM_NTASKS is also set in the job script, which is one process.
    return _number("SLURM_PROCID", 0) + 1, _number("SLURM_STEP_NUM_TASKS", 1)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else default
