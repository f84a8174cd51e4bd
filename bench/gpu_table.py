"""The figures of a GPU as one Markdown table: measured, floor, reference, goal, launches, waits, memory.

    python bench/gpu_table.py                    `make bench-gpu`
    python bench/gpu_table.py --lines FILE       of lines that bench/gpu.py has printed before

Times come from bench/gpu.py, launches and waits of a step from bench/waits.py, which counts on a pretend GPU,
on a small cell and without CUDA graphs. Without a GPU there are no times.
The last row is not among what it measures: its line comes from
`bench/gpu.py --parts robust --data cifar10`. Ends with the status of bench/gpu.py, 1 where a check fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

HERE = Path(__file__).resolve().parent
PARTS = "floor,train,attack,aa,pr,networks"


class Row(NamedTuple):
    """work; figure: its name in the lines of bench/gpu.py; step: its name in those of bench/waits.py."""

    work: str
    figure: str
    step: str
    goal: str


ROWS = (
    Row(
        "PGD-10 training, ResNet-18, an epoch of CIFAR-10",
        "pgd, an epoch",
        "training by pgd, 10 steps",
        "6 s",
    ),
    Row("TRADES-10, the same", "trades, an epoch", "training by trades, 10 steps", "6 s"),
    Row(
        "NAS-Bench-201, 50 epochs of PGD-7, a network's share of 8 at once",
        "nasbench201, 50 epochs of PGD-7, 8 at once",
        "training by pgd, 7 steps",
        "2.1 min",
    ),
    Row("PGD-20, ResNet-18", "PGD-20, any iterate", "pgd", "5 times"),
    Row("AutoAttack, ResNet-18, 2,000 images", "AutoAttack, 2000 images", "square", "20 s"),
    Row(
        "AutoAttack, ResNet-18, 250 images, beside pyautoattack", "AutoAttack, 250 images", "fab-t", "8 times"
    ),
    Row("PR, ResNet-18, 100 copies an image", "PR, 100 copies", "pr", "8 times"),
    Row(
        "ResNet-18 to 50 % under AutoAttack, FGSM-PGI in batches of 512 on CIFAR-10",
        "fgsm-pgi, 63 epochs",
        "training by fgsm-pgi",
        "300 s",
    ),
)


def table(figures: Mapping[str, Mapping[str, Any]], counts: Mapping[str, Mapping[str, float]]) -> str:
    """The table, from lines of bench/gpu.py by figure, and of bench/waits.py by step."""
    head = ("work", "measured", "floor", "reference", "times", "goal", "launches", "waits", "memory")
    lines = [head, ("---",) * len(head)]
    for row in ROWS:
        line, count = figures.get(row.figure, {}), counts[row.step]
        unit = f" {line.get('unit', '')}".rstrip()
        memory = line.get("memory_gib")
        lines.append(
            (
                row.work,
                f"{line['ours']:.4g}{unit}" if line else "",
                f"{line['floor']:.3g}{unit}" if line.get("floor") else "",
                f"{line['reference']:.4g}{unit}" if "reference" in line else "",
                f"{line['times']:.3g}" if "times" in line else "",
                row.goal,
                f"{count['launches']:.4g}",
                f"{count['waits']:.3g}",
                "" if memory is None else f"{memory:.2g} GiB",
            )
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def counted() -> dict[str, dict[str, float]]:
    """Launches and waits of each row's step, in a process that sees no GPU."""
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(HERE.parent)}

    def count(step: str) -> list[dict[str, Any]]:
        lines, status = _run([sys.executable, str(HERE / "waits.py"), step], env=hidden)
        if status:
            raise SystemExit(status)
        return lines

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(count, sorted({row.step for row in ROWS})))
    return {line["step of"]: line for lines in done for line in lines}


def measured(device: str) -> tuple[list[dict[str, Any]], int]:
    """The lines of bench/gpu.py on that device, and the status it ended with."""
    return _run([sys.executable, str(HERE / "gpu.py"), "--device", device, "--parts", PARTS])


def _run(command: Sequence[str], **how: Any) -> tuple[list[dict[str, Any]], int]:
    """The lines that a command prints, and its status; it says on stderr why that is not 0."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, **how)
    whole = done.stdout.rpartition("\n")[0]  # one that was killed may leave half a line
    return [json.loads(line) for line in whole.splitlines()], done.returncode


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda or cuda:1 [cuda]")
    parser.add_argument("--lines", type=Path, help="what bench/gpu.py printed, instead of running it")
    chosen = parser.parse_args()
    lines: Iterable[dict[str, Any]] = ()
    status = 0
    if chosen.lines is not None:
        lines = map(json.loads, chosen.lines.read_text().splitlines())
    elif torch.cuda.is_available():
        lines, status = measured(chosen.device)
    else:
        print("There is no GPU here: no time is measured.", file=sys.stderr)
    figures = {line["figure"]: line for line in lines if "figure" in line}
    print(table(figures, counted()))
    raise SystemExit(status)  # a check that failed, or less than all measured; what there is stands above


if __name__ == "__main__":
    main()
