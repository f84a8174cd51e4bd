"""Attacks through `rbtools.evaluate`, beside torchattacks and pyautoattack: seconds, and what came out.

    python bench/attacks.py --data FOLDER --checkpoint FILE [--network cnn,robust] [--attack fgsm,pgd]
    python bench/attacks.py --data FOLDER --checkpoint FILE --attack command,verdicts

FOLDER is an image folder with test/CLASS/*, FILE the robust network (NAS-Bench-201 13714). `resnet18` is the
network that pyautoattack ships, which is not robust; `cnn` has two convolutions and 20,000 weights, and is
trained here on `digits`, whose test images it attacks. Ours is the whole call: it looks at the model,
measures clean accuracy, and decides in float32. A peer gets the same tensors in batches of 128, and
classifies its images once. Both sides run in turn, `--repeats` times, in one process with one thread; one
JSON line a figure has the medians of the processor time, the smallest and largest ratio, and the robust
accuracies. `--save FILE` keeps our verdicts, and `--beside FILE` counts those that differ from them.
`command` is FGSM as a whole program with an empty store, beside bench/peer_fgsm.py. `verdicts` compares the
decisions of the float32 copy with those of the model, on 10,000 images and their perturbations by FGSM.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torchattacks
from common import fresh, images_of_folder, published_resnet18
from pyautoattack import AutoAttack
from torch import Tensor, nn

import rbtools
from rbtools.attacks import ATTACKS
from rbtools.attacks.verdicts import Judge
from rbtools.datasets import load as load_dataset
from rbtools.evaluation.fast_model import make_fast_model

EPS = {"robust": 8 / 255, "resnet18": 8 / 255, "cnn": 32 / 255}
N = {
    "robust": {"fgsm": 500, "pgd": 200, "apgd-ce": 200, "square": 64, "fab": 48, "aa": 100},
    "resnet18": {"fgsm": 64, "pgd": 64, "apgd-ce": 64, "square": 64, "fab": 12, "aa": 200},
    "cnn": {"fgsm": 355, "pgd": 355, "apgd-ce": 355, "square": 355, "fab": 355, "aa": 200},
}
PARAMS: dict[str, dict[str, Any]] = {
    "pgd": {"steps": 20},
    "apgd-ce": {"steps": 50},
    "square": {"queries": 500},
}
PARAMS |= {"fgsm": {}, "fab": {"steps": 20}, "aa": {}}


class Given(NamedTuple):
    """A network, with images float32 (N, C, H, W) in [0, 1] and labels (N,)."""

    model: nn.Module
    images: Tensor
    labels: Tensor


def digits_cnn() -> Given:
    """A network of two convolutions, trained for 20 epochs on the training images of `digits`."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * 16, 20), nn.ReLU(), nn.Linear(20, 10)),
    )
    train, test = (load_dataset("digits", split=split) for split in ("train", "test"))
    assert isinstance(train.images, Tensor) and isinstance(test.images, Tensor)
    images, optimizer = train.images.float() / 255, torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(20):
        for rows in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), train.labels[rows]).backward()
            optimizer.step()
    return Given(model.eval().requires_grad_(False), test.images.float() / 255, test.labels)


def of_checkpoint(file: str, folder: str, n: int, arch: str = "nb201-13714") -> Given:
    """The network of a checkpoint, with n images of FOLDER/test."""
    (record,) = rbtools.arch(from_checkpoint=file, arch=arch)
    return Given(rbtools.load(record, device="cpu"), *images_of_folder(folder, n, "cpu"))


def given(network: str, n: int, options: argparse.Namespace) -> Given:
    if network == "cnn":
        return digits_cnn()
    if network == "resnet18":
        return Given(published_resnet18("cpu"), *images_of_folder(options.data, n, "cpu"))
    return of_checkpoint(options.checkpoint, options.data, n)


def ours(name: str, one: Given, eps: float, seed: int) -> Tensor:
    """Which images (N,) are classified correctly under the attack, by one call."""
    method = ATTACKS.build(name, eps=eps, **PARAMS[name])
    (result,) = rbtools.evaluate(one.model, (one.images, one.labels), [method], seed=seed, device="cpu")
    return result.correct


