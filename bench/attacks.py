"""Attacks side by side with torchattacks and pyautoattack: seconds, and what came out.

    python bench/attacks.py --data FOLDER --checkpoint FILE [--n 500] [--part pgd,fgsm,square,evaluate,aa]

FOLDER is an image folder with test/CLASS/* (or the name of a data set); FILE is a checkpoint that is
recognised. Ours and the peer's run in turn, with other seeds, `--repeats` times on the same images, in one
process with `--threads` threads; one JSON line a figure has the medians, their ratio and the robust
accuracies. A peer gets the model as it was loaded, in batches of 128.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import rbtools
from rbtools.attacks import ATTACKS
from rbtools.evaluation import attacking
from rbtools.evaluation.base import Batch, batch_size, default_chunk_size
from rbtools.evaluation.fast_model import make_fast_model
from rbtools.execution import precision
from rbtools.execution.run import Run
from rbtools.inputs import checkpoints, resolve
from rbtools.inputs.data import data_of
from rbtools.store import Store

PARTS = ("pgd", "fgsm", "command", "square", "evaluate", "aa", "memory")


class Bench:
    """The model, its images, and the two sides."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.clock = time.process_time if options.cpu else time.perf_counter
        dataset_name = f"imagefolder:{options.data}" if Path(options.data).is_dir() else options.data
        run = Run.of(tool="bench", store=Store(None), dataset=dataset_name, device="cpu")
        record = checkpoints.record_of(
            options.checkpoint, checkpoints.CheckpointHints(options.arch, None), run
        )
        record = checkpoints.prepared(record, run)
        data = data_of(record, run)
        self.model = resolve.load_model(record, data, run, torch.device("cpu"))
        dataset = data.load()
        self.ids = data.order(dataset.labels)[: options.n]
        self.images = dataset.images[self.ids].float().div(255)
        self.labels = dataset.labels[self.ids]
        self.shape = data.about.shape
        self.bf16 = precision.resolve(Run.of(tool="bench", precision="auto", device="cpu"))
        self.together = batch_size(torch.device("cpu"), self.shape)

    def ours(self, name: str, how: str, seed: int, **params: Any) -> float:
        """Robust accuracy by our engine: how is "fp32" or "bf16"."""
        search = make_fast_model(self.model, how, self.shape).model
        method = ATTACKS.build(name, **params)
        still_correct = 0
        for start in range(0, len(self.ids), self.together):
            still_correct += int(attacking.run_attack(self.tile(start, search, seed), method).survived.sum())
        return still_correct / len(self.ids)

    def tile(self, start: int, search: nn.Module, seed: int) -> Batch:
        rows = slice(start, start + self.together)
        return Batch(
            self.model,
            self.images[rows],
            self.labels[rows],
            self.ids[rows],
            seed=seed,
            chunk_size=default_chunk_size(torch.device("cpu"), self.shape),
            fast_model=search,
        )

    def theirs(self, make: Callable[[nn.Module], Any], seed: int) -> float:
        """Robust accuracy by a torchattacks attack."""
        torch.manual_seed(seed)
        attack = make(self.model)
        still_correct = 0
        for images, labels in zip(self.images.split(128), self.labels.split(128), strict=True):
            perturbed = attack(images, labels)
            with torch.no_grad():
                still_correct += int((self.model(perturbed).argmax(1) == labels).sum())
        return still_correct / len(self.ids)

    def pyautoattack(self, seed: int) -> Tensor:
        """Which images stand (N,) under AutoAttack by its authors' code."""
        from pyautoattack import AutoAttack

        eps = self.options.eps / 255
        attack = AutoAttack(self.model, norm="Linf", eps=eps, version="standard", seed=seed, device="cpu")
        attack.verbose = False
        perturbed = attack.run_standard_evaluation(self.images, self.labels, batch_size=128)[0]
        with torch.no_grad():
            return self.model(perturbed).argmax(1) == self.labels

    def compare(self, figure: str, goal: float, ours: Callable[[int], float], peer: Any, name: str) -> None:
        """Time both sides in turn and print the line."""
        seconds: dict[str, list[float]] = {"ours": [], name: []}
        found: dict[str, list[float]] = {"ours": [], name: []}
        for seed in range(self.options.repeats):
            for side, work in ((name, peer), ("ours", ours)):
                start = self.clock()
                found[side].append(work(seed))
                seconds[side].append(self.clock() - start)
        medians = {side: statistics.median(values) for side, values in seconds.items()}
        line = {
            "figure": figure,
            "n": len(self.ids),
            "seconds": {side: round(value, 2) for side, value in medians.items()},
            "ratio": round(medians[name] / medians["ours"], 2),
            "goal": goal,
            "robust accuracy": {side: [round(one, 4) for one in values] for side, values in found.items()},
        }
        print(json.dumps(line), flush=True)

    # --- parts ------------------------------------------------------------------------------------

    def pgd(self) -> None:
        import torchattacks

        eps = self.options.eps / 255

        def peer(seed: int) -> float:
            make = torchattacks.PGD
            return self.theirs(lambda model: make(model, eps=eps, alpha=2.5 * eps / 20, steps=20), seed)

        for how, goal in (("fp32", 1.5), ("bf16", 3.0)):
            self.compare(
                f"PGD-20, last iterate, {how}",
                goal,
                lambda seed, how=how: self.ours("pgd", how, seed, eps=eps, iterate="last"),
                peer,
                "torchattacks",
            )
        self.compare(
            f"PGD-20, the defaults ({self.bf16}, any iterate)",
            self.options.goal,
            lambda seed: self.ours("pgd", self.bf16, seed, eps=eps),
            peer,
            "torchattacks",
        )

    def fgsm(self) -> None:
        import torchattacks

        eps = self.options.eps / 255
        self.compare(
            f"FGSM ({self.bf16})",
            1.5,
            lambda seed: self.ours("fgsm", self.bf16, seed, eps=eps),
            lambda seed: self.theirs(lambda model: torchattacks.FGSM(model, eps=eps), seed),
            "torchattacks",
        )

    def command(self) -> None:
        """FGSM as a whole command, with loading and clean accuracy, beside a program of the peer."""
        options = self.options
        arch = {"space": "nasbench201", "index": 13714, "cells": 1, "channels": 16}
        data = Path(tempfile.mkdtemp()) / "images.npz"
        images, labels = (self.images * 255).round().byte().permute(0, 2, 3, 1).numpy(), self.labels.numpy()
        few = {"x_train": images[:10], "y_train": labels[:10]}
        np.savez(data, x_test=images, y_test=labels, **few)
        program = [sys.executable, str(Path(__file__).with_name("peer_fgsm.py")), options.checkpoint]
        program += [json.dumps(arch), "[0.4914,0.4822,0.4465]", "[0.2471,0.2435,0.2616]", str(data)]
        tool = [sys.executable, "-m", "rbtools.commands.attack", "fgsm", "--eps", "8"]
        tool += ["--checkpoint", options.checkpoint, "--arch", "nb201-13714", "--dataset", f"npz:{data}"]
        tool += ["--n", str(len(labels)), "--jobs", "1", "--threads", "1", "--device", "cpu"]

        def run(command: list[str], *more: str) -> float:
            command = [*command, *more]
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            record = json.loads(printed)
            return float(record.get("metrics", record)["fgsm.8"])

        peer, ours = (
            (lambda seed: run(program)),
            (lambda seed: run(tool, "--store", str(data.with_name(f"store{seed}")))),
        )
        self.compare("FGSM, a command with its loading", 1.2, ours, peer, "torchattacks")

    def square(self) -> None:
        import torchattacks

        eps = self.options.eps / 255

        def make(model: nn.Module) -> Any:
            return torchattacks.Square(model, eps=eps, n_queries=1000, n_restarts=1)

        self.compare(
            f"Square, 1,000 queries ({self.bf16})",
            3.0,
            lambda seed: self.ours("square", self.bf16, seed, eps=eps, queries=1000),
            lambda seed: self.theirs(make, seed),
            "torchattacks",
        )

    def evaluate(self) -> None:
        """`rbtools.evaluate` beside the peers: what a program calls, with a model and tensors in memory."""
        import torchattacks

        eps = self.options.eps / 255

        def ours(name: str, seed: int, **params: Any) -> float:
            task = ATTACKS.build(name, eps=eps, **params)
            given = (self.images, self.labels)
            (result,) = rbtools.evaluate(self.model, given, [task], seed=seed, device="cpu")
            return float(result.value)

        make = torchattacks.PGD
        self.compare(
            "rbtools.evaluate, PGD-20, the defaults",
            self.options.goal,
            lambda seed: ours("pgd", seed),
            lambda seed: self.theirs(lambda m: make(m, eps=eps, alpha=2.5 * eps / 20, steps=20), seed),
            "torchattacks",
        )
        keep = self.options.repeats, self.images, self.labels, self.ids
        count = self.options.aa_n
        self.options.repeats = 1
        self.images, self.labels, self.ids = (one[:count] for one in keep[1:])
        self.compare(
            "rbtools.evaluate, AutoAttack standard",
            3.0,
            lambda seed: ours("aa", seed),
            lambda seed: float(self.pyautoattack(seed).float().mean()),
            "pyautoattack",
        )
        self.options.repeats, self.images, self.labels, self.ids = keep

    def aa(self) -> None:
        eps, count = self.options.eps / 255, self.options.aa_n
        ids, images, labels = self.ids, self.images, self.labels
        self.ids, self.images, self.labels = ids[:count], images[:count], labels[:count]
        robust: dict[str, Tensor] = {}

        def peer(seed: int) -> float:
            robust["pyautoattack"] = self.pyautoattack(seed)
            return float(robust["pyautoattack"].float().mean())

        def ours(seed: int) -> float:
            search = make_fast_model(self.model, self.options.aa_precision or self.bf16, self.shape).model
            method = ATTACKS.build("aa", eps=eps)
            found, by = [], {}
            for start in range(0, len(self.ids), self.together):
                seen = attacking.run_attack(self.tile(start, search, seed), method)
                found.append(seen.survived)
                for name, value in seen.totals.items():
                    by[name] = by.get(name, 0.0) + value
            robust["ours"] = torch.cat(found)
            print(json.dumps({"our totals": by}), file=sys.stderr)
            return float(robust["ours"].float().mean())

        repeats, self.options.repeats = self.options.repeats, 1
        self.compare("AutoAttack standard", 3.0, ours, peer, "pyautoattack")
        differ = (robust["ours"] != robust["pyautoattack"]).nonzero()[:, 0].tolist()
        print(json.dumps({"figure": "AutoAttack, images that differ", "numbers": differ}), flush=True)
        self.options.repeats = repeats
        self.ids, self.images, self.labels = ids, images, labels

    def memory(self) -> None:
        """Peak memory of one batch of 128 beyond what was held before, each side in its own process."""
        peaks = {}
        for side in ("ours", "torchattacks"):
            command = [sys.executable, __file__, *sys.argv[1:], "--only", side]
            peaks[side] = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        line = {"figure": "peak memory of PGD-20, MB", "goal": 1.2}
        line["ratio"] = round(peaks["ours"] / peaks["torchattacks"], 2)
        print(json.dumps({**line, "MB": {k: v // 1024 for k, v in peaks.items()}}), flush=True)

    def alone(self, side: str) -> None:
        import torchattacks

        self.ids, self.images, self.labels = self.ids[:128], self.images[:128], self.labels[:128]
        eps, held = self.options.eps / 255, _from_now_on()
        if side == "ours":
            self.ours("pgd", self.bf16, 0, eps=eps)
        elif side == "torchattacks":
            self.theirs(lambda model: torchattacks.PGD(model, eps=eps, alpha=eps / 8, steps=20), 0)
        print(_status("VmHWM") - held)


def _from_now_on() -> int:
    """Let the kernel count the process's peak memory anew; KiB held now. Linux only."""
    ctypes.CDLL(None).malloc_trim(0)  # what loading left behind would be used again, and not be seen
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(field: str) -> int:
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(field))
    return int(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="the image folder")
    parser.add_argument("--checkpoint", required=True, help="the model")
    parser.add_argument("--arch", default=None, help="its architecture, where it is not recognised")
    parser.add_argument("--eps", type=float, default=8, help="the distance, in 1/255 [8]")
    parser.add_argument("--n", type=int, default=500, help="images [500]")
    parser.add_argument("--aa-n", type=int, default=100, help="images for AutoAttack [100]")
    parser.add_argument("--aa-precision", choices=("fp32", "bf16"), default=None)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side [3]")
    parser.add_argument("--threads", type=int, default=2, help="threads [2]")
    parser.add_argument(
        "--cpu", action="store_true", help="processor time: for a busy machine, with --threads 1"
    )
    parser.add_argument("--goal", type=float, default=5, help="ratio wanted of PGD with the defaults [5]")
    parser.add_argument("--part", default="pgd,fgsm,square,memory", help="of " + ",".join(PARTS))
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    bench = Bench(options)
    if options.only:
        bench.alone(options.only)
        return
    for part in options.part.split(","):
        getattr(bench, part)()


if __name__ == "__main__":
    main()
