"""Worst cases of three networks on digits, and how much narrower differences of pairs are; a JSON line each.

    python bench/worst_case.py

Each is trained for 30 epochs, attacked in L-infinity and L2 by PGD-20 and in L1 by APGD-CE, and corrupted in
fifteen ways; all test images. The second figure compares the half-width of the paired interval of the
difference to the first network with that of two intervals which know nothing of each other (the root of the
sum of their squares).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import show

PIPE = """
rb-arch --sample 1 --seed 3 --cells 1 --where 'none <= 1 and kernel_params >= 18' |
rb-train --method erm,pgd,trades --eps 32 --attack-steps 5 --step-size 16 --epochs 30 |
rb-attack pgd --eps 16 --per-image | rb-attack pgd --norm l2 --eps 0.5 --per-image |
rb-attack apgd-ce --norm l1 --eps 2 --per-image | rb-corrupt all --severity 3 --per-image |
rb-score --add 'norms=union(pgd20.*, apgd-ce.*)' --add 'worst=union(pgd20.*, apgd-ce.*, corrupt.*.3)' |
rb-rank --by worst --paired 1
"""


def main() -> None:
    tools = str(Path(sys.executable).parent)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "RB_STORE": f"{folder}/store"}
        ran = subprocess.run(
            ["bash", "-c", f"set -o pipefail;{PIPE}"], env=environment, cwd=folder, stdout=subprocess.PIPE
        )
    if ran.returncode:
        sys.exit(ran.returncode)
    records = [json.loads(line) for line in ran.stdout.splitlines()]
    for record in sorted(records, key=lambda one: one["train"]["method"] != "erm"):  # the reference first
        method, metrics = record["train"]["method"], record["metrics"]
        entries = {entry["metric"]: entry for entry in record["evals"]}
        names = [name for name in metrics if name.startswith(("pgd20.", "apgd-ce.", "corrupt."))]
        least = min(names, key=metrics.__getitem__)
        low, high = entries["worst"]["ci95"]
        mean = sum(metrics[name] for name in names) / len(names)
        show(
            f"worst case of {method}",
            value=round(metrics["worst"], 4),
            note=f"[{low:.3f}, {high:.3f}]; mean of {len(names)} parts {mean:.3f}, least {metrics[least]:.3f}"
            f" ({least}), three norms {metrics['norms']:.3f}",
        )
        pair = record.get("paired", {}).get("metrics", {}).get("worst")
        if pair is None:
            reference = (low, high)
            continue
        half = (pair["ci95"][1] - pair["ci95"][0]) / 2
        apart = math.hypot(high - low, reference[1] - reference[0]) / 2
        show(
            f"difference of {method} to the first network: half-width, paired",
            value=round(half, 4),
            peer=round(apart, 4),
            ratio=round(half / apart, 3),
            note=f"difference {pair['difference']:.4f}, p {pair['p']:.3g}",
        )


if __name__ == "__main__":
    main()
