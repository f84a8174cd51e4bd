"""What one machine with one GPU does: measured, checked against plain loops, beside the arithmetic floor.

    python bench/gpu.py                         all parts but the last, on the GPU
    python bench/gpu.py --small --device cpu    the same code with small numbers
    python bench/gpu.py --parts floor,attack    some of it: floor, train, attack, aa, pr, networks
    python bench/gpu.py --parts robust --data cifar10   --preset fgsm-pgi to its end, and AutoAttack

Needs the repository and the wheels it runs on, nothing else: images are made here (class patterns and
noise, 32x32), unless --data names a data set. It is planned to take under 10 minutes on an H200, which is
unmeasured. To that end sizes are smaller than the goals': PR of 512 images at one radius, AutoAttack of 256
images, 8 networks of NAS-Bench-201 for a few epochs; figures are scaled to the goals' sizes, or goals are
given as ratios.

One JSON line a figure: `ours` and `reference` in seconds or minutes (or images or copies a second), `floor`:
what the multiply-adds alone allow at the card's measured matrix rate, `times`: how many times as fast as the
reference, `goal` where there is one (for an H200), `memory_gib`: the most that torch held while our own code
ran, where that was in this process, `check` and `good`. The references are plain float32 loops of this file,
run on fewer batches and scaled. Ends with status 1 where a check fails. bench/gpu_table.py makes a table of
the lines.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gpu_plain import plain_loss, plain_pgd

PARTS = ("floor", "train", "attack", "aa", "pr", "networks", "robust")
ROBUST_SECONDS = 300.0  # for a network right on half of the images under AutoAttack
# Seconds an epoch that an H200 should need (50,000 images, ResNet-18).
GOALS = {"pgd": 6.0, "trades": 6.0, "cvar": 12.0, "at-pr": 40.0}
NETWORK_MINUTES = 50 * 2.5 / 60  # 50 epochs of PGD-7, of one network of NAS-Bench-201 when eight run at once
NETWORKS = 8


class Sizes(NamedTuple):
    """How much of everything is measured."""

    train: int = 50_000
    test: int = 10_000
    batch: int = 128
    epochs: int = 2  # the first one warms up
    arch: str = "resnet18"
    reference_batches: int = 20
    attacked: int = 2048
    aa: int = 256
    pr: int = 512
    samples: int = 100
    networks: int = NETWORKS
    network_cells: int = 5
    matrix: int = 8192
    steps: int = 10  # of the inner attacks
    noises: int = 20  # of cvar
    candidates: int = 5  # of at-pr, and the steps of its attacks and walks
    most: int = 15
    walk: int = 10


SMALL = Sizes(
    train=96,
    test=40,
    batch=32,
    epochs=2,
    arch="nb201-11472",
    reference_batches=1,
    attacked=20,
    aa=10,
    pr=20,
    samples=5,
    networks=2,
    network_cells=1,
    matrix=256,
    steps=1,
    noises=2,
    candidates=1,
    most=2,
    walk=1,
)


def options_of(method: str, sizes: Sizes) -> dict[str, Any]:
    """The options of a method that is trained."""
    if method == "cvar":
        return {"samples": sizes.noises, "rounds": 1}
    if method == "at-pr":
        least = min(5, sizes.most)
        return {
            "candidates": sizes.candidates,
            "steps_min": least,
            "steps_max": sizes.most,
            "walk_steps": sizes.walk,
        }
    return {"attack_steps": sizes.steps}


# --- data and time ----------------------------------------------------------------------------------


def made(folder: Path, sizes: Sizes) -> str:
    """A data set of ten classes, each a coloured pattern under noise; as --dataset takes it."""
    random = np.random.default_rng(0)
    patterns = random.uniform(0, 1, (10, 3, 8, 8)).repeat(4, 2).repeat(4, 3)
    arrays = {}
    for split, count in (("train", sizes.train), ("test", sizes.test)):
        labels = np.arange(count) % 10
        images = 0.6 * patterns[labels] + 0.4 * random.uniform(0, 1, (count, 3, 32, 32))
        arrays[f"x_{split}"] = (255 * images).astype(np.uint8)
        arrays[f"y_{split}"] = labels.astype(np.int64)
    np.savez(folder / "made.npz", **arrays)
    return f"npz:{folder / 'made.npz'}"


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    """The time of some work, the device's queue emptied before and after."""
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Bench:
    """The machine, the data, and the lines that are said."""

    def __init__(
        self, sizes: Sizes, device: torch.device, dataset: str, folder: Path, *, small: bool
    ) -> None:
        self.sizes, self.device, self.dataset, self.folder, self.small = sizes, device, dataset, folder, small
        self.failed: list[str] = []
        self.rate = 0.0  # multiply-adds a second
        self._memory: float | None = None  # GiB, for the next line
        self._trained: dict[str, Any] | None = None

    def say(self, figure: str, ours: float, **more: Any) -> None:
        """One line; a `check` that does not hold is remembered."""
        if more.get("good") is False:
            self.failed.append(figure)
        if "reference" in more:
            less = more.get("unit", "s") in ("s", "min")
            faster = more["reference"] / ours if less else ours / more["reference"]
            more["times"] = round(faster, 2)
        if self._memory is not None:
            more["memory_gib"], self._memory = self._memory, None
        rounded = {key: float(f"{v:.4g}") if isinstance(v, float) else v for key, v in more.items()}
        print(json.dumps({"figure": figure, "ours": float(f"{ours:.4g}"), **rounded}), flush=True)

    @contextmanager
    def memory(self) -> Iterator[None]:
        """The next line says the most that torch holds inside of this: around our own code alone."""
        if self.device.type != "cuda":
            yield
            return
        torch.cuda.reset_peak_memory_stats(self.device)
        yield
        self._memory = torch.cuda.max_memory_allocated(self.device) / 2**30

    def options(self, **more: Any) -> dict[str, Any]:
        """What every call of rbtools is told."""
        store = str(self.folder / "store")
        return {"dataset": self.dataset, "device": str(self.device), "store": store, **more}

    def record(self) -> dict[str, Any]:
        """The architecture that is trained and attacked."""
        cells = {"cells": 1, "channels": 4} if self.small else {}
        return record_of(self.sizes.arch, **cells)

    def floor(self, passes: float, images: int, macs: float) -> float | None:
        """Seconds for so many passes of images, if nothing but their multiply-adds took time."""
        return passes * images * macs / self.rate if self.rate else None

    def most_a_second(self, record: dict[str, Any], entry: dict[str, Any], copies: int = 1) -> float | None:
        """Images (or copies of them) a second, if nothing but the multiply-adds of an entry's passes took
        time."""
        passes = entry.get("passes")
        if not passes or "macs" not in record["arch"]:
            return None
        # A backward pass to the images costs one forward.
        least = self.floor(passes["forward"] + passes["backward"], 1, record["arch"]["macs"])
        return copies / least if least else None

    def trained(self) -> dict[str, Any]:
        """A network trained a little against PGD, to be attacked; made once."""
        import rbtools

        if self._trained is None:
            how = {"epochs": 2 * self.sizes.epochs, "batch_size": self.sizes.batch, "attack_steps": 1}
            options = self.options(normalize="none", val=0.0, **how)
            self._trained = rbtools.train(self.record(), "pgd", **options)
        return self._trained


