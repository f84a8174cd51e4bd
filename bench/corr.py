"""rb-corr on a table as large as the benchmarks': 6,466 records with 86 metrics, all with all.

python bench/corr.py [--records 6466] [--metrics 86]

Values are accuracies over 10,000 images, so many are equal. Seconds of rb-corr, reading included, on the
clock and of the processor.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=6466)
    parser.add_argument("--metrics", type=int, default=86)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "records.jsonl")
        path.write_text(records(options.records, options.metrics))
        for kind, goal in (("spearman", 2), ("kendall", 10)):
            command = [sys.executable, "-m", "rbtools.commands.corr", "--kind", kind, str(path)]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            start = time.perf_counter()
            done = subprocess.run(command, capture_output=True, check=True)
            wall = time.perf_counter() - start
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            line = {
                "figure": f"{kind}, {options.records} records, {options.metrics} metrics",
                "pairs": done.stdout.count(b"\n"),
                "seconds": round(wall, 2),
                "processor": round(spent, 2),
                "peak MB": round(after.ru_maxrss / 1024),
                "goal": goal,
                "load": round(os.getloadavg()[0], 1),
            }
            print(json.dumps(line), flush=True)


def records(count: int, metrics: int) -> str:
    """Records as rb-convert gives them: accuracies that have to do with each other, over 10,000 images."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(count, 1))
    accuracy = 1 / (1 + np.exp(-shared - rng.normal(size=(count, metrics))))
    lines = []
    for index, row in enumerate(accuracy.round(4)):
        values = {f"attack{column}.8": float(value) for column, value in enumerate(row)}
        lines.append(json.dumps({"schema": 1, "arch": {"name": f"n{index}"}, "metrics": values}))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
