"""How fast CIFAR-10's 50,000 training images load, and with how much memory: one JSON line a figure.

    python bench/datasets.py [--data DIR] [RUNS]

DIR holds CIFAR-10 (`cifar-10-batches-py` or its archive). Without it a stand-in of the same layout and size
is made in a temporary folder; its pixels are random, which costs a loader the same and the unpacking of its
archive more. Every run is a fresh process that has imported torch before the clock starts; peak memory is
what the process took at most beyond what it had then. `goal` is what a figure has to reach.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import platform
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

FOLDER, ARCHIVE = "cifar-10-batches-py", "cifar-10-python.tar.gz"

# Files of other content have other checksums: those found are given as the published ones.
CHILD = """
import json, sys, time
import torch
from rbtools import datasets
from rbtools.datasets import cifar

def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

folder, what, sums = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
if sums:
    cifar.Cifar10.files = {"train": tuple(map(tuple, sums))}
    cifar.Cifar10.archive = cifar.Cifar10.archive._replace(md5=None)
before, start, cpu = peak(), time.perf_counter(), time.process_time()
if what == "load":
    found = datasets.load("cifar10", "train", folder)
    assert found.images.shape == (50_000, 3, 32, 32) and found.images.dtype == torch.uint8
else:
    datasets.fingerprint("cifar10", "train", folder)
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "mb": (peak() - before) / 1e6}))
"""


def stand_in(folder: Path) -> list[tuple[str, str]]:
    """Five batches of 10,000 random images in the official layout; (name, MD5) of each."""
    (folder / FOLDER).mkdir()
    generator, sums = np.random.default_rng(0), []
    for number in range(1, 6):
        batch = {
            "data": generator.integers(0, 256, (10_000, 3072), dtype=np.uint8),
            "labels": generator.integers(0, 10, 10_000).tolist(),
            "batch_label": f"training batch {number} of 5",
            "filenames": [f"image_{number}_{i:05}.png" for i in range(10_000)],
        }
        data = pickle.dumps(batch, protocol=3)
        (folder / FOLDER / f"data_batch_{number}").write_bytes(data)
        sums.append((f"data_batch_{number}", hashlib.md5(data, usedforsecurity=False).hexdigest()))
    return sums


def measured(folder: Path, what: str, sums: Any, runs: int) -> dict[str, Any]:
    """Medians over fresh processes, after one that is not counted (it warms the disk's cache)."""
    command = [sys.executable, "-c", CHILD, str(folder), what, json.dumps(sums)]
    found = []
    for _ in range(runs + 1):
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(ended.stdout))
    figures = {key: round(statistics.median(run[key] for run in found[1:]), 3) for key in found[0]}
    return {**figures, "runs": [round(run["seconds"], 3) for run in found[1:]]}


def show(figure: str, **values: Any) -> None:
    print(json.dumps({"figure": figure, **values}), flush=True)


def main(data: Path | None, runs: int) -> None:
    show("machine", cores=os.cpu_count(), machine=platform.machine(), python=platform.python_version())
    with tempfile.TemporaryDirectory() as temporary:
        folder, sums = (Path(temporary), stand_in(Path(temporary))) if data is None else (data, None)
        if (folder / FOLDER).is_dir():
            goal = {"seconds": 1, "mb": 250}
            show("CIFAR-10 train from pickles", **measured(folder, "load", sums, runs), goal=goal)
            show(
                "its checksums and fingerprint, the first time", **measured(folder, "fingerprint", sums, runs)
            )
        packed = folder
        if data is None:
            packed = folder / "packed"
            packed.mkdir()
            with tarfile.open(packed / ARCHIVE, "w:gz", compresslevel=1) as out:
                out.add(folder / FOLDER, FOLDER)
        if (packed / ARCHIVE).is_file() and not (packed / FOLDER).is_dir():
            show(f"CIFAR-10 train from {ARCHIVE}", **measured(packed, "load", sums, runs))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("runs", nargs="?", type=int, default=5)
    options = parser.parse_args()
    main(options.data, options.runs)