def theirs(name: str, one: Given, eps: float, seed: int) -> Tensor:
    """The same by torchattacks or, for AutoAttack, by its authors' code."""
    torch.manual_seed(seed)
    if name == "aa":
        attack = AutoAttack(one.model, norm="Linf", eps=eps, version="standard", seed=seed, device="cpu")
        attack.verbose = False
        found = [attack.run_standard_evaluation(one.images, one.labels, batch_size=128)[0]]
    else:
        make: dict[str, Callable[[], Any]] = {
            "fgsm": lambda: torchattacks.FGSM(one.model, eps=eps),
            "pgd": lambda: torchattacks.PGD(one.model, eps=eps, alpha=eps / 8, steps=20),
            "apgd-ce": lambda: torchattacks.APGD(one.model, eps=eps, steps=50, n_restarts=1),
            "square": lambda: torchattacks.Square(one.model, eps=eps, n_queries=500, n_restarts=1),
            "fab": lambda: torchattacks.FAB(one.model, eps=eps, steps=20, n_classes=10),
        }
        attack = make[name]()
        found = [attack(*part) for part in zip(one.images.split(128), one.labels.split(128), strict=True)]
    with torch.no_grad():
        return torch.cat([one.model(part).argmax(1) for part in torch.cat(found).split(128)]) == one.labels


def compare(network: str, name: str, everything: Given, options: argparse.Namespace) -> dict[str, Any]:
    """Time both sides in turn: the line of a figure."""
    n = options.n or N[network][name]
    one = Given(everything.model, everything.images[:n], everything.labels[:n])
    if network != "cnn":  # images of all classes
        rows = torch.linspace(0, len(everything.labels) - 1, n).long()
        one = Given(everything.model, everything.images[rows], everything.labels[rows])
    sides = {"ours": ours, "peer": theirs} if not options.alone else {"ours": ours}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    correct: dict[str, list[Tensor]] = {side: [] for side in sides}
    for work in sides.values():  # the first call of each side prepares kernels
        work("fgsm", Given(one.model, one.images[:4], one.labels[:4]), EPS[network], 0)
    for seed in range(options.repeats):
        for side, work in sides.items():
            start = time.process_time()
            correct[side].append(work(name, one, EPS[network], seed))
            seconds[side].append(time.process_time() - start)
    line: dict[str, Any] = {"network": network, "attack": name, "n": n}
    for side in sides:
        line[side] = round(statistics.median(seconds[side]), 3)
        line[f"{side} robust"] = [round(float(part.float().mean()), 4) for part in correct[side]]
    if not options.alone:
        ratios = sorted(peer / own for own, peer in zip(seconds["ours"], seconds["peer"], strict=True))
        line |= {"ratio": round(line["peer"] / line["ours"], 2)}
        line |= {"least": round(ratios[0], 2), "most": round(ratios[-1], 2)}
        line["differ"] = int((correct["ours"][0] != correct["peer"][0]).sum())
    kept[f"{network} {name}"] = correct["ours"][0].tolist()
    return line


kept: dict[str, list[bool]] = {}


