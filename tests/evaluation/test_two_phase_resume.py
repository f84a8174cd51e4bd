"""A killed two-phase run resumes from its stored outcomes, with the result of an uninterrupted run."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rbtools.evaluation import attacking, base
from tests import runner
from tests.runner import Record, one

ASKED = "pgd --steps 5 --eps 2 --n 120 --two-phase 40 --screen-steps 1 --device cpu --jobs 1"

# The process kills itself before call number `last` of an attack.
RUN = """
import os, signal, sys
from rbtools.commands import attack
from tests.evaluation import test_two_phase_resume as here
here.watch(setattr, lambda calls: calls < int(sys.argv[1]) or os.kill(os.getpid(), signal.SIGKILL))
attack.main(sys.argv[2:])
"""


def watch(patch: Callable[..., None], before: Callable[[int], object]) -> None:
    """Batches of 16 images, written at once; `before` gets the number of each call of an attack, and the file
    `calls` how many there were."""
    run_attack, numbers = attacking.run_attack, itertools.count()

    def counted(*positional: Any, **named: Any) -> Any:
        number = next(numbers)
        before(number)
        Path("calls").write_text(str(number + 1))
        return run_attack(*positional, **named)

    patch(attacking, "run_attack", counted)
    patch(base, "BATCH", {"cpu": 4})
    patch(base, "_SECONDS_BETWEEN_WRITES", 0.0)


def run(record: Record, store: str) -> tuple[Record, int]:
    """The entry of the attack, and how many calls there were."""
    with pytest.MonkeyPatch.context() as patch:
        watch(patch.setattr, lambda number: None)
        entry = one(runner.run("attack", f"{ASKED} --store {store}", [record]))["evals"][-1]
    return entry, int(Path("calls").read_text())


def killed(record: Record, store: str, last: int) -> int:
    """How many calls a process made that was killed before the call of this number."""
    words = [sys.executable, "-c", RUN, str(last), *ASKED.split(), "--store", store]
    result = subprocess.run(words, input=runner.lines(record), capture_output=True, text=True)
    assert result.returncode == -9, result.stderr
    return int(Path("calls").read_text())


@pytest.mark.parametrize(("last", "finished"), [(5, 4), (17, 17)])
def test_a_killed_run_goes_on(trained: dict[str, Record], last: int, finished: int) -> None:
    shutil.copytree("rb-store", "other-store")
    whole, calls = run(trained["erm"], "other-store")
    assert calls == 8 * 2 + 3  # screen: 8 batches; sample: 3
    assert killed(trained["erm"], "rb-store", last) == last
    resumed, left = run(trained["erm"], "rb-store")
    assert left == calls - finished
    cost = {"seconds": 0, "passes": 0}
    assert {**resumed, **cost} == {**whole, **cost}
