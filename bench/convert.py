"""What rb-convert costs on files as large as the published ones: one JSON line a figure.

    python bench/convert.py

The files are made up in the published layouts, with random numbers for all 6,466 architectures: three data
sets and three seeds of NAS-RobBench-201, one data set of the robustness dataset with its 108 accuracies.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rbtools.corruptions import CORRUPTIONS
from rbtools.papers.evaluation_presets import ATTACKS
from rbtools.spaces import nasbench201

KEYS = {"fgsm": "fgsm@Linf", "pgd": "pgd@Linf", "apgd-ce": "aa_apgd-ce@Linf", "square": "aa_square@Linf"}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_nasrobbench(Path("all.json"))
        make_jung(Path("data"))
        for name, source, target in (
            ("nasrobbench201", "all.json", "again.json"),
            ("jung2023", "data", "again"),
        ):
            figure(f"{name}: read", convert(name, source, into="records.jsonl"))
            figure(f"{name}: written", convert(name, "--write", target, "records.jsonl"))


def make_nasrobbench(path: Path) -> None:
    draw = random.Random(0)
    names = ("val_acc", *(f"val_{attack}_{eps}_acc" for attack in ("fgsm", "pgd") for eps in (3.0, 8.0)))
    seeds = ("0", "1", "2", "threeseed")
    found = {
        dataset: {
            str(index): {name: {seed: draw.random() for seed in seeds} for name in names}
            for index in nasbench201.unique()
        }
        for dataset in ("cifar10", "cifar100", "imagenet")
    }
    path.write_text(json.dumps(found))


def make_jung(folder: Path) -> None:
    draw = random.Random(0)
    (folder / "cifar10").mkdir(parents=True)
    epsilons = {KEYS[part.attack]: part.eps for part in ATTACKS["jung2023"]}
    (folder / "meta.json").write_text(json.dumps({"epsilons": epsilons}))
    lengths = {key: len(levels) for key, levels in epsilons.items()} | dict.fromkeys(CORRUPTIONS.all, 5)
    for key, length in {"clean": 0, **lengths}.items():
        values: dict[str, Any] = {}
        for index in nasbench201.unique():
            one = [round(draw.random(), 4) for _ in range(max(length, 1))]
            values[str(index)] = one if length else one[0]
        (folder / "cifar10" / f"{key}_accuracy.json").write_text(
            json.dumps({"cifar10": {key: {"accuracy": values}}})
        )


def convert(*arguments: str, into: str = os.devnull) -> dict[str, Any]:
    """Processor seconds and the most memory of one run, in a process of its own."""
    code = "import sys; from rbtools.commands.convert import main; main(sys.argv[1:])"
    with open(into, "wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], stdout=out, stderr=subprocess.DEVNULL
        )
        _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"rb-convert {' '.join(arguments)} ended with {status}")
    found = {"cpu": round(used.ru_utime + used.ru_stime, 2), "MiB": used.ru_maxrss // 1024}
    if into != os.devnull:
        with open(into, "rb") as lines:
            found["records"] = sum(1 for _ in lines)
    return found


def figure(name: str, found: dict[str, Any]) -> None:
    print(json.dumps({"figure": name, **found}), flush=True)


if __name__ == "__main__":
    main()
