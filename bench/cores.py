"""Whether the stages of a pipe share the cores: running threads over time, and what overlap gains.

    python bench/cores.py [--jobs 2]

The pipe trains (two workers), attacks and samples. Every 20 ms the threads of its processes that want a
core (state R) are counted, from the first record on, when imports are over. Then the stages run one after
another on a store of their own. One JSON line; linux only.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

STAGES = (
    "rb-arch --sample 6 --seed 1 --cells 1",
    "rb-train --method pgd --epochs 2 --attack-steps 3 -q {}",
    "rb-attack pgd --steps 10 --eps 8,16 -q",
    "rb-pr --gamma 0.1 --samples 50 -q",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2, help="workers of the training stage [2]")
    options = parser.parse_args()
    stages = [stage.format(f"--jobs {options.jobs}") for stage in STAGES]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        counts = piped(" | ".join(stages), Path(folder, "piped"))
        together = time.perf_counter() - start
        apart = one_after_another(stages, Path(folder, "apart"), Path(folder))
    cores = len(os.sched_getaffinity(0))
    total = sum(counts.values())
    line = {
        "figure": "a pipe's threads that want a core",
        "cores": cores,
        "samples": total,
        "most": max(counts),
        "share above the cores": round(sum(n for k, n in counts.items() if k > cores) / total, 4),
        "pipe, seconds": round(together, 1),
        "its stages one after another, seconds": round(apart, 1),
        "ratio": round(together / apart, 2),
    }
    print(json.dumps(line))


def environment(store: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "RB_STORE": str(store), "PATH": path}


def piped(line: str, store: Path) -> collections.Counter[int]:
    """Run the pipe: how often how many of its threads wanted a core at once."""
    process = subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", line],
        stdout=subprocess.PIPE,
        env=environment(store),
        start_new_session=True,
    )
    counts: collections.Counter[int] = collections.Counter()
    first = threading.Event()

    def watch() -> None:
        first.wait()
        while process.poll() is None:
            counts[running(process.pid)] += 1
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert process.stdout is not None
    for _ in process.stdout:
        first.set()
    first.set()
    if process.wait():
        raise SystemExit(f"the pipe ended with status {process.returncode}")
    watcher.join()
    return counts


def running(session: int) -> int:
    """Threads in state R of all processes of a session."""
    found = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) != session:
                continue
            for thread in (stat.parent / "task").iterdir():
                found += (thread / "stat").read_text().rpartition(")")[2].split()[0] == "R"
        except OSError:
            continue
    return found


def one_after_another(stages: list[str], store: Path, folder: Path) -> float:
    """Seconds for the stages, each reading the file that the one before it wrote."""
    start = time.perf_counter()
    for number, stage in enumerate(stages):
        source = folder / f"{number - 1}.jsonl" if number else Path(os.devnull)
        with open(source, "rb") as stdin, open(folder / f"{number}.jsonl", "wb") as stdout:
            subprocess.run(stage.split(), stdin=stdin, stdout=stdout, env=environment(store), check=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