def record_of(name: str, **more: Any) -> dict[str, Any]:
    """A record of an architecture of the zoo or of NAS-Bench-201."""
    from rbtools.inputs.checkpoints import named_arch

    return {"schema": 1, "arch": {**named_arch(name), **more}}


# --- plain loops, in float32, as one would write them ------------------------------------------------


def plain_epoch(bench: Bench, method: str, record: dict[str, Any], sizes: Sizes) -> float:
    """Seconds of an epoch by a plain loop, from a few of its batches."""
    from rbtools import models

    arch = record["arch"]
    model = models.build(arch, classes=10, shape=(3, 32, 32)).to(bench.device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    images, labels = tensors(bench, "train")

    def batches(count: int) -> None:
        for number in range(count):
            rows = torch.arange(number * sizes.batch, (number + 1) * sizes.batch) % len(labels)
            loss = plain_loss(method, model, images[rows], labels[rows], sizes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    count = sizes.reference_batches
    batches(1)  # warm
    return seconds(lambda: batches(count), bench.device) / (count * sizes.batch) * len(labels)


def tensors(bench: Bench, split: str, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Images float32 (N, 3, 32, 32) in [0, 1] and labels of a split, on the device."""
    from rbtools import datasets

    found = datasets.load(bench.dataset, split)
    images = found.images[:count].to(bench.device).float().div(255)
    return images, found.labels[:count].to(bench.device)


# --- the parts --------------------------------------------------------------------------------------


def floor(bench: Bench) -> None:
    """The card's matrix rate: multiply-adds a second of a large product, the best of several."""
    size = bench.sizes.matrix
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        a, b = (torch.randn(size, size, device=bench.device, dtype=dtype) for _ in range(2))
        a @ b
        best = min(seconds(lambda: a @ b, bench.device) for _ in range(5))  # noqa: B023
        rate = size**3 / best
        bench.rate = max(bench.rate, rate)
        bench.say(f"matrix rate {name}", rate / 1e12, unit="10^12 multiply-adds/s")


def train(bench: Bench) -> None:
    """Seconds an epoch of adversarial training, by four methods."""
    import rbtools
    from rbtools.training import METHODS as KNOWN

    for method, goal in GOALS.items():
        options = options_of(method, bench.sizes)
        how = {"epochs": bench.sizes.epochs, "batch_size": bench.sizes.batch, "normalize": "none", "val": 0.0}
        with bench.memory():
            done = rbtools.train(bench.record(), method, **bench.options(**how, **options))
        history, macs = done["train"]["history"], done["arch"].get("macs")
        ours, passes = history["seconds"][-1], done["train"]["passes"]
        most = KNOWN.build(method, **options).passes
        # A backward pass to the images costs one forward, one to the weights as well.
        work = passes["forward"] + passes["backward"]
        images = len(tensors(bench, "train")[1])
        told = {
            "unit": "s",
            "reference": plain_epoch(bench, method, bench.record(), bench.sizes),
            "goal": goal,
        }
        if macs:
            told["floor"] = bench.floor(work, images, macs)
        fine = all(np.isfinite(history["loss"])) and passes["forward"] <= most[0] + 1e-9
        bench.say(
            f"{method}, an epoch", ours, **told, check="finite loss, no more passes than it says", good=fine
        )


def attack(bench: Bench) -> None:
    """PGD-20: images a second, and the same robust accuracy."""
    import rbtools

    record = bench.trained()
    images, labels = tensors(bench, "test", bench.sizes.attacked)
    model = rbtools.load(record, **bench.options()).to(bench.device)
    count = len(labels)
    plain = plain_attack(model, images, labels)
    reference = seconds(lambda: plain_attack(model, images, labels), bench.device)
    for words, iterate in (("the last iterate", "last"), ("any iterate", "any")):
        options = bench.options(n=bench.sizes.attacked, steps=20, start="zero", iterate=iterate, force=True)
        rbtools.attack(record, "pgd", eps=8, **options)
        with bench.memory():
            done = rbtools.attack(record, "pgd", eps=8, **options)
        entry = next(one for one in done["evals"] if one["metric"] == "pgd20.8")
        found = {"points": round(100 * (entry["value"] - plain), 3), "robust": entry["value"]}
        good = abs(found["points"]) <= 0.3 if iterate == "last" else found["points"] <= 0.3
        told = {"unit": "images/s", "reference": count / reference, "goal": 5 * count / reference}
        told["floor"] = bench.most_a_second(record, entry)
        check = f"robust accuracy within .3 points of {plain:.4f}"
        bench.say(f"PGD-20, {words}", count / entry["seconds"], **told, **found, check=check, good=good)


def plain_attack(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Robust accuracy under PGD-20 from the image itself, 256 at a time."""
    right = 0
    for x, y in zip(images.split(256), labels.split(256), strict=True):
        perturbed = plain_pgd(model, x, y, 20, zero=True)
        with torch.no_grad():
            # As everywhere: a clean error counts as broken.
            right += int(((model(perturbed).argmax(1) == y) & (model(x).argmax(1) == y)).sum())
    return right / len(labels)


def aa(bench: Bench) -> None:
    """AutoAttack, standard: images a second beside its authors' code (pyautoattack)."""
    import rbtools

    record, n = bench.trained(), bench.sizes.aa
    short = {"attacks": "apgd-ce"} if bench.small else {}
    found = {}
    for backend in ("rbtools", "pyautoattack"):
        chosen = {} if backend == "rbtools" else {"backend": backend}
        with nullcontext() if chosen else bench.memory():
            done = rbtools.attack(record, "aa", eps=8, **bench.options(n=n, force=True, **short, **chosen))
        found[backend] = next(one for one in done["evals"] if one["metric"].startswith(("aa", "ensemble")))
    ours, theirs = found["rbtools"], found["pyautoattack"]
    points = round(100 * (ours["value"] - theirs["value"]), 3)
    bench.say(
        "AutoAttack",
        n / ours["seconds"],
        unit="images/s",
        reference=n / theirs["seconds"],
        goal=5 * n / theirs["seconds"],
        floor=bench.most_a_second(record, ours),
        points=points,
        check="at most .3 points (or one image) above pyautoattack",
        good=points <= max(0.3, 100 / n),
    )


def pr(bench: Bench) -> None:
    """Probabilistic robustness: noisy copies a second at one radius."""
    import rbtools

    record, sizes = bench.trained(), bench.sizes
    options = bench.options(n=sizes.pr, force=True)
    rbtools.pr(record, "0.1", rho="0.1", samples=sizes.samples, **options)
    with bench.memory():
        done = rbtools.pr(record, "0.1", rho="0.1", samples=sizes.samples, **options)
    entry = next(one for one in done["evals"] if one["metric"] == "pr.uniform.0.1")
    images, labels = tensors(bench, "test", sizes.pr)
    model = rbtools.load(record, **bench.options()).to(bench.device)
    share = plain_pr(model, images, labels, sizes.samples)
    reference = seconds(lambda: plain_pr(model, images, labels, sizes.samples), bench.device)
    copies = len(labels) * sizes.samples
    value = entry["value"]
    apart = None if value is None or share is None else round(100 * (value - share), 3)
    half = 100 * (entry["ci95"][1] - entry["ci95"][0]) / 2 if value is not None else 0.0
    bench.say(
        "PR, 100 copies" if sizes.samples == 100 else f"PR, {sizes.samples} copies",
        copies / entry["seconds"],
        unit="copies/s",
        reference=copies / reference,
        goal=8 * copies / reference,
        floor=bench.most_a_second(record, entry, sizes.samples),
        points=apart,
        check="within the interval of it",
        good=apart is None or abs(apart) <= max(half, 0.3),
    )


def plain_pr(model: nn.Module, images: Tensor, labels: Tensor, samples: int) -> float | None:
    """The mean share of noisy copies that stay right, over images that are right."""
    with torch.no_grad():
        right = torch.cat([model(x).argmax(1) for x in images.split(256)]) == labels
        kept = torch.zeros(len(labels), device=images.device)
        for _ in range(samples):
            noisy = (images + torch.empty_like(images).uniform_(-0.1, 0.1)).clamp(0, 1)
            kept += (torch.cat([model(x).argmax(1) for x in noisy.split(256)]) == labels).float()
    return float((kept[right] / samples).mean()) if bool(right.any()) else None


def networks(bench: Bench) -> None:
    """NAS-Bench-201: PGD-7 training of one network alone, and of several at once on one device.

    Minutes of the device that each network costs: of several at once each has its share. Their work is in
    other processes, whose memory is not known here.
    """
    sizes = bench.sizes._replace(steps=7, batch=min(256, bench.sizes.train))
    indices = [13714, 3456, 11472, 1462, 2528, 991, 309, 1832][: sizes.networks]
    images = len(tensors(bench, "train")[1])
    small = {"channels": 4} if bench.small else {}
    records = [record_of(f"nb201-{index}", cells=sizes.network_cells, **small) for index in indices]
    scale = 50 * 50_000 / images / 60
    reference = scale * plain_epoch(bench, "pgd", records[0], sizes)
    for some in (records[:1], records):
        done, seconds_each = train_networks(bench, some, sizes)
        minutes = scale * seconds_each
        told: dict[str, Any] = {"unit": "min", "reference": reference, "goal": NETWORK_MINUTES}
        macs = sum(one["arch"]["macs"] for one in done) / len(done)
        told["floor"] = None if not bench.rate else scale * (bench.floor(16, images, macs) or 0.0)
        fine = len(done) == len(some) and all(
            np.isfinite(one["train"]["history"]["loss"]).all() for one in done
        )
        words = "alone" if len(some) == 1 else f"{len(some)} at once"
        figure = f"nasbench201, 50 epochs of PGD-7, {words}"
        bench.say(figure, minutes, **told, check="all trained, finite loss", good=bool(fine))


def train_networks(
    bench: Bench, records: list[dict[str, Any]], sizes: Sizes
) -> tuple[list[dict[str, Any]], float]:
    """The records as rb-train leaves them, all trained at once, and the seconds of the device that an epoch
    of each costs: by the last epochs, in which slow networks have fewer beside them.
    """
    options: dict[str, Any] = {"epochs": sizes.epochs, "attack-steps": sizes.steps, "val": 0}
    options |= {"batch-size": sizes.batch}
    options |= {"jobs": len(records), "device": bench.device, "dataset": bench.dataset, "config": "none"}
    options |= {"store": bench.folder / f"networks-{len(records)}"}
    command = [sys.executable, "-m", "rbtools.commands.train", "--method", "pgd", "-q"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    text = "\n".join(map(json.dumps, records))
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    trained = [json.loads(line) for line in done.stdout.splitlines()]
    return trained, sum(one["train"]["history"]["seconds"][-1] for one in trained) / len(trained) ** 2


def robust(bench: Bench) -> None:
    """Training by the recipe of FGSM-PGI to its end, and the accuracy under AutoAttack, which --data cifar10
    gives a meaning.
    """
    import rbtools

    small = {"epochs": 2, "schedule": "step:milestones=1", "batch_size": 32} if bench.small else {}
    with bench.memory():
        done = rbtools.train(bench.record(), "fgsm-pgi", preset="fgsm-pgi", **bench.options(**small))
    ours = sum(done["train"]["history"]["seconds"])
    short = {"attacks": "apgd-ce"} if bench.small else {}
    found = rbtools.attack(done, "aa", eps=8, **bench.options(n=bench.sizes.aa, **short))
    entry = next(one for one in found["evals"] if one["metric"].startswith(("aa", "ensemble")))
    real = bench.dataset == "cifar10"
    told = {"unit": "s", "goal": ROBUST_SECONDS, "robust": entry["value"], "epochs": done["train"]["epochs"]}
    check = "half of the images right under AutoAttack" if real else "finite loss"
    good = entry["value"] >= 0.5 if real else bool(np.isfinite(done["train"]["history"]["loss"]).all())
    bench.say("fgsm-pgi, whole", ours, **told, check=check, good=good)


def parts(text: str) -> Iterator[Callable[[Bench], None]]:
    """The functions of these names; the matrix rate comes first, as the others need it."""
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in PARTS]
    if unknown:
        raise SystemExit(f"--parts has {unknown[0]}. Known parts: {', '.join(PARTS)}.")
    for name in PARTS:
        if name in chosen:
            yield globals()[name]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu [cuda]")
    parser.add_argument("--small", action="store_true", help="small numbers, to see that it runs")
    parser.add_argument("--parts", default=",".join(PARTS[:-1]), help="some of: " + ", ".join(PARTS))
    parser.add_argument("--data", default=None, help="a data set of 32x32 images, such as cifar10")
    chosen = parser.parse_args()
    if chosen.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("There is no GPU here. Measure the code itself with --small --device cpu.")
    device = torch.device(chosen.device)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
        False  # the references are float32
    )
    sizes = SMALL if chosen.small else Sizes()
    with tempfile.TemporaryDirectory() as folder:
        dataset = chosen.data or made(Path(folder), sizes)
        bench = Bench(sizes, device, dataset, Path(folder), small=chosen.small)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        print(json.dumps({"machine": name, "torch": torch.__version__, "small": chosen.small}), flush=True)
        for part in parts(chosen.parts):
            part(bench)
    if bench.failed:
        raise SystemExit(f"checks failed: {', '.join(bench.failed)}")


if __name__ == "__main__":
    main()
