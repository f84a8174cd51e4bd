"""Checkpoints: how long it takes to recognise one, and which are recognised: one JSON line a figure.

    python bench/checkpoints.py [--runs 5]
    python bench/checkpoints.py --families
    python bench/checkpoints.py --robust FILE --data FOLDER

The first times a ResNet-18 of 45 MB, in fresh processes that have imported torch and what they call:
`torch.load` alone, and loading, recognising and building it; then with the normalisation told by BatchNorm,
as an evaluation without a hint does. The second writes a table of the families, each asked about networks
under every usual prefix. The third evaluates the robust network of NAS-Bench-201 without a hint on images
0000.jpg to 0049.jpg of each class of FOLDER/test.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

GOAL = 0.5  # seconds beyond torch.load
PREFIXES = ("", "module.", "model.", "_orig_mod.", "net.", "1.", "module.1.")

CHILD = """
import sys, time
import torch
from rbtools.models import checkpoint, families
from rbtools.datasets import NORMALIZATIONS
from rbtools.zoo import torchvision_family as torchvision

path, what = sys.argv[1:]
known = {"none": None, **{k: (v.mean, v.std) for k, v in NORMALIZATIONS.items() if len(v.mean) == 3}}
torch.set_num_threads(1)
start = time.perf_counter()
if what == "torch.load":
    torch.load(path, map_location="cpu", weights_only=True)
else:
    hints = checkpoint.NormalizationHints(known=known if what == "with normalisation" else {})
    _, arch, _ = checkpoint.load(path, hints=hints)
    assert arch["name"] == "resnet18"
print(time.perf_counter() - start)
"""


def timed(runs: int) -> None:
    import torch

    from rbtools import models

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "resnet18.pth.tar"
        network = models.build({"space": "zoo", "name": "resnet18"}, classes=10, shape=(3, 32, 32))
        with torch.no_grad():
            network(torch.rand(64, 3, 32, 32))  # so that its BatchNorm layers remember something
        state = {f"module.{key}": value for key, value in network.state_dict().items()}
        torch.save({"state_dict": state, "epoch": 199}, path)
        found: dict[str, list[float]] = {}
        for _ in range(runs):
            for what in ("torch.load", "recognised", "with normalisation"):
                words = [sys.executable, "-c", CHILD, str(path), what]
                done = subprocess.run(words, capture_output=True, text=True, check=True)
                found.setdefault(what, []).append(float(done.stdout))
        medians = {what: statistics.median(values) for what, values in found.items()}
        for what in ("recognised", "with normalisation"):
            more = medians[what] - medians["torch.load"]
            say(
                figure=f"a checkpoint of {path.stat().st_size / 1e6:.0f} MB, {what}: beyond torch.load",
                seconds=round(more, 3),
                torch_load=round(medians["torch.load"], 3),
                goal=GOAL if what == "recognised" else None,
                reached=more <= GOAL,
            )


def families() -> None:
    from rbtools import models
    from rbtools.errors import RbError
    from rbtools.models import recognise, unpack
    from rbtools.models.families import FAMILIES
    from rbtools.models.load_weights import meta_init
    from rbtools.spaces import zoo
    from rbtools.zoo import external, make_torchvision_table

    def state_of(space: str, name: str) -> dict[str, object]:
        if space == "torchvision":
            return dict(make_torchvision_table.network(name, 7).state_dict())
        arch = {"space": space, "str" if space == "nasbench201" else "name": name}
        shape = (1, 28, 28) if name == "simplecnn" else (3, 32, 32)
        with meta_init():
            return dict(models.build(arch, classes=7, shape=shape).state_dict())

    every = [("nasbench201", EVERY_EDGE), *(("zoo", name) for name in zoo.FORMS)]
    every += [("torchvision", name) for name in external.table()]
    told, asked = Counter(), Counter()
    for space, name in every:
        state = state_of(space, name)
        family = next(family for family, tell in FAMILIES.items() if tell(state, {}) is not None)
        for prefix in PREFIXES:
            renamed = {prefix + key: value for key, value in state.items()}
            unpack.strip(renamed)
            asked[family] += 1
            try:
                told[family] += recognise.infer(renamed).classes == 7
            except RbError as wrong:
                print(f"{name} as {prefix}: {wrong}", file=sys.stderr)
    print("| family | networks | recognised, each under 7 prefixes |\n|---|---|---|")
    for family in FAMILIES:
        print(f"| {family} | {asked[family] // len(PREFIXES)} | {told[family]} of {asked[family]} |")


EVERY_EDGE = "|nor_conv_3x3~0|+|nor_conv_1x1~0|nor_conv_3x3~1|+|nor_conv_3x3~0|nor_conv_1x1~1|nor_conv_1x1~2|"


def robust(file: str, data: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for place in sorted(Path(data, "test").iterdir()):
            into = Path(folder, "test", place.name)
            into.mkdir(parents=True)
            for number in range(50):
                (into / f"{number:04}.jpg").symlink_to((place / f"{number:04}.jpg").resolve())
        tool = Path(sys.executable).parent / "rb-attack"
        words = [str(tool), "fgsm", "--eps", "0", "--no-store", "--checkpoint", file]
        words += ["--dataset", f"imagefolder:{folder}"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    record = json.loads(done.stdout)
    (entry,) = [entry for entry in record["evals"] if entry["metric"] == "acc"]
    say(
        figure="the robust network of NAS-Bench-201, no hint: clean accuracy",
        arch=record["arch"]["name"],
        arch_from=record["recognised"]["arch_from"],
        margin=record["recognised"].get("arch_margin"),
        normalize_from=record["recognised"]["normalize_from"],
        n=entry["n"],
        value=entry["value"],
        goal=0.722,
        reached=entry["value"] == 0.722,
    )


def say(**figure: object) -> None:
    print(json.dumps({"machine": platform.machine(), **figure}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--families", action="store_true")
    parser.add_argument("--robust")
    parser.add_argument("--data")
    options = parser.parse_args()
    if options.families:
        families()
    elif options.robust:
        robust(options.robust, options.data)
    else:
        timed(options.runs)
