"""The golden set: what every tool and method gives on fixed weights, as values, intervals and n.

    python tests/golden/make.py [KEY=VALUE] compare with golden.json, exactly; status 1 and the differences;
                                            with these options for all tools, such as jobs=2 batch=7
    python tests/golden/make.py write       write golden.json anew: the commit says why numbers changed

A step of steps.txt is "[OUTPUT] [<INPUT]: TOOL ARGUMENTS". INPUT is an earlier OUTPUT, `erm` or `pgd` (a
small cell network trained on digits, weights/*.safetensors), `both`, `small` (an untrained network and 200
digits) or `table` (results that are given). Keys of the store, seconds and the form of records are left out.
test_golden.py compares within `tolerance`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden.json"
STEPS = HERE / "steps.txt"
CELL = "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|skip_connect~0|nor_conv_1x1~1|nor_conv_3x3~2|"


def inputs(folder: Path) -> dict[str, str]:
    """Write the files that steps name into the folder; the records that they read, by name."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = (digits.images * 15.9).astype(np.uint8), digits.target
    np.savez(
        folder / "small.npz",
        **{"train_images": images[:200], "train_labels": labels[:200]},
        **{"test_images": images[200:300], "test_labels": labels[200:300]},
    )
    arch = {"space": "nasbench201", "name": "nb201-13714", "str": CELL, "channels": 4, "cells": 1}
    trained = []
    for file in (HERE / "weights" / f"{method}.safetensors" for method in ("erm", "pgd")):
        name = f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
        weights = {"checkpoint": name, "checkpoint_file": str(file)}
        trained.append({"schema": 1, "arch": arch, "dataset": "digits", **weights})
    fresh = {"schema": 1, "arch": {**arch, "channels": 2}, "dataset": f"npz:{folder / 'small.npz'}"}
    records = {"erm": trained[:1], "pgd": trained[1:], "both": trained, "small": [fresh], "none": []}
    records |= {"table": table(), "one": table()[::4]}
    texts = {name: "".join(f"{json.dumps(record)}\n" for record in some) for name, some in records.items()}
    for name, text in texts.items():
        (folder / f"{name}.jsonl").write_text(text)
    return texts


