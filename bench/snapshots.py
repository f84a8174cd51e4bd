"""Snapshots of every tool's behaviour, for changes of the code that must change nothing else.

    python bench/snapshots.py record before.json      # before the change
    python bench/snapshots.py compare before.json     # after it: prints what differs, status 1

A snapshot has, for each command line of STEPS: records on stdout, exit status, stderr, files written, and the
keys of the store that it makes, with the description that each key is the hash of. Durations and sizes in
bytes are replaced, so that two runs on one machine are equal. What a trained network computes differs between
processors: compare only with a snapshot of the same machine. The steps of GIVEN, and those of FORMULA after
`masked`, are the same everywhere (tests/test_snapshots.py).

Each step is "[OUTPUT] [<INPUT]: TOOL ARGUMENTS"; INPUT is an earlier step's OUTPUT or a text of `inputs`.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import shlex
import struct
import sys
import tarfile
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rbtools.cli import tools

TOOLS = tuple(tools.TOOLS)
TIMES = re.compile(
    r"seconds|^stages$|time$|timestamp|date$|bytes$|^pid$|^host$|^checksums$|^environment$"
)  # fields that differ from run to run
WHOLE = 6000  # characters: longer files stand in a snapshot by their digest
# Results of a computation, by field of an `evals` entry; the rest of an entry is the same on every processor.
COMPUTED = set(
    "value ci95 passes precision device train test estimate undecided quantiles sanity detail confirmed se"
    " reason tests images".split()
)
PRESENT = "computed"

GIVEN = """
listed: arch --index 13714,4 --cells 1 --channels 4 --dataset digits
: arch --index 0-2,15624
: arch --neighbours 13714 --cells 1 --dataset digits --where 'kernel_params > 36'
: arch --unique --where 'none == 5'
: arch --sample 2 --seed 1 --channels 4
: arch --arch resnet18,simplecnn,fcnn:relu/tanh+skip,torchvision:resnet50 --dataset digits
: arch --space fcnn --depth 3 --width 4 --where 'skips == 0' --sample 2 --dataset digits
: arch --space rescnn --depth 3 --width 4 --index 1 --dataset digits
: arch --from-checkpoint net.safetensors --arch fcnn:relu/tanh --dataset digits --normalize none
: arch --index 99999
: arch --strr x
<results: score --metric acc,fgsm.8:2,params:lower
scored <results: score --metric acc,fgsm.8
<results: score --metric acc,pgd20.8 --missing worst --within dataset
<results: score --metric acc,pgd20.8 --missing renormalise
<results: score --metric acc,pgd20.8
<results: score --metric acc,fgsm.8 --dry-run
<results: score --add both=mean(acc,fgsm.*)
<results: score --add acc=fgsm.8
<results: score --add acc=fgsm.8 --force
<scored: rank
<results: rank --by acc
<results: rank --by acc:lower --top 2 --format table
<results: rank --by 'mean(fgsm.*,acc)' --where 'acc > 0.5 and train.seed in [0, 1]' --format jsonl
<results: rank --by acc --ci --bootstrap 20 --pareto acc,fgsm.8
<results: rank --by acc --ci --bootstrap 20 --aggregate seed --format table
<results: rank --by acc --within arch.name --format latex
<results: rank --by acc --pivot train.method --metric acc,fgsm.8 --format latex
<results: rank --by acc --pivot train.method --metric acc,fgsm.8 --format md
<results: rank --by acc --aggregate by:train.method --format csv
<results: rank --by acc --aggregate seed
<results: rank --by nothing
<results: rank --by 'acc +'
<results: corr
<results: corr --metric acc,fgsm.*,params --kind kendall,spearman --bootstrap 20
<results: corr --rows acc --cols fgsm.8,params --format table
<results: corr --on arch.name,train.seed --by train.method --metric acc
<results: corr --metric nothing
<results: verify --inconsistent
<results: search random --objective acc --budget 3 --runs 2 --each --where "train.method == 'pgd'"
<results: search local --objective 'mean(acc,fgsm.*)' --budget 3 --runs 2 --where "train.method == 'pgd'"
<results: search evolution --objective acc --budget 6 --runs 1 --format table --where "train.method == 'erm'"
<results: search nsga2 --objective acc,params:lower --budget 40 --runs 1 --where "train.method == 'erm'"
<results: search random --objective acc --budget 3 --runs 1
: search random --objective acc --budget 3 --table absent.jsonl
: convert prbench prbench.json
: convert robustbench model_info
: convert jung2023 robustness-data
nasrobbench: convert nasrobbench201 all.json
nares_records <nares: convert nares
: convert csv --map robust=pgd20.8 table.csv
<broken: convert nares
<results: convert csv --write out.csv
<results: convert prbench --write out.json
<results: convert nares --write none.jsonl
<nares_records: convert nares --write out.jsonl
<results: convert nasrobbench201 --write none-nrb.json
<nasrobbench: convert nasrobbench201 --write out-nrb.json
<results: convert robustbench --threat Linf --write out-info
<results: convert jung2023 --write out-jung
<mixed: score --metric acc
<mixed: rank --by acc
<mixed: measure params --store none
<mixed: attack fgsm --store none
<mixed: attack fgsm --store none --errors stop
: attack pgd --eps twelve
: attack fgsmm
: attack pgd --n 0
: train --method nothing
: train --method pgd --epochs -1
: pr --gamma x
: corrupt foggy
: ge nothing
: card --time 10x
: card --for nothing
: measure nothing
: store ls --kind nothing
: store gc --dry-run
: store import absent.tar
: plot scatter --x acc
: plot hist --metric acc -o figure.xyz
"""
# By formula: a network whose file has the same bytes everywhere.
FORMULA = """
net: attack fgsm --eps 4,8 --n 10 --checkpoint net.safetensors --arch fcnn:relu/tanh --normalize none --dataset digits --precision fp32
<net: attack pgd --steps 2 --n 10 --precision fp32
<net: attack pgd --steps 2 --n 10 --norm l2 --eps 0.25,0.5 --restarts 2 --ladder --detail --precision fp32
<net: attack pgd --steps 2 --n 10 --start zero --iterate last --as mine --precision fp32
<net: attack fgsm --eps 4,8 --n 20 --precision fp32
<net: attack fgsm --eps 4,8 --n 20 --force --precision fp32
<net: attack cw --steps 2 --n 10 --precision fp32
<net: attack square --queries 3 --n 10 --precision fp32
<net: attack noise --n 10 --precision fp32
<net: attack check --n 10 --steps 2 --queries 4 --samples 4 --precision fp32
<net: attack transfer --n 10 --from net.jsonl --precision fp32
<net: certify ibp --eps 1 --n 10
<net: corrupt contrast,fog --severity 1-5 --n 10 --precision fp32
<net: pr --gamma 0.1,0.2 --samples 20 --n 10 --precision fp32
<net: pr --sampling rare:particles=20,moves=1,runs=2 --gamma 0.1 --n 10 --precision fp32
<net: pr --sampling adaptive --rho 0.1 --samples 60 --n 10 --gamma 0.1 --precision fp32
<net: ge acc --n 10 --precision fp32
<net: ge attack fgsm --n 10 --precision fp32
<net: ge loss attack pgd --steps 2 --n 10 --precision fp32
<net: ge corrupt fog --severity 1 --n 10 --precision fp32
<net: ge pr --gamma 0.1 --samples 20 --n 10 --precision fp32
<net: measure params,macs --precision fp32
<net: measure jacobian,margin --batches 1 --batch-size 4 --precision fp32
<listed: measure params,macs
<listed: train --method pgd,trades --seed 0,1 --epochs 1 --dry-run
<listed: attack pgd --n 4
<listed: attack fgsm --n 4 --checkpoint net.safetensors
: attack fgsm --n 4 --checkpoint absent.pt --dataset digits
"""  # noqa: E501
TRAINED = """
pgd <listed: train --method pgd --attack-steps 1 --epochs 1 --val 0.1 --track robust:every=1
erm <listed: train --method erm --epochs 1 --seed 1,2 --val 0.1 --select best
erm <listed: train --method erm --epochs 1 --seed 1,2 --val 0.1 --select best
<first: train --method trades --attack-steps 1 --epochs 1
<first: train --method cvar --samples 2 --epochs 1
<first: train --method pgd --attack-steps 1 --epochs 1 --regularize awp --ema 0.9
<first: train --method mart --attack-steps 1 --epochs 1 --regularize cutout,mixup --schedule cosine
<first: train --method erm --epochs 2 --track jacobian,params:every=1 --seed 3
<first: train --preset prbench --method clp --epochs 0
stream <pgd: attack fgsm --eps 4,8 --n 10 --detail
stream <stream: attack pgd --steps 2 --n 10 --detail
<stream: attack pgd --steps 2 --n 10 --dry-run
<stream: attack pgd --steps 2 --n 10 --restarts 2
<stream: attack pgd --steps 2 --n 10 --restarts 2 --force --batch 3
<stream: attack aa --n 2
<stream: attack apgd-t --n 2
<stream: attack fab --n 2
<stream: attack cw-l2 --n 2
<stream: attack preset prbench --n 2
<pgd: attack check --n 10 --steps 2 --queries 4 --samples 4
<pgd: attack transfer --n 4 --from net.jsonl
<pgd: attack fgsm --n 40 --eps 8 --jobs 2
<pgd: attack fgsm --n 10 --eps 16 --save-adv saved --log events.jsonl
stream <stream: corrupt contrast --severity 1-5 --n 10
<pgd: corrupt all --severity 3 --n 2
: corrupt fog --dataset digits --write digits-c --show shown.png
stream <stream: pr --gamma 0.1,0.2 --samples 20 --n 10
stream <stream: pr --sampling rare:particles=20,moves=1,runs=2 --gamma 0.1 --n 2
<pgd: pr --sampling adaptive --rho 0.1 --samples 60 --n 10 --gamma 0.1 --denominator both
stream <stream: ge acc --n 10
stream <stream: ge attack fgsm --n 10
stream <stream: ge loss attack pgd --steps 2 --n 10
<stream: ge pr --gamma 0.1 --samples 20 --n 4
stream <stream: measure params,macs,margin --batches 1 --batch-size 4
stream <stream: measure wci --probes 2 --attack pgd:steps=1 --batches 1 --batch-size 4
stream <stream: measure jacobian --batches 2 --batch-size 4
<stream: measure ntk,naswot,synflow,snip,grad_norm,nasi --batches 1 --batch-size 4
<stream: measure hessian --batches 1 --batch-size 4
<stream: measure bound --paper prbench --batches 1 --batch-size 4
stream <stream: score --metric acc,fgsm.8
<stream: rank --by acc --ci --bootstrap 20 --pareto acc,fgsm.8
<results: corr --metric 'acc,fgsm.*' --aggregate train.seed --bootstrap 50 --kind kendall
<stream: plot leaderboard -o board.html
<results: plot leaderboard -o given.html
<stream: plot curves --over eps -o curves.svg
<stream: plot confusion -o confusion.svg
<results: plot scatter --x acc --y fgsm.8 --pareto -o scatter.svg
<results: plot box -o box.svg
<results: search random --live 'rb-measure params' --objective params:lower --budget 1 --channels 4 --cells 1
: search nasi --steps 1 --cells 1 --channels 4 --dataset digits --objective acc --table table201.jsonl --runs 1
<listed: search random --measure naswot --budget 2 --runs 1 --cells 1 --channels 4 --dataset digits
: search bananas --objective acc --budget 12 --runs 1 --table table201.jsonl
: store ls
: store ls --kind training --where "train.method == 'erm'"
: store du
: store verify
: store export part.tar --kind evaluation
: store import part.tar --store other
: store ls --store other --where 'pgd2.8 >= 0'
: store gc --keep-metrics
: store ls --kind tracking
"""  # noqa: E501
STEPS = (GIVEN, FORMULA, TRAINED)


def given_records() -> list[dict[str, Any]]:
    """Twelve results: three architectures, two methods, two seeds; every value a multiple of 1/128."""
    records = []
    strings = {12738: "avg_pool_3x3", 14112: "nor_conv_1x1", 9930: "nor_conv_3x3"}
    for number in range(12):
        index, method, seed = list(strings)[number // 4], ("erm", "pgd")[number // 2 % 2], number % 2
        values = {"acc": (100 - 7 * number % 40) / 128, "fgsm.8": (20 + 11 * number % 37) / 128}
        evals: list[dict[str, Any]] = [
            {"tool": "other", "metric": name, "n": 128, "value": value, "split": "test", "seconds": 1.0}
            for name, value in values.items()
        ]
        for entry in evals:
            entry["ci95"] = [entry["value"] - 1 / 16, entry["value"] + 1 / 16]
        evals[1].update(attack="fgsm", eps=8 / 255, norm="linf")
        arch = {"space": "nasbench201", "name": f"nb201-{index}", "index": index, "channels": 16, "cells": 5}
        edge = strings[index]
        arch["str"] = f"|{edge}~0|+|{edge}~0|{edge}~1|+|skip_connect~0|{edge}~1|{edge}~2|"
        arch["params"] = 73_306 + 10 * index
        train = {"method": method, "seed": seed, "epochs": 2, "config": {"lr": 0.1}}
        metrics = {**values, "params": 73_306 + 10 * index, **({"pgd20.8": 0.25} if number % 3 else {})}
        if number % 3:
            evals.append({"metric": "pgd20.8", "attack": "pgd", "steps": 20, "value": 0.25, "n": 128})
        evals.append({"metric": "params", "value": metrics["params"]})
        head = {"schema": 1, "arch": arch, "dataset": "cifar10", "train": train, "mark": number}
        records.append({**head, "metrics": metrics, "evals": evals})
    return records


def formula_network() -> bytes:
    """The safetensors file of an fcnn (64 inputs, width 64, 10 classes) whose weights are integers / 256.

    Two layers pass the pixels on, the last one compares them with the mean image of each class.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    means = [digits.data[digits.target == label].mean(0) for label in range(10)]
    overall = digits.data.mean(0)
    one = [2048.0 * (place % 65 == 0) for place in range(64 * 64)]
    last = [value for mean in means for value in 64 * (mean - overall)]
    header, data = {}, b""
    for name, rows, values in (("layers.0", 64, one), ("layers.1", 64, one), ("last", 10, last)):
        packed = struct.pack(f"<{rows * 64}f", *(round(value) / 256 for value in values))
        offsets = [len(data), len(data) + len(packed)]
        header[f"{name}.weight"] = {"dtype": "F32", "shape": [rows, 64], "data_offsets": offsets}
        data += packed
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def inputs(folder: Path) -> dict[str, bytes]:
    """Write the files that steps name into the folder; what they read from stdin, by name."""
    row = {"dataset": "CIFAR-10", "model": "ResNet-18", "acc": 94.85, "ar": {"PGD20": 0.05, "AA": 0.0}}
    rows = [{**row, "method": name, "pr": {"0.03": 97.64}, "time_s_per_ep": 3} for name in ("ERM", "TRADES")]
    robust = {"name": "A Paper", "dataset": "cifar10", "architecture": "WideResNet-34-10", "eps": "0.5"}
    info = {**robust, "clean_acc": "93.96", "autoattack_acc": "78.79", "reported": "78.79"}
    skips = "|nor_conv_1x1~0|skip_connect~1"
    edges = {
        "0": f"|avg_pool_3x3~0|+{skips}|+{skips}|skip_connect~2|",
        "9": "|avg_pool_3x3~0|+|none~0|none~1|+|skip_connect~0|none~1|nor_conv_3x3~2|",
    }
    ids = {index: {"nb201-string": edges[index], "isomorph": index} for index in edges}
    seeds = {"0": 0.75, "1": 0.77, "2": 0.79, "threeseed": 0.77}
    deep = {f"{letter}{stage}": size for letter, size in (("D", 5), ("W", 8)) for stage in (1, 2, 3)}
    training = {"seed": 0, "best_epoch": 1, "val_acc": [50.0, 75.5], "pgd": [30.0, 38.25]}
    line = {"arch_id": 1, "arch": deep, "train": [training], "test_best": [{"test_clean_acc": 88.5}]}
    results = [json.dumps(record) for record in given_records()]
    files: dict[str, Any] = {
        "prbench.json": rows,
        "model_info/cifar10/L2/A2020Paper.json": info,
        "robustness-data/meta.json": {"ids": ids, "epsilons": {"pgd@Linf": [1.0, 8.0]}},
        "robustness-data/cifar10/clean_accuracy.json": {
            "cifar10": {"clean": {"accuracy": {"9": 0.5, "0": 0.25}}}
        },
        "robustness-data/cifar10/pgd@Linf_accuracy.json": {
            "cifar10": {"pgd@Linf": {"accuracy": {"9": [0.5, 0.25], "0": [0.25, 0.125]}}}
        },
        "all.json": {"cifar10": {"1000": {"val_acc": seeds, "val_fgsm_3.0_acc": {"1": 0.625}}}},
        "table.csv": "arch.name,train.method,acc,robust\nx,erm,0.5,0.25\ny,pgd,0.75,0.5\nz,pgd,much,0.5\n",
        "net.safetensors": formula_network(),
        "table201.jsonl": "".join(f"{text}\n" for text in results if '"method": "pgd", "seed": 0' in text),
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, (str, bytes)) else json.dumps(content)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    failed = {"schema": 1, "arch": {"name": "x"}, "error": {"tool": "rb-attack", "message": "It failed."}}
    mixed = [
        results[0],
        "not JSON",
        json.dumps(failed),
        "[1]",
        '{"schema": 1, "arch": {"name": "q"}}',
        results[1],
    ]
    texts = {
        "results": results,
        "nares": [json.dumps(line)],
        "broken": ["{", json.dumps({"a": 1})],
        "mixed": mixed,
    }
    return {"": b"", **{name: "\n".join(lines).encode() + b"\n" for name, lines in texts.items()}}


