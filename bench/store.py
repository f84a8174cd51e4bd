"""How fast a store of 100,000 results is: one JSON line a figure.

    python bench/store.py [RESULTS] [RUNS] [--store FOLDER]

The store is made by the evaluators themselves, for networks that nobody trained: what they would find is
put under their hands (`Known`), so no torch is needed and no disk is waited for. Figures are medians of
fresh processes, start-up included, with records going to /dev/null; `cpu` is the processor time that a
run took, which is what remains of `seconds` on a machine that does nothing else. FOLDER is kept and used
again where it is there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import BIN, fresh, medians, show

from rbtools.attacks import ATTACKS
from rbtools.evaluation import accuracy
from rbtools.evaluation.base import OutcomeRows
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.jobs import stored_results
from rbtools.records import dumps
from rbtools.spaces import sized
from rbtools.store import Store

TEST_IMAGES = 355  # of digits
LOOKUPS = 2000


class Known(Store):
    """A store that knows every outcome already."""

    def outcomes(self, key: str) -> bytes:
        right = np.random.default_rng(int(key[:8], 16)).random(TEST_IMAGES) < 0.9
        return OutcomeRows(right.astype(np.int32), {"seconds": 0.25}, ["cpu"]).encoded()


def models(count: int) -> Iterator[dict[str, Any]]:
    """Records of networks with checkpoints that do not exist."""
    cells = sized("nasbench201", cells=1)
    for number in range(count):
        arch = cells.arch(number % 15625)
        name = hashlib.sha256(f"checkpoint {number}".encode()).hexdigest()
        yield {"schema": 1, "arch": arch, "dataset": "digits", "checkpoint": f"sha256:{name}"}


def fill(folder: Path, count: int) -> None:
    """Keep two results, clean accuracy and FGSM's, for each of count / 2 models."""
    run = Run.of(tool="rb-attack", store=Known(folder), precision="auto")
    question = accuracy.attacked(ATTACKS.build("fgsm", eps=8 / 255), (8 / 255,))
    sync, os.fsync = os.fsync, lambda handle: None  # a power cut would only cost the bench
    try:
        for record in models(count // 2):
            stored_results.task_entries(resolve_inputs(record, run), question)
    finally:
        os.fsync = sync


def lookups(folder: Path, count: int) -> None:
    """One look-up after another, by keys in no order."""
    names = [path.name for path in Store(folder).files("results")]
    store, took = Store(folder), []
    for name in random.Random(0).sample(names, min(count, len(names))):
        start = time.perf_counter()
        found = store.result(name)
        took.append((time.perf_counter() - start) * 1000)
        assert found is not None
    took.sort()
    worst = took[int(len(took) * 0.99)]
    figures = {"median_ms": round(statistics.median(took), 3), "p99_ms": round(worst, 3)}
    show("look-up", **figures, goal={"median_ms": 2})


def measure(folder: Path, runs: int, records: int) -> None:
    store = ("--store", str(folder))
    ls = (str(BIN / "rb-store"), "ls", *store)
    goal = {"seconds": 3}
    show("rb-store ls", **medians([fresh(*ls) for _ in range(runs)]), goal=goal)
    show("rb-store verify", **medians([fresh(str(BIN / "rb-store"), "verify", *store)]))
    lookups(folder, LOOKUPS)
    found_again(("rb-attack", "fgsm", "--eps", "8", *store), runs, records)


def found_again(command: tuple[str, ...], runs: int, records: int) -> None:
    """How fast a filter is that finds everything in the store, with one record and with many."""
    tool = (str(BIN / command[0]), *command[1:])
    with tempfile.TemporaryDirectory() as temporary:
        one, many = Path(temporary, "one"), Path(temporary, "many")
        one.write_bytes(b"".join(dumps(record) + b"\n" for record in models(1)))
        many.write_bytes(b"".join(dumps(record) + b"\n" for record in models(records)))
        start = medians([fresh(*tool, source=one) for _ in range(runs)])
        every = [fresh(*tool, source=many) for _ in range(runs)]
        if any("computed" in run["said"] and "0 computed" not in run["said"] for run in every):
            raise SystemExit(f"{' '.join(tool)} did not find all: {every[0]['said']}")
        found = medians(every)
    show(f"{command[0]} that finds one record's results", **start)
    rate = {"per_second": round(records / found["seconds"]), "per_cpu_second": round(records / found["cpu"])}
    name = f"{command[0]} that finds {records} records' results"
    show(name, **rate, **found, goal={"per_second": 2000})


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    words.add_argument("results", nargs="?", type=int, default=100_000)
    words.add_argument("runs", nargs="?", type=int, default=5)
    words.add_argument("--store", type=Path, default=None)
    given = words.parse_args()
    show("machine", cores=os.cpu_count(), machine=platform.machine(), python=platform.python_version())
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.store or Path(temporary, "store")
        if not folder.exists():
            start = time.perf_counter()
            fill(folder, given.results)
            show("made", results=given.results, seconds=round(time.perf_counter() - start, 1))
        measure(folder, given.runs, min(given.results // 2, 20_000))


if __name__ == "__main__":
    main()
