"""A two-phase run that is killed goes on where it was, and ends as one that was not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

Record = dict[str, Any]
ASKED = "pgd --steps 5 --eps 2 --n 120 --screen-steps 1 --two-phase 40 --device cpu --jobs 1".split()

# Batches of 16 images, written at once; the process kills itself before call number `last` of an attack, and
# writes how many calls there were.
RUN = """
import os, signal, sys
from rbtools.evaluation import adversarial, batches, outcomes
batches.BATCH, outcomes._SECONDS_BETWEEN_WRITES = {"cpu": 4}, 0.0
attack, calls, last = adversarial.run_attack, 0, int(sys.argv[1])

def counted(*positional, **named):
    global calls
    if calls == last:
        os.kill(os.getpid(), signal.SIGKILL)
    calls += 1
    with open("calls", "w") as file:
        file.write(str(calls))
    return attack(*positional, **named)

adversarial.run_attack = counted
from rbtools.commands.attack import main
main(sys.argv[2:])
"""


def run(record: Record, store: str, last: int = -1) -> tuple[int, dict[str, Any] | None, int]:
    """The status, the entry of the attack, and how many calls there were."""
    Path("calls").write_text("0")
    words = [sys.executable, "-c", RUN, str(last), *ASKED, "--store", store]
    result = subprocess.run(words, input=json.dumps(record) + "\n", capture_output=True, text=True)
    assert result.returncode in (0, -9), result.stderr
    entry = json.loads(result.stdout)["evals"][-1] if result.stdout else None
    return result.returncode, entry, int(Path("calls").read_text())


@pytest.mark.parametrize(("last", "finished"), [(5, 4), (17, 17)])
def test_a_killed_run_goes_on(trained: dict[str, Record], last: int, finished: int) -> None:
    shutil.copytree("rb-store", "other-store")
    status, whole, calls = run(trained["erm"], "other-store")
    assert status == 0 and whole is not None and calls == 8 * 2 + 3  # screen: 8 batches; sample: 3
    assert run(trained["erm"], "rb-store", last)[::2] == (-9, last)
    status, resumed, left = run(trained["erm"], "rb-store")
    assert status == 0 and resumed is not None and left == calls - finished
    cost = {"seconds": 0, "passes": 0}
    assert {**resumed, **cost} == {**whole, **cost}