# ---- one step -----------------------------------------------------------------------------------------


def timeless(value: Any) -> Any:
    """A value of JSON with 1 in place of what differs from run to run."""
    if isinstance(value, dict):
        timed = TIMES.search(str(value.get("metric")))  # an entry of `evals` whose value is a duration
        return {
            key: _ones(item) if TIMES.search(key) or (timed and key == "value") else timeless(item)
            for key, item in value.items()
        }
    return [timeless(item) for item in value] if isinstance(value, list) else value


def _ones(value: Any) -> Any:
    if isinstance(value, (dict, list)):
        return (
            {k: _ones(v) for k, v in value.items()} if isinstance(value, dict) else [_ones(v) for v in value]
        )
    return 1 if isinstance(value, (int, float)) and not isinstance(value, bool) else value and "T"


def plain(text: str, folder: Path) -> str:
    """A text without durations, sizes, moments and the name of the folder."""
    text = re.sub(r"(?<=Recognised are: ).*?(?=\. Say )", "FAMILIES", text)  # the list grows
    text = text.replace(str(folder), "FOLDER").replace(str(folder.resolve()), "FOLDER")
    text = re.sub(r"(about \S+ \w+|less than a second)|(?<=by what )\d+", "T", text)
    text = re.sub(r"\d+(?:[.,]\d+)* ?(?:seconds?|minutes?|hours?|ms|min|s|h)\b", "T s", text)
    return re.sub(r"\d+(?:[.,]\d+)* ?(?:bytes|[kKMG]i?B)\b|\d{4}-\d\d-\d\dT[\d:.]+Z?", "T", text)


