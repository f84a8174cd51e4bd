"""Time of rb-search: 100 runs of 150 queries on a table of the 6,466 architectures of NAS-Bench-201.

    python bench/search.py [--runs 100]

The table is synthetic (a sum over edges, and noise). One JSON line a figure: wall clock, and processor time
of the command with all its processes, which says more on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from rbtools.spaces import nasbench201

METRICS = ("acc", "fgsm.3", "pgd20.3", "fgsm.8", "pgd20.8")


def write_table(path: Path) -> None:
    """A record for each class of cells, with five metrics and how they were measured."""
    chance = Random(1)
    worth = [[chance.gauss(0, 1) for _ in nasbench201.OPS] for _ in nasbench201.EDGES]
    with path.open("w") as stream:
        for index in nasbench201.unique():
            arch = nasbench201.arch(index)
            ops = nasbench201.ops_of(arch)
            base = sum(row[op] for row, op in zip(worth, ops, strict=True)) / 60 + 0.6
            values = {name: base - 0.1 * place for place, name in enumerate(METRICS)}
            values = {name: value + chance.gauss(0, 0.005) for name, value in values.items()}
            evals = [{"metric": name, "value": value, "n": 10000} for name, value in values.items()]
            record = {"schema": 1, "arch": arch, "dataset": "cifar10", "metrics": values, "evals": evals}
            stream.write(json.dumps(record, separators=(",", ":")) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--searches", default="random,local,evolution,nsga2,bananas")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "table.jsonl")
        write_table(table)
        for name in asked.searches.split(","):
            command = [sys.executable, "-m", "rbtools.search.search", name, "--objective", "pgd20.8"]
            command += ["--runs", str(asked.runs), "--table", str(table)]
            before, start = os.times(), time.perf_counter()
            done = subprocess.run(command, capture_output=True, check=True)
            seconds, after = time.perf_counter() - start, os.times()
            found = json.loads(done.stdout)["search"]
            used = after.children_user - before.children_user + after.children_system - before.children_system
            figure = {"search": name, "runs": asked.runs, "seconds": round(seconds, 2), "cpu": round(used, 2)}
            print(json.dumps({**figure, "reached": found["gap"]["reached"]}), flush=True)


if __name__ == "__main__":
    main()