def verdicts(network: str, options: argparse.Namespace) -> dict[str, Any]:
    """The decisions of the float32 copy beside those of the model."""
    one = given(network, options.n or 10_000, options)
    times = -(-(options.n or 10_000) // len(one.labels))  # digits has fewer: each image under other noise
    images, labels = one.images.repeat(times, 1, 1, 1), one.labels.repeat(times)
    if times > 1:
        images = (images + 0.1 * torch.rand_like(images)).clamp(0, 1)
    copy = make_fast_model(one.model, "fp32", tuple(images.shape[1:])).judge
    assert copy is not None
    judge = Judge.of(copy, one.model(images[:8]))
    line: dict[str, Any] = {"network": network, "attack": "verdicts", "n": len(labels)}
    attack = ATTACKS.build("fgsm", eps=EPS[network])
    seconds, others, tied = {"copy": 0.0, "model": 0.0}, 0, 0
    for some, truth in zip(images.split(100), labels.split(100), strict=True):
        for seen in (some, attack(one.model, some, truth)):
            with torch.no_grad():
                begin = time.process_time()
                by_copy = judge.logits(one.model, seen)
                middle = time.process_time()
                by_model = one.model(seen)
            seconds["copy"] += middle - begin
            seconds["model"] += time.process_time() - middle
            others += int((by_copy.argmax(1) != by_model.argmax(1)).sum())
            tied += int(judge.tied(by_copy).sum())
    return line | {"other decisions": others, "of": 2 * len(labels), "nearly tied": tied, "seconds": seconds}


def command(options: argparse.Namespace) -> None:
    """FGSM on the robust network as a whole program."""
    folder, n = Path(tempfile.mkdtemp()), options.n or 100
    images, labels = images_of_folder(options.data, n, "cpu")
    arrays = (images * 255).round().byte().permute(0, 2, 3, 1).numpy(), labels.numpy()
    few = {"x_train": arrays[0][:10], "y_train": arrays[1][:10]}
    np.savez(folder / "images.npz", x_test=arrays[0], y_test=arrays[1], **few)
    arch = {"space": "nasbench201", "index": 13714, "cells": 1, "channels": 16}
    peer = [
        sys.executable,
        str(Path(__file__).with_name("peer_fgsm.py")),
        options.checkpoint,
        json.dumps(arch),
    ]
    peer += ["[0.4914,0.4822,0.4465]", "[0.2471,0.2435,0.2616]", str(folder / "images.npz")]
    tool = [sys.executable, "-m", "rbtools.commands.attack", "fgsm", "--eps", "8", "--n", str(n)]
    tool += ["--checkpoint", options.checkpoint, "--arch", "nb201-13714", "--device", "cpu", "--threads", "1"]
    tool += ["--dataset", f"npz:{folder / 'images.npz'}", "--jobs", "1"]
    ratios, seconds = [], []
    for turn in range(options.repeats):
        ours = fresh(*tool, "--store", str(folder / f"store{turn}"))["cpu"]
        seconds.append((ours, fresh(*peer)["cpu"]))
        ratios.append(seconds[-1][1] / ours)
    medians = [round(statistics.median(side), 2) for side in zip(*seconds, strict=True)]
    line = {"network": "robust", "attack": "command", "n": n, "ours": medians[0], "peer": medians[1]}
    line |= {"ratio": round(statistics.median(ratios), 2), "least": round(min(ratios), 2)}
    print(json.dumps(line | {"most": round(max(ratios), 2)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="the image folder")
    parser.add_argument("--checkpoint", help="the robust network")
    parser.add_argument("--network", default="robust,resnet18,cnn", help="of robust,resnet18,cnn [all]")
    parser.add_argument(
        "--attack", default="fgsm,pgd,apgd-ce,aa", help="of " + ",".join([*PARAMS, "command,verdicts"])
    )
    parser.add_argument("--n", type=int, default=None, help="images [those of the table in docs/speed.md]")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side [3]")
    parser.add_argument("--alone", action="store_true", help="without the peer")
    parser.add_argument("--save", type=Path, help="keep our verdicts in this file")
    parser.add_argument("--beside", type=Path, help="count the verdicts that differ from those of this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    before = json.loads(options.beside.read_text()) if options.beside else {}
    names = options.attack.split(",")
    if "command" in names:
        command(options)
    for network in options.network.split(","):
        if "verdicts" in names:
            print(json.dumps(verdicts(network, options)), flush=True)
        everything = given(network, max(N[network].values()), options)
        for name in (one for one in names if one in PARAMS):
            line = compare(network, name, everything, options)
            if old := before.get(f"{network} {name}"):
                line["other verdicts"] = sum(
                    a != b for a, b in zip(old, kept[f"{network} {name}"], strict=True)
                )
            print(json.dumps(line), flush=True)
    if options.save:
        options.save.write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
