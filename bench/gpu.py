"""What one machine with one GPU does: measured, checked against plain loops, beside the arithmetic floor.

    python bench/gpu.py --data npz:FILE          all parts but robust, on the GPU
    python bench/gpu.py --small --device cpu    the same code with small numbers
    python bench/gpu.py --parts floor,attack    some of it: floor, verdicts, resume, train, attack, aa, pr,
                                                networks, profile, passes
    python bench/gpu.py --parts floor,robust,aa --data cifar10   FGSM-PGI in large batches, and AutoAttack

Needs the repository and what `make test` installs. --data names a data set of 32x32 images, such as cifar10;
without it images are made (class patterns and noise), which the published network that is attacked
(pyautoattack's ResNet-18 for CIFAR-10) does not recognise: then times have a meaning, accuracies have none.
Sizes are smaller than the goals' so that all of it fits in minutes: figures are scaled, or goals are ratios.

One JSON line a figure: `ours` and `reference` in seconds or minutes (or images or copies a second), `floor`:
what the multiply-adds alone allow at the card's measured matrix rate, `times`: how many times as fast as the
reference, `goal` where there is one (for an H200), `memory_gib`: the most that torch held while our own code
ran, where that was in this process, `check` and `good`. References are torchattacks, pyautoattack and plain
float32 loops, without TF32, run on fewer batches and scaled. Ends with status 1 where a check fails.
bench/gpu_table.py makes a table of the lines.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import published_resnet18
from gpu_plain import plain_loss

PARTS = (
    "floor",
    "verdicts",
    "resume",
    "train",
    "robust",
    "attack",
    "aa",
    "pr",
    "networks",
    "profile",
    "passes",
)
ROBUST_SECONDS = 300.0  # for a network right on half of the images under AutoAttack
# A step of 512 images takes 27 ms on an H200; one of 128, as in the paper's code, took 30 in an earlier form.
QUICK = {"epochs": 63, "batch_size": 512, "lr": 0.3, "schedule": "onecycle", "ema": 0.995}
# Seconds an epoch that an H200 should need (50,000 images, ResNet-18).
GOALS = {"pgd": 6.0, "trades": 6.0, "cvar": 12.0, "at-pr": 40.0}
NETWORK_MINUTES = 50 * 2.5 / 60  # 50 epochs of PGD-7, of one network of NAS-Bench-201 when eight run at once
NETWORKS = 8


class Sizes(NamedTuple):
    """How much of everything is measured."""

    train: int = 12_800  # made images; an epoch is scaled to 50,000
    test: int = 2048
    batch: int = 128
    epochs: int = 2  # the first one warms up
    arch: str = "resnet18"
    reference_batches: int = 6
    attacked: int = 1000
    aa: int = 2000
    aa_reference: int = 250  # of these, by the reference
    pr: int = 2000
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
    aa_reference=6,
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
        self.methods = tuple(GOALS)
        self.checkpoint: str | None = None
        self.arch_of_checkpoint: str | None = None
        self.profiles = ""  # words of the names of those that are made
        self.epochs: int | None = None  # of the part robust; by default those of the recipe
        self.robust: nn.Module | None = None  # what that part trained, for the parts after it
        self.rate = 0.0  # multiply-adds a second
        self._memory: float | None = None  # GiB, for the next line

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

    def floor(self, passes: float, images: float, macs: float) -> float | None:
        """Seconds for so many passes of images, if nothing but their multiply-adds took time."""
        return passes * images * macs / self.rate if self.rate else None

    def network(self) -> nn.Module:
        """The network that is attacked, frozen, in eval mode on the device."""
        if self.robust is not None:
            return self.robust
        if not self.small:
            return published_resnet18(str(self.device))
        from rbtools import models

        torch.manual_seed(0)
        made = models.build(self.record()["arch"], classes=10, shape=(3, 32, 32))
        return made.to(self.device).eval().requires_grad_(False)


def record_of(name: str, **more: Any) -> dict[str, Any]:
    """A record of an architecture of the zoo or of NAS-Bench-201."""
    from rbtools.inputs.named_networks import named_arch

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

    for method in bench.methods:
        goal = GOALS[method]
        options = options_of(method, bench.sizes)
        how = {"epochs": bench.sizes.epochs, "batch_size": bench.sizes.batch, "normalize": "none", "val": 0.0}
        with bench.memory():
            done = rbtools.train(bench.record(), method, **bench.options(**how, **options))
        history, macs = done["train"]["history"], done["arch"].get("macs")
        scale = 50_000 / len(tensors(bench, "train")[1])
        ours, passes = scale * history["seconds"][-1], done["train"]["passes"]
        # A backward pass to the images costs one forward, one to the weights as well.
        work = passes["forward"] + passes["backward"]
        images = len(tensors(bench, "train")[1])
        told = {
            "unit": "s",
            "reference": scale * plain_epoch(bench, method, bench.record(), bench.sizes),
            "goal": goal,
        }
        if macs:
            told["floor"] = bench.floor(work, scale * images, macs)
        fine = all(np.isfinite(history["loss"]))
        bench.say(f"{method}, an epoch", ours, **told, check="finite loss", good=fine)


def verdicts(bench: Bench) -> None:
    """What GPU and CPU say of the same images in float32, clean and attacked; and of the network of
    --checkpoint, a small one, whether the same attack on both leaves the same images."""
    from rbtools.attacks.pgd import PGD

    images, labels = tensors(bench, "test", bench.sizes.attacked)
    on_cpu = (images.cpu(), labels.cpu())
    places = (bench.device, torch.device("cpu"))
    for name, network in (("the attacked network", bench.network()), ("--checkpoint", small_network(bench))):
        found, clean, apart = {}, {}, {}
        for place in places if name == "--checkpoint" else places[:1]:
            how = {"device": str(place), "precision": "fp32", "keep_images": True}
            found[place.type] = rb().evaluate(network.to(place), on_cpu, PGD(eps=8 / 255, steps=20), **how)
        for place in places:
            clean[place.type] = rb().evaluate(network.to(place), on_cpu, "acc", device=str(place))
        points = found[bench.device.type].images
        with torch.no_grad():
            here = torch.cat([network(x) for x in points.split(250)])
            network.to(bench.device)
            there = torch.cat([network(x.to(bench.device)).cpu() for x in points.split(250)])
        same = int((here.argmax(1) == there.argmax(1)).sum())
        apart["logits"] = float((here - there).abs().max() / here.abs().max())
        apart["clean"] = int((clean["cpu"].correct != clean[bench.device.type].correct).sum())
        if len(found) == 2:
            apart["attacks"] = int((found["cpu"].correct != found[bench.device.type].correct).sum())
        bench.say(
            f"verdicts of GPU and CPU, {name}", same, unit="images", of=len(labels), apart=apart,
            clean=clean["cpu"].value, robust=[one.value for one in found.values()],
            check="the same verdict on every image", good=same == len(labels) and not apart["clean"],
        )  # fmt: skip


def small_network(bench: Bench) -> nn.Module:
    """The network of --checkpoint, or a new one of NAS-Bench-201 with the weights that it starts with."""
    from rbtools import models
    from rbtools.execution.run import Run
    from rbtools.inputs import checkpoints, data, resolve
    from rbtools.store import Store

    torch.manual_seed(0)
    if bench.checkpoint is None:
        arch = record_of("nb201-13714", cells=1, channels=16)["arch"]
        network = models.build(arch, classes=10, shape=(3, 32, 32))
    else:
        run = Run.of(tool="bench", store=Store(None), dataset=bench.dataset, device="cpu")
        record = checkpoints.record_of(
            bench.checkpoint, checkpoints.CheckpointHints(bench.arch_of_checkpoint, None), run
        )
        record = checkpoints.prepared(record, run)
        network = resolve.load_model(record, data.data_of(record, run), run, torch.device("cpu"))
    return network.eval().requires_grad_(False).to(bench.device)


def resume(bench: Bench) -> None:
    """A training that is interrupted after its first epoch and goes on on the other device."""
    for first, second in (("cpu", bench.device.type), (bench.device.type, "cpu")):
        store, log = bench.folder / f"from-{first}", bench.folder / f"from-{first}.log"
        record = json.dumps(record_of("nb201-11472", cells=1, channels=4))
        how = "--epochs 6 --attack-steps 1" if bench.small else "--epochs 40 --attack-steps 10"
        options = f"--method pgd --precision fp32 --dataset digits {how} --store {store} --log {log}"
        command = [sys.executable, "-m", "rbtools.commands.train", *options.split()]
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "text": True}
        started = subprocess.Popen([*command, "--device", first], stdin=subprocess.PIPE, **quiet)
        assert started.stdin is not None
        started.stdin.write(record)
        started.stdin.close()
        while started.poll() is None and not (log.exists() and '"epoch"' in log.read_text()):
            time.sleep(0.05)
        started.send_signal(signal.SIGINT)
        started.wait()
        rest: Any = {"input": record, "capture_output": True, "text": True}
        done = subprocess.run([*command, "--device", second], **rest)
        trained = json.loads(done.stdout)["train"] if done.returncode == 0 else {"history": {"loss": []}}
        places = trained.get("trained_on", [])
        bench.say(
            f"resumed from {first} on {second}", len(trained["history"]["loss"]), unit="epochs",
            interrupted=started.returncode, places=places, last_loss=trained["history"]["loss"][-1:],
            check="trained on both", good=len(places) == 2 * (first != second),
        )  # fmt: skip


def rb() -> Any:
    """The package, imported when a part needs it."""
    import rbtools

    return rbtools


def attack(bench: Bench) -> None:
    """PGD-20 beside torchattacks: images a second, and the same robust accuracy."""
    import torchattacks

    from rbtools.attacks.pgd import PGD

    network = bench.network()
    images, labels = tensors(bench, "test", bench.sizes.attacked)
    count, step = len(labels), 2.5 * 8 / 255 / 20

    def theirs() -> float:
        peer = torchattacks.PGD(network, eps=8 / 255, alpha=step, steps=20, random_start=True)
        right = 0
        for x, y in zip(images.split(250), labels.split(250), strict=True):
            with torch.no_grad():
                clean = network(x).argmax(1) == y
            perturbed = peer(x, y)
            with torch.no_grad():
                right += int((clean & (network(perturbed).argmax(1) == y)).sum())
        return right / count

    plain = theirs()
    reference = seconds(theirs, bench.device)
    for words, iterate in (("the last iterate", "last"), ("any iterate", "any")):
        task = PGD(eps=8 / 255, steps=20, iterate=iterate)
        done, entry = ours(bench, network, (images, labels), task)
        points = round(100 * (entry["value"] - plain), 3)
        good = abs(points) <= 1 if iterate == "last" else points <= 1
        told = {"unit": "images/s", "reference": count / reference, "goal": 5 * count / reference}
        told |= {"points": points, "robust": entry["value"]}
        told["seconds"] = [done, entry["seconds"]]
        check = f"robust accuracy within a point of {plain:.4f}, that of torchattacks"
        bench.say(f"PGD-20, {words}", count / done, **told, check=check, good=good)


def ours(bench: Bench, network: nn.Module, data: Any, task: Any) -> tuple[float, Any]:
    """The seconds of an evaluation of a network in memory, the best of two after one, and its entry."""
    found = rb().evaluate(network, data, task)
    took = []
    with bench.memory():
        for _ in range(2):
            _wait(bench.device)
            start = time.perf_counter()
            found = rb().evaluate(network, data, task)
            _wait(bench.device)
            took.append(time.perf_counter() - start)
    return min(took), found.entry


class Stages:
    """Takes lines of progress: the seconds at which each stage of an attack begins."""

    def __init__(self) -> None:
        self.start, self.begun = time.perf_counter(), dict[str, float]()

    def clock(self) -> float:
        return time.perf_counter() - self.start

    def __call__(self, words: str) -> None:
        for part in words.split(" · "):
            if " of " in part and part[0].isalpha():
                self.begun.setdefault(part, round(self.clock(), 1))


def aa(bench: Bench) -> None:
    """AutoAttack, standard: all images, and some of them beside its authors' code (pyautoattack), with the
    images of which the two codes say different things."""
    from pyautoattack import AutoAttack as Theirs

    from rbtools.attacks import ATTACKS

    short = ["apgd-ce"] if bench.small else None
    network = bench.network()
    task = ATTACKS.build("aa", eps=8 / 255, **({"attacks": "apgd-ce"} if short else {}))
    for count in (bench.sizes.aa_reference, bench.sizes.aa):
        images, labels = tensors(bench, "test", count)
        rb().evaluate(network, (images[:64], labels[:64]), task)  # both codes find cuDNN and its plans loaded
        stages = Stages()
        with bench.memory():
            done = rb().evaluate(network, (images, labels), task, progress=stages)
        _wait(bench.device)
        took, told = stages.clock(), {}
        if count == bench.sizes.aa_reference:
            peer = Theirs(
                network, norm="Linf", eps=8 / 255, version="standard", seed=0, device=str(bench.device)
            )
            peer.verbose, peer.attacks_to_run = False, short or peer.attacks_to_run
            perturbed: list[Tensor] = []

            def theirs() -> None:
                perturbed.append(peer.run_standard_evaluation(images, labels, batch_size=count)[0])  # noqa: B023

            reference = seconds(theirs, bench.device)
            with torch.no_grad():
                right = network(perturbed[0]).argmax(1) == labels
            ours_right = torch.zeros_like(right)
            ours_right[done.ids.to(right.device)] = torch.as_tensor(done.correct, device=right.device).bool()
            told = {
                "reference": reference, "goal": reference / 8,
                "robust_of_reference": float(right.float().mean()),
                "only_ours_broke": (right & ~ours_right).nonzero()[:, 0].tolist(),
                "only_theirs_broke": (ours_right & ~right).nonzero()[:, 0].tolist(),
                "check": "at most one image in a hundred differs",
                "good": int((ours_right != right).sum()) <= max(1, count / 100),
            }  # fmt: skip
        bench.say(
            f"AutoAttack, {count} images", took, unit="s", **told, robust=done.value,
            ci95=done.entry.get("ci95"), stages=stages.begun,
        )  # fmt: skip


def pr(bench: Bench) -> None:
    """Probabilistic robustness: noisy copies a second at one radius, beside a plain loop."""
    from rbtools.evaluation.probabilistic import noisy
    from rbtools.probabilistic import NOISES
    from rbtools.probabilistic.estimate import Estimator

    sizes, network = bench.sizes, bench.network()
    images, labels = tensors(bench, "test", sizes.pr)
    task = noisy(NOISES.build("uniform"), (0.1,), Estimator(rho=()), samples=sizes.samples)
    took, entry = ours(bench, network, (images, labels), task)
    share = plain_pr(network, images, labels, sizes.samples)
    reference = seconds(lambda: plain_pr(network, images, labels, sizes.samples), bench.device)
    copies, value = len(labels) * sizes.samples, entry["value"]
    apart = None if value is None or share is None else round(100 * (value - share), 3)
    half = 100 * (entry["ci95"][1] - entry["ci95"][0]) / 2 if value is not None else 0.0
    bench.say(
        "PR, 100 copies" if sizes.samples == 100 else f"PR, {sizes.samples} copies", copies / took,
        unit="copies/s", reference=copies / reference, goal=8 * copies / reference,
        points=apart, confirmed=entry.get("confirmed"),
        check="within the interval of it", good=apart is None or abs(apart) <= max(half, 0.3),
    )  # fmt: skip


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


def profile(bench: Bench) -> None:
    """Where the time goes: kernels, launches, waits, of attacks, PR and training steps."""
    from rbtools.attacks import ATTACKS
    from rbtools.evaluation.probabilistic import noisy
    from rbtools.probabilistic import NOISES
    from rbtools.probabilistic.estimate import Estimator

    network = bench.network()
    data = tensors(bench, "test", bench.sizes.attacked)
    noise = noisy(NOISES.build("uniform"), (0.1,), Estimator(rho=()), samples=bench.sizes.samples)
    tasks = {"PGD-20": ATTACKS.build("pgd", eps=8 / 255), "PR": noise}
    for name, own in (
        ("apgd-ce", {}),
        ("apgd-t", {"targets": 1}),
        ("fab-t", {"targets": 1}),
        ("square", {"queries": 300}),
    ):
        tasks[name] = ATTACKS.build(name, eps=8 / 255, **own)
    for name, task in tasks.items():
        if bench.profiles not in name:
            continue
        rb().evaluate(network, data, task)
        profiled(bench, name, lambda: rb().evaluate(network, data, task))  # noqa: B023
    rows = tensors(bench, "train", 20 * bench.sizes.batch)
    small = small_network(bench).train().requires_grad_(True)
    large = rb_model(bench)
    most = min(256, len(rows[1]) // 2)
    for words, model, steps, batch in (
        ("PGD-7, a cell network", small, 7, most),
        ("PGD-10, ResNet-18", large, 10, bench.sizes.batch),
    ):
        how = {"attack_steps": steps, "batch_size": batch, "val": 0.0, "augment": "none"}
        run = lambda: rb().fit(model, rows, "pgd", epochs=1, **how)  # noqa: B023, E731
        if bench.profiles in f"training, {words}":
            run()
            profiled(bench, f"training, {words}", run)


def passes(bench: Bench) -> None:
    """Passes of the fast copy, forward and with the gradient of the images: with convolutions that take ReLU,
    beside single layers."""
    from rbtools.evaluation.fast_model import make_fast_model

    network, images = bench.network(), tensors(bench, "test", bench.sizes.aa)[0]
    fused = make_fast_model(network, "bf16", images.shape[1:]).model
    with mock.patch("rbtools.models.fused.fuse", lambda network, inputs: None):
        single = make_fast_model(network, "bf16", images.shape[1:]).model
    inputs = images.clone().requires_grad_(True)
    works: dict[str, Callable[[nn.Module], Any]] = {
        "a forward pass": lambda model: model(images),
        "a pass with gradient": lambda model: torch.autograd.grad(model(inputs).sum(), inputs),
    }
    for words, work in works.items():
        best = [min(seconds(lambda: work(one), bench.device) for _ in range(4)) for one in (fused, single)]  # noqa: B023
        bench.say(f"{words}, {len(images)} images", best[0], unit="s", reference=best[1])


def rb_model(bench: Bench) -> nn.Module:
    """The architecture that is trained, new."""
    from rbtools import models

    built: nn.Module = models.build(bench.record()["arch"], classes=10, shape=(3, 32, 32)).to(bench.device)
    return built


def profiled(bench: Bench, name: str, work: Callable[[], Any]) -> None:
    """One line: the share of the time in kernels, launches, waits, and the longest kernels and calls."""
    plain = seconds(work, bench.device)
    with torch.profiler.profile() as recorded:
        work()
        _wait(bench.device)
    kernels: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for event in recorded.profiler.kineto_results.events():  # type: ignore[union-attr]
        took = event.duration_ns() / 1e9
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            kernels[event.name()[:90]] += took
            kinds[kind_of(event.name())] += took
        elif event.name().startswith(("cuda", "cu")):
            calls[event.name()] += 1
            spent[event.name()] += took
    busy = sum(kernels.values())
    counts = {
        key: count
        for key, count in calls.items()
        if "Launch" in key or "Synchronize" in key or "Memcpy" in key
    }
    bench.say(
        f"profile of {name}", plain, unit="s", kernels=busy, share=busy / plain, calls=counts,
        in_calls={key: round(took, 4) for key, took in spent.most_common(4)},
        kinds={key: round(took, 4) for key, took in kinds.most_common()},
        longest={key: round(took, 4) for key, took in kernels.most_common(6)},
    )  # fmt: skip


def kind_of(kernel: str) -> str:
    """The kind of work of a kernel, by its name."""
    words = {
        "products": ("cudnn", "xmma", "cutlass", "gemm", "conv", "wgrad", "dgrad", "sm80", "sm90", "nvjet"),
        "copies": ("Memcpy", "Memset", "copy"),
        "elementwise": ("elementwise",),
        "sums": ("reduce", "softmax", "batch_norm", "bn_"),
    }
    return next((kind for kind, parts in words.items() if any(part in kernel for part in parts)), "others")


def robust(bench: Bench) -> None:
    """Training by FGSM-PGI in large batches, to which --data cifar10 gives a meaning; the parts attack, aa
    and pr are then of this network."""
    recipe = dict(QUICK) | ({"epochs": 2, "batch_size": 32} if bench.small else {})
    if bench.epochs is not None:
        recipe["epochs"] = bench.epochs
    start = time.perf_counter()
    with bench.memory():
        done = rb().train(bench.record(), "fgsm-pgi", preset="fgsm-pgi", **bench.options(**recipe))
    took = time.perf_counter() - start  # with what the store gets between epochs
    history, passes = done["train"]["history"], done["train"]["passes"]
    images = len(tensors(bench, "train")[1])
    bench.say(
        f"fgsm-pgi, {recipe['epochs']} epochs", took, steps=sum(history["seconds"]), unit="s",
        goal=ROBUST_SECONDS, recipe=recipe, prepared=done["train"].get("prepared"),
        floor=len(history["loss"]) * (bench.floor(sum(passes.values()), images, done["arch"]["macs"]) or 0),
        check="finite loss", good=bool(np.isfinite(history["loss"]).all()),
    )  # fmt: skip
    loaded: nn.Module = rb().load(done, **bench.options()).to(bench.device)
    bench.robust = loaded.eval().requires_grad_(False)


def parts(text: str) -> Iterator[Callable[[Bench], None]]:
    """The functions of these names, in the order given; most need the matrix rate (floor) before them."""
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in PARTS]
    if unknown:
        raise SystemExit(f"--parts has {unknown[0]}. Known parts: {', '.join(PARTS)}.")
    for name in chosen:
        yield globals()[name]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu [cuda]")
    parser.add_argument("--small", action="store_true", help="small numbers, to see that it runs")
    parser.add_argument(
        "--parts",
        default=",".join(part for part in PARTS if part != "robust"),
        help="some of: " + ", ".join(PARTS),
    )
    parser.add_argument("--methods", default=",".join(GOALS), help="trainings of the part train")
    parser.add_argument("--checkpoint", help="a small network, for the parts verdicts and profile")
    parser.add_argument("--arch", help="that network, where its file fits several: nb201-13714")
    parser.add_argument("--epochs", type=int, help="epochs of the part robust [those of its recipe]")
    parser.add_argument("--of", help="some profiles of the part profile, by words of their names")
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
        bench.methods, bench.epochs = tuple(chosen.methods.split(",")), chosen.epochs
        bench.profiles, bench.checkpoint = chosen.of or "", chosen.checkpoint
        bench.arch_of_checkpoint = chosen.arch
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        print(json.dumps({"machine": name, "torch": torch.__version__, "small": chosen.small}), flush=True)
        for part in parts(chosen.parts):
            try:
                part(bench)
            except Exception:  # the other parts are measured all the same
                traceback.print_exc()
                bench.failed.append(part.__name__)
    if bench.failed:
        raise SystemExit(f"checks failed: {', '.join(bench.failed)}")


if __name__ == "__main__":
    main()
