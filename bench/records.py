"""How many records a pipe without torch takes, and how much memory: rb-score | rb-rank --top 10.

    python bench/records.py [RECORDS ...]

Records with three metrics, as Python's `json` writes them, on standard input. Seconds on the clock, start-up
included, and of the processor; memory is the larger tool's peak. One JSON line a number of records.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.executable).parent
GOALS = {100_000: {"seconds": 4, "peak_mb": 150}, 1_000_000: {"seconds": 40, "peak_mb": 600}}


def make(path: str, count: int) -> None:
    """Write that many records."""
    draw = random.Random(0)
    with open(path, "w") as file:
        for index in range(count):
            metrics = {name: draw.random() for name in ("acc", "pgd20.8", "corrupt.mean")}
            record = {"schema": 1, "arch": {"index": index, "name": f"n{index}"}, "metrics": metrics}
            file.write(json.dumps(record) + "\n")


def main(counts: list[int]) -> None:
    for count in counts:
        with tempfile.NamedTemporaryFile() as file:
            make(file.name, count)
            start = time.perf_counter()
            with open(file.name, "rb") as records:
                score = subprocess.Popen([BIN / "rb-score"], stdin=records, stdout=subprocess.PIPE)
                rank = subprocess.Popen(
                    [BIN / "rb-rank", "--top", "10"], stdin=score.stdout, stdout=subprocess.DEVNULL
                )
            assert score.stdout is not None
            score.stdout.close()
            ended = [os.wait4(tool.pid, 0) for tool in (score, rank)]
        if any(status for _, status, _ in ended):
            sys.exit("a tool failed")
        line = {
            "figure": "rb-score | rb-rank --top 10",
            "records": count,
            "seconds": round(time.perf_counter() - start, 2),
            "cpu": round(sum(usage.ru_utime + usage.ru_stime for _, _, usage in ended), 2),
            "peak_mb": max(usage.ru_maxrss for _, _, usage in ended) * 1024 // 10**6,
            "load": round(os.getloadavg()[0], 1),
            "goal": GOALS.get(count),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main([int(count) for count in sys.argv[1:]] or list(GOALS))