def output_of(text: str, folder: Path) -> Any:
    """Records where every line is one, else lines of text."""
    lines = plain(text, folder).splitlines()
    try:
        return [timeless(json.loads(line)) for line in lines]
    except ValueError:
        return lines


def files_in(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file outside stores, with what changes when it is written anew."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    names = {str(path.relative_to(folder)): path.stat() for path in paths}
    return {
        name: (s.st_mtime_ns, s.st_size)
        for name, s in names.items()
        if name.split("/")[0] not in STORES and name[0] != "."
    }


STORES = ("store", "other")


def content_of(path: Path, folder: Path) -> Any:
    if path.suffix == ".npz":  # the moments in it differ
        with zipfile.ZipFile(path) as archive:
            return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}
    if path.suffix == ".tar":
        with tarfile.open(path) as archive:
            return sorted(archive.getnames())
    data = path.read_bytes()
    if path.suffix in (".json", ".jsonl", ".csv", ".html", ".svg"):
        text = data.decode()
        if path.suffix == ".jsonl" or len(text) < WHOLE:
            return output_of(text, folder)
        data = plain(text, folder).encode()
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def keys_in(folder: Path) -> set[str]:
    kinds = ("objects", "results", "outcomes", "state")
    return {
        str(path.relative_to(folder)) for s in STORES for k in kinds for path in (folder / s / k).glob("*/*")
    }


