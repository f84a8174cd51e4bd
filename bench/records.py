"""How fast the tools read files of records, beside jq: a JSON line a figure.

    python bench/records.py [COUNT ...] [--runs N] [--folder FOLDER]

The first record is made by the tools themselves (a network trained for one epoch on digits, 14 entries). All
others are this record with another architecture, seed and checkpoint, and with other answers for single
images, from which values, intervals and checksums follow. `cpu` is the processor time of fresh processes,
start-up included, and `peak_mb` their peak memory; a figure is the median of N runs. `jq` does the same work
as far as it can: it sorts by the metric, adds a mean to each record, or extracts columns. FOLDER keeps the
files.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import BIN, ENVIRONMENT, fresh, medians, show

from rbtools.proportions import wilson
from rbtools.records import answers, checksums, dumps, parse, read
from rbtools.spaces import sized

PIPE = (
    "rb-arch --index 13714 --cells 1 --channels 4 | rb-train --dataset digits --epochs 1 | rb-attack fgsm"
    " | rb-attack pgd --steps 5 --eps 2,4,8 | rb-corrupt contrast --severity 1-5"
    " | rb-pr --gamma 0.08 --rho 0.1 --samples 20"
)
_ROW = "[.arch.name,.dataset,.train.seed,.checkpoint,.metrics[],(.evals[]|.n,.ci95[0]?,.ci95[1]?)]|@csv"
SORT, MEAN = "sort_by(-.metrics.acc)", '.metrics.score=(.metrics|(.acc+."pgd5.8")/2)'
TOP, PAIR = f"{SORT}|.[:10][]", '[.metrics.acc,.metrics."pgd5.8"]|@csv'
# The command -> what jq does instead; slurping jq (-s) reads all records before it writes.
BESIDE = {
    "rb-rank --by acc": ["-sc", f"{SORT}|.[]"],
    "rb-rank --by acc --top 10": ["-sc", TOP],
    "rb-rank --by acc --top 10 --format table": ["-sc", TOP],
    "rb-rank --by acc --aggregate-by dataset": ["-sc", SORT],
    "rb-rank --by acc --ci --top 10": ["-sc", TOP],
    "rb-score --metric acc,pgd5.8": ["-c", MEAN],
    "rb-corr --metric acc,pgd5.8": ["-r", PAIR],
    "rb-plot scatter --x acc --y pgd5.8 -o FOLDER/plot.png": ["-r", PAIR],
    "rb-convert csv --write FOLDER/table.csv": ["-r", _ROW],
    "rb-convert parquet --write FOLDER/table.parquet": ["-r", _ROW],
}
LARGE = 30_000  # beyond this number, only --top 10 is measured


def varied(record: dict[str, Any], number: int) -> dict[str, Any]:
    """The record of another network, whose numbers agree with each other as in the first record."""
    chance, record = np.random.default_rng(number), parse(dumps(record))
    record["arch"] = sized("nasbench201", cells=1, channels=4).arch(number % 15625)
    record["train"]["seed"] = number // 15625
    record["checkpoint"] = f"sha256:{hashlib.sha256(str(number).encode()).hexdigest()}"
    lost = chance.random(1 << 16) < chance.random() / 4  # the images that this network also gets wrong
    for entry in record["evals"]:
        if "answers" in entry and isinstance(entry["n"], int) and "estimator" not in entry:
            given = answers.of(entry)
            assert given is not None
            right = given.right & ~lost[: len(given.right)]
            entry["answers"] = answers.packed(right, given.examples)
            entry["value"] = int(right.sum()) / entry["n"]
            entry["ci95"] = list(wilson(int(right.sum()), entry["n"]))
    values = {entry["metric"]: entry["value"] for entry in record["evals"]}
    for entry in record["evals"]:
        if "severities" in entry:
            five = [values[f"corrupt.contrast.{severity}"] for severity in entry["severities"]]
            shift = statistics.fmean(five) - entry["value"]
            entry["value"], entry["ci95"] = statistics.fmean(five), [end + shift for end in entry["ci95"]]
    record["metrics"] = {entry["metric"]: entry["value"] for entry in record["evals"]}
    return {**record, **checksums.of_all(record["evals"])}


def make(folder: Path, count: int) -> Path:
    """A file of this many records, unless the folder has it."""
    first, path = folder / "first.jsonl", folder / f"{count}.jsonl"
    if not first.exists():
        environment = {**ENVIRONMENT, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        made = subprocess.run(PIPE, shell=True, check=True, env=environment, stdout=subprocess.PIPE)
        first.write_bytes(made.stdout)
    if not path.exists():
        record = next(read(first))
        numbers = random.Random(0).sample(range(count), count)
        with path.open("wb") as stream:
            stream.writelines(dumps(varied(record, number)) + b"\n" for number in numbers)
    return path


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("counts", type=int, nargs="*", default=[1000, 10_000, 100_000], metavar="COUNT")
    reader.add_argument("--runs", type=int, default=3)
    reader.add_argument("--folder", type=Path)
    options = reader.parse_args()
    jq = shutil.which("jq")
    with tempfile.TemporaryDirectory() as aside:
        folder = options.folder or Path(aside)
        folder.mkdir(exist_ok=True)
        for count in options.counts:
            path = make(folder, count)
            show("records", count=count, bytes_each=path.stat().st_size // count)
            for text, program in BESIDE.items():
                if count > LARGE and not text.endswith("--top 10"):
                    continue
                tool, *rest = text.replace("FOLDER", aside).split()
                ways = {text: [str(BIN / tool), *rest, str(path)]}
                if jq is not None and count <= LARGE:
                    ways[f"jq instead of {text}"] = [jq, *program, str(path)]
                runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
                for _ in range(options.runs):
                    for name, command in ways.items():
                        runs[name].append(fresh(*command))
                for name, some in runs.items():
                    show(name, count=count, **medians(some))


if __name__ == "__main__":
    main()
