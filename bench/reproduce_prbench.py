"""PRBench in small: every method on the built-in digits, the paper's columns, and its orderings that hold.

    python bench/reproduce_prbench.py [--scale mini|tiny] [--store DIR] [--jobs 2]

mini: one network of NAS-Bench-201 with one cell a stage, radius 32/255, ten epochs, two seeds. tiny: one
epoch and one seed of a small one, to see that it runs. The table (Markdown, means over seeds) and the
orderings come on stdout; finished work is in the store and not done again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

METHODS = "erm corruption cvar evar at-pr pgd trades mart alp clp kl-pgd".split()
SCALES = {
    "mini": {"arch": [], "epochs": "10", "seeds": "0,1", "n": []},
    "tiny": {"arch": ["--channels", "4"], "epochs": "1", "seeds": "0", "n": ["--n", "50"]},
}
COLUMNS = {
    "Acc": "acc",
    "PGD20": "pgd20.32",
    "CW20": "cw20.32",
    "PR .125": "pr.uniform.0.12549",
    "PR .3": "pr.uniform.0.3",
    "ProbAcc .05": "probacc.uniform.0.3.0.05",
    "GE PGD20": "ge.pgd20.32",
    "GE PR": "ge.pr.uniform.0.3",
    "s/epoch": "seconds_per_epoch",
}
# What table 4 of the paper shows, as (column, higher, lower).
ORDERINGS = [
    ("PGD20", "pgd", "erm"),
    ("PGD20", "pgd", "corruption"),
    ("PGD20", "pgd", "cvar"),
    ("PGD20", "trades", "pgd"),
    ("PGD20", "mart", "pgd"),
    ("PGD20", "alp", "trades"),
    ("PGD20", "clp", "pgd"),
    ("PGD20", "pgd", "kl-pgd"),
    ("PGD20", "pgd", "at-pr"),
    ("Acc", "erm", "pgd"),
    ("Acc", "erm", "corruption"),
    ("Acc", "at-pr", "pgd"),
    ("Acc", "kl-pgd", "pgd"),
    ("Acc", "pgd", "alp"),
    ("PR .3", "corruption", "erm"),
    ("PR .3", "pgd", "corruption"),
    ("PR .3", "at-pr", "pgd"),
    ("GE PGD20", "pgd", "trades"),
    ("GE PGD20", "pgd", "alp"),
    ("GE PGD20", "at-pr", "pgd"),
    ("GE PR", "pgd", "corruption"),
    ("s/epoch", "at-pr", "cvar"),
    ("s/epoch", "cvar", "pgd"),
    ("s/epoch", "pgd", "erm"),
]


def stage(tool: str, arguments: list[str], text: str) -> str:
    """What a tool makes of these records."""
    line = [sys.executable, "-m", f"rbtools.cli.{tool}", *arguments]
    done = subprocess.run(line, input=text, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"rb-{tool} {' '.join(arguments)} ended with status {done.returncode}")
    return done.stdout


def pipeline(scale: dict[str, Any], shared: list[str]) -> list[dict[str, Any]]:
    """All methods trained and measured."""
    text = stage("arch", ["--index", "13714", "--cells", "1", *scale["arch"]], "")
    how = [
        "--method",
        ",".join(METHODS),
        "--seed",
        scale["seeds"],
        "--epochs",
        scale["epochs"],
        "--eps",
        "32",
    ]
    how += ["--step-size", "8", "--step-min", "4", "--step-max", "16"]
    text = stage("train", [*how, *shared], text)
    some = [*scale["n"], *shared]
    text = stage("attack", ["pgd", "--eps", "32", *some], text)
    text = stage("attack", ["cw", "--eps", "32", *some], text)
    text = stage("pr", ["--gamma", "32/255,0.3", "--rho", "0.05", *some], text)
    text = stage("ge", ["attack", "pgd", "--eps", "32", *some], text)
    text = stage("ge", ["pr", "--gamma", "0.3", *some], text)
    return [json.loads(line) for line in text.splitlines()]


def means(records: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Of each method the mean of each column over its seeds."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for column, metric in COLUMNS.items():
            if metric in record.get("metrics", {}):
                found[record["train"]["method"]][column].append(record["metrics"][metric])
    return {
        method: {column: sum(values) / len(values) for column, values in columns.items()}
        for method, columns in found.items()
    }


def table(rows: dict[str, dict[str, float]]) -> str:
    """The rows as Markdown: fractions in percent, as the paper prints them, seconds as they are."""

    def cell(column: str, value: float | None) -> str:
        if value is None:
            return "-"
        return f"{value:.1f}" if column == "s/epoch" else f"{100 * value:.1f}"

    lines = [f"| method | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for method, row in rows.items():
        cells = (cell(column, row.get(column)) for column in COLUMNS)
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def orderings(rows: dict[str, dict[str, float]]) -> list[str]:
    """Which of the paper's orderings hold here, a line each."""
    lines = []
    for column, higher, lower in ORDERINGS:
        pair = [rows.get(method, {}).get(column) for method in (higher, lower)]
        if None not in pair:
            holds = "holds" if pair[0] > pair[1] else "does not hold"  # type: ignore[operator]
            lines.append(f"- {column}: {higher} above {lower}: {holds} ({pair[0]:.4g}, {pair[1]:.4g})")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=SCALES, default="mini")
    parser.add_argument("--store", default=None)
    parser.add_argument("--jobs", default="2")
    chosen = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        store = chosen.store or str(Path(folder, "store"))
        records = pipeline(SCALES[chosen.scale], ["--store", store, "--jobs", chosen.jobs, "-q"])
    rows = means(records)
    print(table(rows), *orderings(rows), sep="\n")
    minutes = (time.perf_counter() - start) / 60
    print(f"{len(records)} records, {minutes:.1f} minutes", file=sys.stderr)


if __name__ == "__main__":
    main()