def described(key: str, folder: Path) -> Any:
    """What a key of the store is the hash of, and what it stands for, where that is JSON."""
    data = (folder / key).read_bytes().rpartition(b"\n")[0].split(b"\n")[0]
    try:
        return timeless(json.loads(data)) if "/results/" in key else None
    except ValueError:
        return None


def run_step(line: str, folder: Path, streams: dict[str, bytes]) -> dict[str, Any]:
    """Run a step in the folder; its snapshot. Its records go into `streams`, without their durations."""
    from click.testing import CliRunner

    head, _, command = line.partition(":")
    into, _, source = head.partition("<")
    tool, *words = shlex.split(command)
    keys, files = keys_in(folder), files_in(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(
            tools.tool(tool).command, words, input=streams[source.strip()], prog_name=f"rb-{tool}"
        )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    after = files_in(folder)
    written = sorted(name for name in after if after[name] != files.get(name))
    snapshot: dict[str, Any] = {
        "stdin": source.strip(),
        "status": result.exit_code,
        "stdout": output_of(result.stdout, folder),
        "stderr": plain(result.stderr, folder).splitlines(),
        "files": {name: content_of(folder / name, folder) for name in written},
        "keys": {key: described(key, folder) for key in sorted(keys_in(folder) - keys)},
        "removed": sorted(keys - keys_in(folder)),
    }
    if into.strip():
        # Without durations the checksums are of other entries.
        lines = [
            json.dumps({key: value for key, value in record.items() if key != "checksums"})
            for record in snapshot["stdout"]
        ]
        text = "".join(f"{line}\n" for line in lines).replace("FOLDER", str(folder))
        streams[into.strip()] = text.encode()
        (folder / f"{into.strip()}.jsonl").write_bytes(streams[into.strip()])
        streams.setdefault("first", f"{lines[0]}\n".encode())
    return snapshot


def take(folder: Path, groups: Sequence[str], said: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """The snapshots of groups of steps, by command line, run in this folder: the current one, and empty."""
    streams = inputs(folder)
    snapshots: dict[str, Any] = {}
    for line in "\n".join(groups).strip().splitlines():
        if not line:
            continue
        start = time.process_time()
        name = line
        while name in snapshots:
            name += " (again)"
        snapshots[name] = run_step(line, folder, streams)
        said(f"{time.process_time() - start:6.2f} s  {snapshots[name]['status']}  {name}")
    return snapshots


def masked(value: Any) -> Any:
    """A snapshot without what differs between processors: results of computations, and what they decide."""
    if isinstance(value, dict):
        entry = "metric" in value and "value" in value
        return {
            key: {name: PRESENT for name in item}
            if key == "metrics" and isinstance(item, dict)
            else PRESENT
            if entry and key in COMPUTED
            else masked(item)
            for key, item in value.items()
        }
    return [masked(item) for item in value] if isinstance(value, list) else value


# ---- the whole ------------------------------------------------------------------------------------------


def whole(verbose: bool) -> dict[str, Any]:
    """A snapshot of all steps, in a new folder and with nothing of the user's."""
    for name in list(os.environ):
        if name.startswith(("RB_", "XDG_")):
            del os.environ[name]
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", RB_STORE="store")
    sys.argv = ["snapshots"]  # logs have the command line
    root = str(Path(__file__).resolve().parents[1])
    sys.path.insert(0, root)
    os.environ["PYTHONPATH"] = root
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    here = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="snapshots-") as name:
        folder = Path(name).resolve()
        os.environ.update(HOME=name, RB_STORE=str(folder / "store"))
        os.chdir(folder)
        import torch

        torch.set_num_threads(1)
        try:
            tell = (lambda text: print(text, file=sys.stderr)) if verbose else (lambda _: None)
            return json.loads(json.dumps(take(folder, STEPS, tell)))
        finally:
            os.chdir(here)


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Lines of a diff for each step that is not the same."""
    lines = []
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = (
            json.dumps(one.get(name), indent=1, sort_keys=False).splitlines() for one in (before, after)
        )
        if old != new:
            lines += [
                f"=== {name}",
                *list(difflib.unified_diff(old, new, "before", "after", "", "", 2, ""))[2:],
            ]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--verbose", action="store_true", help="the seconds and status of each step, on stderr"
    )
    options = parser.parse_args()
    before = json.loads(options.file.read_text("utf-8")) if options.action == "compare" else None
    file = options.file.absolute()
    after = whole(options.verbose)
    if before is None:
        file.write_text(json.dumps(after, indent=0), "utf-8")
        print(f"{len(after)} command lines, {sum(len(one['keys']) for one in after.values())} keys: {file}")
        return 0
    lines = differences(before, after)
    print("\n".join(lines) if lines else f"{len(after)} command lines: no difference")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
