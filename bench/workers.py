"""What worker processes gain: eight small trainings by one and by two workers, start-up excluded.

    python bench/workers.py [--trainings 8] [--repeats 3]

Interleaved: one worker with one thread, two workers with one thread each, one worker with two threads;
medians, and the ratios to the first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time

from rbtools.execution.executor import Executor, Finished, Job
from rbtools.execution.local import LocalExecutor
from rbtools.execution.run import Run
from rbtools.jobs import TrainJob
from rbtools.spaces import sized
from rbtools.store import Store
from rbtools.trainer.recipe import Recipe
from rbtools.training import METHODS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainings", type=int, default=8, help="independent trainings [8]")
    parser.add_argument("--repeats", type=int, default=3, help="times each way is measured [3]")
    parser.add_argument("--epochs", type=int, default=2, help="of each training [2]")
    options = parser.parse_args()
    ways = {"1 worker, 1 thread": (1, 1), "2 workers, 1 thread": (2, 1), "1 worker, 2 threads": (1, 2)}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(options.repeats):
        for way, (jobs, threads) in ways.items():
            times[way].append(seconds(jobs, threads, options.trainings, options.epochs))
    medians = {way: statistics.median(runs) for way, runs in times.items()}
    line: dict[str, object] = {
        "figure": f"{options.trainings} trainings",
        "seconds": {way: round(value, 1) for way, value in medians.items()},
        "two workers against one": round(medians["1 worker, 1 thread"] / medians["2 workers, 1 thread"], 2),
        "two workers against two threads": round(
            medians["1 worker, 2 threads"] / medians["2 workers, 1 thread"], 2
        ),
    }
    print(json.dumps(line))


def seconds(jobs: int, threads: int, trainings: int, epochs: int) -> float:
    """The time for all trainings, from when every worker has done a first, tiny one."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run.of(tool="bench", store=Store(folder), device="cpu", jobs=jobs, threads=threads)
        method = METHODS.build("pgd", attack_steps=3)
        works = [TrainJob(method, Recipe(epochs=0), seed, run) for seed in range(jobs)]
        works += [TrainJob(method, Recipe(epochs=epochs), 100 + seed, run) for seed in range(trainings)]
        record = {"arch": sized("nasbench201", channels=8, cells=1).arch(13714), "dataset": "digits"}
        with LocalExecutor(works, run) as executor:
            for number in range(jobs):
                executor.submit(Job(number, number, record))
            finish(executor, jobs)
            start = time.perf_counter()
            for number in range(jobs, len(works)):
                executor.submit(Job(number, number, record))
            finish(executor, trainings)
            return time.perf_counter() - start


def finish(executor: Executor, count: int) -> None:
    """Wait until that many jobs have ended."""
    for event in itertools.islice(executor.events(), count):
        if isinstance(event, Finished) and event.report.problem:
            raise SystemExit(event.report.problem)


if __name__ == "__main__":
    main()
