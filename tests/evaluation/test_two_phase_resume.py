"""A killed two-phase run resumes from its stored outcomes, with the result of an uninterrupted run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests.runner import Record, lines

ASKED = "pgd --steps 5 --eps 2 --n 120 --two-phase 40 --screen-steps 1 --device cpu --jobs 1"
# Batches of 16 images, written at once; the process kills itself instead of one more call of an attack.
RUN = """
import os, signal, sys
from rbtools.commands import attack
from rbtools.evaluation import attacking, base

run_attack, left = attacking.run_attack, [None] * int(sys.argv[1])

def counted(*positional, **named):
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left.pop()
    print("call", file=sys.stderr, flush=True)
    return run_attack(*positional, **named)

attacking.run_attack, base.BATCH, base._SECONDS_BETWEEN_WRITES = counted, {"cpu": 4}, 0.0
attack.main(sys.argv[2:])
"""


def run(record: Record, store: str, most: int = 99) -> tuple[Any, int]:
    """The entry of the attack, None if the process was killed, and how many calls there were."""
    words = [sys.executable, "-c", RUN, str(most), *ASKED.split(), "--store", store]
    done = subprocess.run(words, input=lines(record), capture_output=True, text=True)
    assert done.returncode == (0 if done.stdout else -9), done.stderr
    return json.loads(done.stdout)["evals"][-1] if done.stdout else None, done.stderr.count("call\n")


@pytest.mark.parametrize(("last", "finished"), [(5, 4), (17, 17)])
def test_a_killed_run_goes_on(trained: dict[str, Record], last: int, finished: int) -> None:
    shutil.copytree("rb-store", "other-store")
    whole, calls = run(trained["erm"], "other-store")
    assert calls == 8 * 2 + 3  # screen: 8 batches; sample: 3
    assert run(trained["erm"], "rb-store", last) == (None, last)
    resumed, left = run(trained["erm"], "rb-store")
    assert left == calls - finished
    cost = {"seconds": 0, "passes": 0}
    assert {**resumed, **cost} == {**whole, **cost}
