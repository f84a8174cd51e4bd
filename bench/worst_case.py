"""Worst cases of three networks on digits, and how much narrower differences of pairs are; a JSON line each.

    python bench/worst_case.py

Each is trained for 30 epochs, attacked in L-infinity and L2 by PGD-20 and in L1 by APGD-CE, and corrupted in
fifteen ways; all test images. The second figure compares the half-width of the paired interval of the
difference between two of them with that of two intervals which know nothing of each other (the root of the
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
rb-attack pgd --eps 16 | rb-attack pgd --norm l2 --eps 0.5 |
rb-attack apgd-ce --norm l1 --eps 2 | rb-corrupt all --severity 3 |
rb-score --add 'norms=union(pgd20.*, apgd-ce.*)' --add 'worst=union(pgd20.*, apgd-ce.*, corrupt.*.3)' |
rb-rank --by worst --paired 2
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
    entries = {one["train"]["method"]: {e["metric"]: e for e in one["evals"]} for one in records}
    for record in records:
        method, metrics = record["train"]["method"], record["metrics"]
        low, high = entries[method]["worst"]["ci95"]
        names = [name for name in metrics if name.startswith(("pgd20.", "apgd-ce.", "corrupt."))]
        least = min(names, key=metrics.__getitem__)
        mean = sum(metrics[name] for name in names) / len(names)
        show(
            f"worst case of {method}",
            value=round(metrics["worst"], 4),
            note=f"[{low:.3f}, {high:.3f}]; mean of {len(names)} parts {mean:.3f}, least {metrics[least]:.3f}"
            f" ({least}), three norms {metrics['norms']:.3f}",
        )
        for name in ("worst", "pgd20.16", "corrupt.fog.3") if method == "trades" else ():
            pair = record["paired"]["metrics"][name]
            half = (pair["ci95"][1] - pair["ci95"][0]) / 2
            widths = [
                entries[one][name]["ci95"][1] - entries[one][name]["ci95"][0] for one in (method, "pgd")
            ]
            show(
                f"{name} of {method} minus that of pgd: half-width of the paired interval",
                value=round(half, 4),
                peer=round(math.hypot(*widths) / 2, 4),
                ratio=round(2 * half / math.hypot(*widths), 3),
                note=f"difference {pair['difference']:.4f}, p {pair['p']:.3g}",
            )


if __name__ == "__main__":
    main()
