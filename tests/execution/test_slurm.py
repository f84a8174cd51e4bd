"""Which task of a Slurm job a process is."""

from __future__ import annotations

import pytest

from rbtools.cli.source import shard
from rbtools.errors import UsageError
from rbtools.execution import slurm

ARRAY = {"SLURM_ARRAY_TASK_ID": "6", "SLURM_ARRAY_TASK_MIN": "2", "SLURM_ARRAY_TASK_STEP": "2"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "8"}, (3, 8)),
        ({**ARRAY, "SLURM_ARRAY_TASK_COUNT": "4"}, (3, 4)),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}, (1, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),  # the script of the job, which is one process
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({**ARRAY, "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (6, 8)),
        ({"SLURM_ARRAY_TASK_ID": "x", "SLURM_ARRAY_TASK_COUNT": "8"}, (1, 8)),
        ({"SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_TASK_COUNT": "8"}, None),
    ],
)
def test_the_variables_of_slurm(
    variables: dict[str, str], expected: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert slurm.task() == expected
    if expected is None:
        with pytest.raises(UsageError, match=r"no task of a Slurm job.*Write --shard I/N"):
            shard("auto")
    else:
        assert shard("auto") == expected
