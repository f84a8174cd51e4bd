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
import contextlib
import hashlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from rbtools.attacks import ATTACKS
from rbtools.evaluation.base import encoded
from rbtools.evaluation.tasks import AttackTask
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.jobs import evaluate_record
from rbtools.records import dumps
from rbtools.spaces import sized
from rbtools.store import Store
from rbtools.trainer import train_model
from rbtools.trainer.recipe import VALIDATED, Recipe
from rbtools.training import METHODS

BIN = Path(sys.executable).parent
# Where byte code may not be written, every start would compile the package again.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
TEST_IMAGES = 355  # of digits
LOOKUPS = 2000


class Known(Store):
    """A store that knows every outcome already, and has nobody to share work with."""

    def outcomes(self, key: str) -> bytes:
        right = np.random.default_rng(int(key[:8], 16)).random(TEST_IMAGES) < 0.9
        return encoded(right.astype(np.int32), {"seconds": 0.25}, ["cpu"])

    @contextlib.contextmanager
    def claimed(self, keys: Sequence[str], done: Callable[[], bool], *_: Any) -> Iterator[bool]:
        yield True


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
    question = AttackTask(ATTACKS.build("fgsm", eps=8 / 255), (8 / 255,))
    sync, os.fsync = os.fsync, lambda handle: None  # a power cut would only cost the bench
    try:
        for record in models(count // 2):
            evaluate_record.task_entries(resolve_inputs(record, run), question)
    finally:
        os.fsync = sync


def fitted(task: Any, run: Run, kept: Any, others: Any) -> dict[str, Any]:
    """What `train_model._fitted` gives, without a training: it is kept at once."""
    name = run.store.keep_object(f"weights of {kept.key}".encode())
    cost = {"seconds_per_epoch": 1.0, "device": "cpu", "threads": 1}
    done = {"checkpoint": name, **cost, "normalize": None, "history": {"loss": [1.0] * 10}}
    found: dict[str, Any] = kept.keep(done)
    return found


def fill_with_trainings(folder: Path, count: int) -> None:
    """Keep trainings, each with a checkpoint of a few bytes, as `rb-train` finds them."""
    run, how = Run.of(tool="rb-train", store=Known(folder), precision="auto"), Recipe(val=VALIDATED)
    sync, os.fsync = os.fsync, lambda handle: None
    try:
        with mock.patch.object(train_model, "_fitted", fitted):
            for record in models(count):
                train_model.train(record, METHODS.build("erm"), how, run)
    finally:
        os.fsync = sync


def timed(*command: str, source: Path | None = None) -> dict[str, float]:
    """Run a command with its records going nowhere: seconds, processor seconds, peak memory."""
    with open(source or os.devnull, "rb") as stdin:
        start = time.perf_counter()
        tool = subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=ENVIRONMENT
        )
        assert tool.stderr is not None
        said = tool.stderr.read().decode()
        _, status, usage = os.wait4(tool.pid, 0)
        seconds = time.perf_counter() - start
    tool.returncode = os.waitstatus_to_exitcode(status)
    if tool.returncode or ("computed" in said and "0 computed" not in said):
        raise SystemExit(f"{' '.join(command)} ended with status {tool.returncode}: {said}")
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    return {"seconds": seconds, "cpu": usage.ru_utime + usage.ru_stime, "peak_mb": peak}


def median(runs: list[dict[str, float]]) -> dict[str, Any]:
    figures = {key: round(statistics.median(run[key] for run in runs), 3) for key in runs[0]}
    return {**figures, "runs": [round(run["seconds"], 2) for run in runs]}


def show(figure: str, **values: Any) -> None:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    print(json.dumps({"figure": figure, **values, "load": load and round(load, 1)}), flush=True)


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


def crowd(folder: Path) -> None:
    """How many entries the fullest folder has."""
    most = max(len(names) + len(folders) for _, folders, names in os.walk(folder))
    show("entries in the fullest folder", entries=most, goal={"entries": 3000})


def forget(folder: Path) -> bool:
    """Ask the system to drop the store's files from its memory; False where it has no such call."""
    if not hasattr(os, "posix_fadvise"):
        return False
    os.sync()
    for path in Store(folder).files("results"):
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
    return True


def measure(folder: Path, runs: int, records: int) -> None:
    store = ("--store", str(folder))
    ls = (str(BIN / "rb-store"), "ls", *store)
    goal = {"seconds": 3}
    show("rb-store ls", **median([timed(*ls) for _ in range(runs)]), goal=goal)
    wanted = ("--where", 'fgsm.8 > 0.9 and arch.space == "nasbench201"')
    show("rb-store ls --where", **median([timed(*ls, *wanted) for _ in range(runs)]))
    if forget(folder):
        show("rb-store ls, files not in memory", **median([timed(*ls)]))
    key = next(iter(Store(folder).files("results"))).name
    show("rb-store ls KEY", **median([timed(*ls, key) for _ in range(runs)]))
    show("rb-store du", **median([timed(str(BIN / "rb-store"), "du", *store) for _ in range(runs)]))
    show("rb-store verify", **median([timed(str(BIN / "rb-store"), "verify", *store)]))
    lookups(folder, LOOKUPS)
    crowd(folder)
    found_again(("rb-attack", "fgsm", "--eps", "8", *store), runs, records)
    with tempfile.TemporaryDirectory() as temporary:
        fill_with_trainings(Path(temporary), records)
        found_again(("rb-train", "--store", temporary), runs, records)


def found_again(command: tuple[str, ...], runs: int, records: int) -> None:
    """How fast a filter is that finds everything in the store, with one record and with many."""
    tool = (str(BIN / command[0]), *command[1:])
    with tempfile.TemporaryDirectory() as temporary:
        one, many = Path(temporary, "one"), Path(temporary, "many")
        one.write_bytes(b"".join(dumps(record) + b"\n" for record in models(1)))
        many.write_bytes(b"".join(dumps(record) + b"\n" for record in models(records)))
        start = median([timed(*tool, source=one) for _ in range(runs)])
        found = median([timed(*tool, source=many) for _ in range(runs)])
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
