"""How many workers and threads there are: limits of the machine, and what the user asks for."""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from rbtools.cli import options as tool_options
from rbtools.cli.source import shard
from rbtools.errors import UsageError
from rbtools.execution import device, resources
from rbtools.execution.run import Run

LARGE, CELL = {"space": "zoo", "name": "resnet18"}, {"space": "nasbench201"}
CORES = resources.cores
ARRAY = {"SLURM_ARRAY_TASK_ID": "6", "SLURM_ARRAY_TASK_MIN": "2", "SLURM_ARRAY_TASK_STEP": "2"}


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of eight cores, whose user says nothing of threads."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(resources, "cores", lambda: 8)


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 6),
        ({"cpu.max": "max 100000"}, 6),
        ({"cpu.max": "250000 100000"}, 3),
        ({"cpu.max": "1000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 6),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        ({"cpu.max": "900000 100000"}, 6),
    ],
)
def test_cores_are_those_of_the_affinity_and_of_the_quota(
    files: dict[str, str], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(resources, "_QUOTAS", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(6)})
    assert CORES() == count


@pytest.mark.parametrize(
    ("variables", "threads"),
    [
        ({"MKL_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "4,2", "MKL_NUM_THREADS": "6"}, 4),
        ({"OMP_NUM_THREADS": "many", "MKL_NUM_THREADS": "0"}, 8),
    ],
)
def test_the_variables_of_openmp_and_mkl_say_how_many(
    variables: dict[str, str], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    run = Run.of(tool="test", device="cpu")
    assert resources.threads_for(run, LARGE) == resources.training_threads(run, LARGE) == threads
    assert resources.training_threads(Run.of(tool="test", threads=5), LARGE) == 5
    assert resources.threads_for(Run.of(tool="test", jobs=4), LARGE) == min(threads, 2)
    assert resources.threads_for(run, {"space": "nasbench201"}) == 1


@pytest.mark.parametrize(
    ("cards", "options", "jobs"),
    [
        (0, {"jobs": "auto", "threads": 2}, 2),
        (2, {"jobs": "auto", "device": "cuda:1"}, 1),
        (2, {"jobs": "auto", "jobs_per_gpu": 3}, 6),
        (2, {"jobs": None}, 1),
        (2, {"jobs": "auto", "plan": True}, 1),
    ],
)
def test_auto_means_the_cores_or_the_gpus(
    cards: int, options: dict[str, Any], jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "cores", lambda: 4)
    monkeypatch.setattr(resources, "visible_gpus", lambda: cards)
    terminal = types.SimpleNamespace(tool="test", status=None, once=None, tell=None, detail=None)
    monkeypatch.setattr(tool_options, "terminal", lambda **_: terminal)
    shared = {"store": "st", "replace": False, "plan": False, "engine": "local"}
    shared |= {"quiet": True, "verbose": False, "log": None, "threads": None, "device": "auto"}
    run = tool_options.build_context(**{**shared, "jobs_per_gpu": None, **options}).run
    assert run.placement.jobs == jobs


def array(*numbers: int) -> dict[str, str]:
    """The variables of a task of a Slurm array: its number, count of tasks, first, last and step."""
    names = ("ID", "COUNT", "MIN", "MAX", "STEP")
    return {f"SLURM_ARRAY_TASK_{name}": str(one) for name, one in zip(names, numbers, strict=False)}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "8"}, (3, 8)),
        ({**ARRAY, "SLURM_ARRAY_TASK_COUNT": "4"}, (3, 4)),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}, (1, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),  # the script of the job, which is one process
        ({**ARRAY, "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (6, 8)),
        ({"SLURM_ARRAY_TASK_ID": "x", "SLURM_ARRAY_TASK_COUNT": "8"}, (1, 8)),
        *((array(number, 3, 0, 8, 3), (number // 3 + 1, 3)) for number in (0, 3, 6)),
        ({**array(5, 2, 2, 5, 3), "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (4, 4)),
    ],
)
def test_the_variables_of_slurm(
    variables: dict[str, str], expected: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert resources.slurm_task() == expected
    if expected is None:
        with pytest.raises(UsageError, match=r"not a task of a Slurm job.*Write --shard I/N"):
            shard("auto")
    else:
        assert shard("auto") == expected


@pytest.mark.parametrize(
    "numbers",
    [*((one, 3, 1, 6, 1) for one in (1, 5, 6)), *((one, 3, 1, 4, 1) for one in (1, 2, 4)), (9, 8)],
)
def test_the_place_in_an_array_with_uneven_gaps_is_asked_for(
    numbers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in array(*numbers).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=rf"this is number {numbers[0]}\. .* --shard I/{numbers[1]}"):
        shard("auto")
    assert resources.slurm_tasks() == numbers[1]


def test_a_gpu_computes_in_float32_and_its_settings_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    torch.set_float32_matmul_precision("high")
    try:
        with device.float32(torch.device("cuda")):
            assert not torch.backends.cudnn.allow_tf32
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.backends.cudnn.allow_tf32 and torch.get_float32_matmul_precision() == "high"
        with device.float32(torch.device("cpu")):
            assert torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision("highest")
