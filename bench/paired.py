"""Two checkouts of the package side by side: the same commands in turn, processor time as a ratio.

    python bench/paired.py [--runs N] OTHER_CHECKOUT [FIGURE ...]

Each figure is a command of fresh processes, run with this checkout and with the other one alternately, after
one pair that is not counted. One JSON line a figure: medians of the processor time (user and system) and the
median of the ratios of the pairs, this one over the other. Run it again with the same checkout twice to see
what a ratio means on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import store
import tomllib

HERE = Path(__file__).resolve().parents[1]
CELL = "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|skip_connect~0|nor_conv_3x3~1|nor_conv_3x3~2|"
RESULTS, FOUND = 100_000, 10_000


def _million(file: Path) -> None:
    """Records with three metrics, as Python's `json` writes them."""
    draw = random.Random(0)
    with file.open("w") as stream:
        for index in range(1_000_000):
            metrics = {name: draw.random() for name in ("acc", "pgd20.8", "corrupt.mean")}
            record = {"schema": 1, "arch": {"index": index, "name": f"n{index}"}, "metrics": metrics}
            stream.write(json.dumps(record) + "\n")


def _figures(folder: Path) -> dict[str, str]:
    """Figure -> a line for bash. The files that they read are made here, by this checkout."""
    _million(folder / "million.jsonl")
    arch = {"schema": 1, "arch": {"space": "nasbench201", "str": CELL, "channels": 8, "cells": 1}}
    (folder / "arch.jsonl").write_text(json.dumps(arch) + "\n")
    store.fill(folder / "large", RESULTS)
    (folder / "models.jsonl").write_text("".join(json.dumps(model) + "\n" for model in store.models(FOUND)))
    train = "rb-train --method pgd --epochs 1 --device cpu --store"
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    subprocess.run(
        f"{train} trained < arch.jsonl > trained.jsonl", shell=True, cwd=folder, env=environment, check=True
    )
    return {
        "start-up": "for i in 1 2 3 4 5; do rb-rank --version; rb-attack pgd --help; done >/dev/null",
        "a million records": "rb-score < million.jsonl | rb-rank --top 10 >/dev/null",
        f"{FOUND} models in a store of {RESULTS} results": (
            "rb-attack fgsm --store large < models.jsonl >/dev/null"
        ),
        "PGD-20": "rb-attack pgd --steps 20 --force --store trained < trained.jsonl >/dev/null",
        "Square, noise": (
            "for attack in 'square --queries 100' 'noise --samples 100'; do"
            " rb-attack $attack --eps 8 --force --store trained < trained.jsonl; done >/dev/null"
        ),
        "APGD, FAB": (
            "for attack in 'apgd-ce --steps 30' 'apgd-t --steps 10' 'fab-t --steps 5'; do"
            " rb-attack $attack --eps 8 --n 96 --force --store trained < trained.jsonl; done >/dev/null"
        ),
        "minimal norms": (
            "for attack in 'fmn --steps 50' 'ddn --steps 50' 'cw-l2 --steps 50 --searches 1'; do"
            " rb-attack $attack --n 128 --force --store trained < trained.jsonl; done >/dev/null"
        ),
        "PR": "rb-pr --gamma 0.05,0.1 --samples 100 --force --store trained < trained.jsonl >/dev/null",
        "training, an epoch": f"rm -rf other; {train} other < arch.jsonl >/dev/null",
        "training by at-pr, an epoch": (
            "rm -rf other; rb-train --method at-pr --candidates 2 --epochs 1 --device cpu --store other"
            " < arch.jsonl >/dev/null"
        ),
    }


def _tools(checkout: Path, folder: Path) -> Path:
    """A folder of the commands of a checkout, by its own list of entry points."""
    scripts = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["scripts"]
    folder.mkdir()
    for name, entry in scripts.items():
        module, function = entry.split(":")
        (folder / name).write_text(
            f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        )
        (folder / name).chmod(0o755)
    return folder


def _cpu(line: str, checkout: Path, tools: Path, folder: Path) -> float:
    """Seconds of the processor that a line took with a checkout."""
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PATH": path}
    before = os.times()
    subprocess.run(
        ["bash", "-o", "pipefail", "-ec", line],
        cwd=folder,
        env=environment,
        check=True,
        stderr=subprocess.DEVNULL,
    )
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("figures", nargs="*")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sides = [
            (checkout, _tools(checkout, folder / f"bin{number}"))
            for number, checkout in enumerate((HERE, arguments.other.resolve()))
        ]
        for figure, line in _figures(folder).items():
            if arguments.figures and figure not in arguments.figures:
                continue
            pairs = [
                [_cpu(line, checkout, tools, folder) for checkout, tools in sides]
                for _ in range(arguments.runs + 1)
            ]
            mine, theirs = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
            ratio = statistics.median(this / other for this, other in pairs[1:])
            words = {"cpu": round(mine, 3), "other_cpu": round(theirs, 3), "ratio": round(ratio, 3)}
            print(json.dumps({"figure": figure, **words, "runs": arguments.runs}), flush=True)


if __name__ == "__main__":
    main()
