"""What the figures of the papers cost at full scale: one JSON line a target, with peak memory and seconds.

    python bench/papers.py [NAME ...]

The records are made up, in the numbers and sizes of the full scale: 6,466 architectures, three data sets, and
three seeds of NAS-RobBench-201, with entries of 51 KB a record; 160 records of PRBench; 8 trainings of 200
epochs. The memory is that of all processes together, sampled every tenth of a second.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from common import show

from rbtools import spaces
from rbtools.corruptions import CORRUPTIONS
from rbtools.papers import reproduce_prbench as prbench
from rbtools.papers.__main__ import FIGURES
from rbtools.records import dumps
from rbtools.spaces import nasbench201

SETS = ("cifar10", "cifar100", "imagenet16-120")
CORRUPTED = [f"corrupt.{name}" for name in CORRUPTIONS]
KERNELS = [
    "ntk.clean.fro",
    *(
        f"ntk.{kind}.fro.{attack}.{eps}"
        for kind in ("robust", "twice", "cross", "cross2")
        for attack in ("fgsm", "pgd")
        for eps in (3, 8)
    ),
]
NASROBBENCH = [
    *("acc", "fgsm.3", "fgsm.8", "pgd20.3", "pgd20.8", "pgd20.16", "pgd20.32", "pgd20.64", "pgd20.128"),
    *("pgd20.255", "square.3", "aa.8", "naswot", *KERNELS),
    *(f"{name}.{severity}" for name in CORRUPTED for severity in (1, 5)),
]
JUNG_EPS = ("0.1", "0.5", "1", "2", "3", "4", "8")
JUNG = [
    *("acc", "corrupt.mean", *(f"{a}.{e}" for a in ("fgsm", "pgd40", "apgd-ce", "square") for e in JUNG_EPS)),
    *(f"{name}.{severity}" for name in CORRUPTED for severity in range(1, 6)),
    *(f"{name}.{part}" for name in ("jacobian", "hessian") for part in ("test", "train")),
]
EXPLAINED = {"split": "test", "n": 10000, "seed": 0, "protocol": "x" * 560, "seconds": 1.5}


def entry(metric: str, value: float, draw: random.Random, classes: int = 0) -> dict[str, Any]:
    more = {}
    if classes:
        square = [[draw.random() for _ in range(classes)] for _ in range(classes)]
        counts = [100] * classes
        more = {
            "detail": {
                "confusion": [[int(100 * value) for value in row] for row in square],
                "confidence": {"prediction": [0.9, 0.5], "label": square, "argmax": square},
                "images": {"label": counts, "argmax": counts},
            }
        }
    return {
        "tool": "rb-attack",
        "metric": metric,
        "value": value,
        "ci95": [value, value],
        **EXPLAINED,
        **more,
    }


def archs() -> list[dict[str, Any]]:
    return [
        spaces.describe({"space": "nasbench201", "index": at}, 10, (3, 32, 32)) for at in nasbench201.unique()
    ]


def record(
    arch: dict[str, Any],
    dataset: str,
    train: dict[str, Any],
    metrics: Iterable[str],
    number: int,
    classes: int = 0,
) -> dict[str, Any]:
    draw = random.Random(number)
    values = {name: round(draw.random(), 4) for name in metrics}
    detailed = ("acc", "fgsm", "pgd40")
    entries = [
        entry(name, value, draw, classes if name.partition(".")[0] in detailed else 0)
        for name, value in values.items()
    ]
    return {
        "schema": 1,
        "arch": arch,
        "dataset": dataset,
        "train": {"method": "pgd", "seed": 0, "config": {}, **train},
        "checkpoint": f"sha256:{number:064x}",
        "metrics": values,
        "evals": entries,
    }


def nas_robbench() -> Iterator[dict[str, Any]]:
    history = {name: [0.123456] * 50 for name in ("loss", "acc", "lr", "seconds")}
    networks = archs()
    for place, dataset in enumerate(SETS):
        for arch in networks:
            for seed in range(3):
                number = (place * 20000 + arch["index"]) * 3 + seed
                yield record(arch, dataset, {"seed": seed, "history": history}, NASROBBENCH, number)


def robustness_dataset() -> Iterator[dict[str, Any]]:
    networks = archs()
    for place, dataset in enumerate(SETS):
        for arch in networks:
            yield record(
                arch, dataset, {"method": "erm"}, JUNG, place * 20000 + arch["index"], 10 * (place == 0)
            )


def of_prbench() -> Iterator[dict[str, Any]]:
    pairs = [("cifar10", "resnet18"), *((f"{dataset}", f"net{n}") for dataset in SETS for n in range(5))]
    for place, (dataset, name) in enumerate(pairs):
        for number, method in enumerate(prbench.PAPER):
            metrics = dict.fromkeys(prbench.metrics("full").values())
            yield record(
                {"space": "zoo", "name": name}, dataset, {"method": method}, metrics, place * 20 + number
            )


def wci() -> Iterator[dict[str, Any]]:
    names = (
        "wci",
        "wci.trace",
        "train_robust_loss",
        "test_robust_loss",
        "train_robust_error",
        "test_robust_error",
        "robust_loss_gap",
        "robust_error_gap",
    )
    for number, (dataset, how) in enumerate(
        (d, h) for d in SETS[:2] for h in ([], ["cutout"], ["mixup"], ["l2"])
    ):
        draw = random.Random(number)
        history = {
            name: [draw.random() if epoch % 5 == 4 else None for epoch in range(200)] for name in names
        }
        train = {"history": history, "config": {"regularize": how}}
        yield record({"space": "zoo", "name": "preactresnet18"}, dataset, train, ("acc",), number)


MADE = {
    "nas-robbench-201": nas_robbench,
    "nas-bench-201-robustness": robustness_dataset,
    "prbench": of_prbench,
    "wci": wci,
}


def memory(session: int) -> int:
    """The resident bytes of all processes of a session."""
    total = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if os.getsid(int(folder.name)) == session:
                    total += int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            except (OSError, IndexError):
                continue
    return total


def drawn(name: str, folder: Path) -> dict[str, Any]:
    """Seconds and peak memory of a target."""
    words = [sys.executable, "-m", "rbtools.papers", f"figures-{name}", "--scale", "full", "--only-draw"]
    start, peak = time.perf_counter(), 0
    with subprocess.Popen(
        [*words, "--jobs", "1", "--reproduced", str(folder)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    ) as child:
        while child.poll() is None:
            peak = max(peak, memory(child.pid))
            time.sleep(0.1)
    if child.returncode:
        raise SystemExit(f"figures-{name} ended with {child.returncode}")
    return {"seconds": round(time.perf_counter() - start, 1), "peak_mb": peak // 10**6}


def main() -> None:
    chosen = sys.argv[1:] or list(FIGURES)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in chosen:
            found: dict[str, Any] = {}
            for of in FIGURES[name]:
                path = folder / f"{of}-full.jsonl"
                if not path.exists():
                    with path.open("wb") as stream:
                        stream.writelines(dumps(one) + b"\n" for one in MADE[of]())
                found[of] = {"records": sum(1 for _ in path.open("rb")), "mb": path.stat().st_size // 10**6}
            show(f"figures-{name}", **drawn(name, folder), files=found)


if __name__ == "__main__":
    main()