def table() -> list[dict[str, Any]]:
    """Twelve results: three architectures, two methods, two seeds; every value a multiple of 1/128."""
    records = []
    operations = {12738: "avg_pool_3x3", 14112: "nor_conv_1x1", 9930: "nor_conv_3x3"}
    for number in range(12):
        index, method, seed = list(operations)[number // 4], ("erm", "pgd")[number // 2 % 2], number % 2
        values = {"acc": (100 - 7 * number % 40) / 128, "fgsm.8": (20 + 11 * number % 37) / 128}
        evals: list[dict[str, Any]] = []
        for name, value in values.items():
            ends = [value - 1 / 16, value + 1 / 16]
            evals.append({"metric": name, "n": 128, "value": value, "ci95": ends, "split": "test"})
        evals[1].update(attack="fgsm", eps=8 / 255, norm="linf")
        if number % 3:
            values["pgd20.8"] = 0.25
            evals.append({"metric": "pgd20.8", "attack": "pgd", "steps": 20, "value": 0.25, "n": 128})
        edge = operations[index]
        string = f"|{edge}~0|+|{edge}~0|{edge}~1|+|skip_connect~0|{edge}~1|{edge}~2|"
        params = 73_306 + 10 * index
        arch = {"space": "nasbench201", "name": f"nb201-{index}", "index": index, "str": string}
        train = {"method": method, "seed": seed, "epochs": 2, "config": {"lr": 0.1}}
        record = {"schema": 1, "arch": {**arch, "params": params}, "dataset": "cifar10", "train": train}
        records.append({**record, "metrics": {**values, "params": params}, "evals": evals})
    return records


RESULTS = ("value", "ci95", "n", "passes", "train", "test")
BESIDE = ("rank", "band", "rank_ci95", "paired")
SEARCHED = ("found", "values", "objective", "queries")
NOT_COMPARED = ("seconds", "seconds_per_epoch", "checks")


def chosen(fields: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: fields[name] for name in names if fields.get(name) is not None}


def numbers_of(record: dict[str, Any]) -> dict[str, Any]:
    """The numbers of one record of output that do not depend on the machine's speed."""
    entries = {
        entry["metric"]: chosen(entry, RESULTS)
        for entry in record.get("evals", [])
        if "tool" in entry and entry["metric"] not in NOT_COMPARED
    }
    beside = chosen(record, BESIDE) | chosen(record.get("train", {}).get("history", {}), ("loss", "acc"))
    if "search" in record:
        beside["search"] = chosen(record["search"], SEARCHED)
    if "row" in record:
        entries[f"{record['kind']} {record['row']} {record['col']}"] = chosen(record, ("value", "ci95", "n"))
    return entries | beside


def run(options: Sequence[str] = ()) -> dict[str, list[dict[str, Any]]]:
    """The numbers of each record that each step gives, by step; in a new folder with a store of its own.
    options: KEY=VALUE for all tools."""
    import torch
    from click.testing import CliRunner

    from rbtools.cli import tools

    torch.set_num_threads(1)
    made: dict[str, list[dict[str, Any]]] = {}
    failed = []
    here = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="golden-") as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name).resolve()
        os.chdir(folder)
        os.environ["RB_STORE"] = str(folder / "store")
        # "auto" is bfloat16 where the processor has it: one verdict of 20 images is as much as the tolerance.
        lines = [option.replace("=", ": ") for option in ("precision=fp32", *options)]
        Path("rbtools.yaml").write_text(f"all: {{{', '.join(lines)}}}\n")
        streams = inputs(folder)
        try:
            for line in STEPS.read_text("utf-8").splitlines():
                head, _, command = line.partition(":")
                into, _, source = (word.strip() for word in head.partition("<"))
                tool, *words = shlex.split(command)
                result = CliRunner().invoke(
                    tools.tool(tool).command, words, input=streams[source], prog_name=f"rb-{tool}"
                )
                if result.exit_code:
                    failed.append(f"{line}\nends with status {result.exit_code}:\n{result.stderr}")
                made[f"{source}: {command.strip()}"] = [
                    numbers_of(json.loads(text)) for text in result.stdout.splitlines()
                ]
                if into:
                    streams[into] = result.stdout
        finally:
            os.chdir(here)
    if failed:
        raise SystemExit("\n".join(failed))
    return made


def tolerance(step: str) -> float:
    """How far a number of the step may be from the golden one on another processor, relative above 1.

    Sums in another order may move verdicts of two images of 40, and the weights of a training.
    Ranks, scores, correlations and searches of given values are the same everywhere, but for the last digits.
    """
    return 1e-9 if step.startswith("table:") else 0.05


def differences(golden: Any, made: Any, allowed: float | None = None, path: str = "") -> list[str]:
    """Where two values of JSON differ; numbers may differ by `allowed`, relative above 1."""
    if isinstance(golden, dict) and isinstance(made, dict) and golden.keys() == made.keys():
        return [
            line for key in golden for line in differences(golden[key], made[key], allowed, f"{path} {key}")
        ]
    if isinstance(golden, list) and isinstance(made, list) and len(golden) == len(made):
        pairs = enumerate(zip(golden, made, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, allowed, f"{path} {i}")]
    if golden == made:
        return []
    near = allowed and isinstance(golden, float | int) and isinstance(made, float | int)
    if near and abs(golden - made) <= allowed * max(1.0, abs(golden)):
        return []
    return [f"{path}: {golden!r} -> {made!r}"]


def main() -> int:
    sys.path.insert(0, str(HERE.parents[1]))
    options = [word for word in sys.argv[1:] if "=" in word]
    made = json.loads(json.dumps(run(options)))
    if sys.argv[1:] == ["write"]:
        rows = {step: ",\n".join(f" {json.dumps(one)}" for one in records) for step, records in made.items()}
        lines = (f"{json.dumps(step)}: [\n{text}\n]" for step, text in rows.items())
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
        return 0
    lines = differences(json.loads(GOLDEN.read_text("utf-8")), made)
    print("\n".join(lines) or f"{len(made)} steps: equal")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
