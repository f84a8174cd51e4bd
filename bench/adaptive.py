"""Attacks on randomised models against the truth and against others' code; a JSON line for each figure.

    python bench/adaptive.py [truth|digits|peers|cost] ... [--checkpoint FILE --data FOLDER]

truth: Gaussian noise before a linear network, where every probability is known: coverage of the intervals of
the three verdicts, and how much of the best attack's margin is left. digits: `aa` beside single attacks on
three kinds of randomness, 256 images. peers: pyautoattack's `rand`, and expectation over transformation by a
plain loop of PGD, with as many passes. cost: PGD-20 with 20 draws beside one draw, on the robust CIFAR-10
network (--checkpoint FILE --data FOLDER, as for bench/attacks.py), 32 images.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import show
from torch import Tensor, nn
from torch.nn import functional

import rbtools
from rbtools.attacks import ATTACKS, lattice
from rbtools.datasets import load
from rbtools.evaluation.by_draws import OutputByDraws
from rbtools.evaluation.fast_model import CountingModel
from rbtools.evaluation.randomised import RandomisedModel
from rbtools.evaluation.tasks import CleanOutput
from rbtools.execution.run import Run
from rbtools.inputs import checkpoints, resolve
from rbtools.inputs.data import data_of
from rbtools.probabilistic import sequential
from rbtools.rng.draws import Draws
from rbtools.store import Store

SIGMA, EPS = 0.3, 0.02


class NoisyLinear(nn.Module):
    """Gaussian noise, then two logits that are linear in the image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(192, 2)
        self.linear.weight.data.mul_(3)
        self.eval().requires_grad_(False)
        self.direction = self.linear.weight[0] - self.linear.weight[1]

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear((images + SIGMA * torch.randn_like(images)).flatten(1))
        return logits

    def margin(self, images: Tensor, labels: Tensor) -> Tensor:
        bias = self.linear.bias[0] - self.linear.bias[1]
        return (images.flatten(1) @ self.direction + bias) * torch.where(labels == 0, 1.0, -1.0)

    def rate(self, images: Tensor, labels: Tensor) -> Tensor:
        return torch.special.ndtr(self.margin(images, labels) / (SIGMA * self.direction.norm()))


def truth() -> None:
    """Coverage of the three intervals by simulated draws, then the margins of attacks."""
    generator = np.random.default_rng(0)
    draws, runs = 20, 1000
    output = OutputByDraws(CleanOutput(), draws)
    rule = output.rule
    for n in (100, 1000):
        held = np.zeros(3)
        times = runs if n == 100 else runs // 4
        for _ in range(times):
            rates = generator.beta(
                2, 0.8, n
            )  # images of many rates, drawn anew: the interval is of their source
            outcomes = np.array([_row(generator, rate, draws, rule) for rate in rates])
            entries = output.entries(outcomes, {})
            wanted = (2 / 2.8, float(_beta_above_half()), float(_beta_power(draws)))
            ends = [entry["ci95"] for entry in entries]
            held += [low <= value <= high for value, (low, high) in zip(wanted, ends, strict=True)]
        names = ("mean over draws", "majority", "every draw")
        for name, count in zip(names, held, strict=True):
            show(
                f"coverage, {name}, {n} images",
                value=round(count / (runs if n == 100 else runs // 4), 3),
                goal=0.95,
            )
    model = NoisyLinear()
    images = torch.rand(256, 3, 8, 8, generator=torch.Generator().manual_seed(1)) * 0.5 + 0.25
    labels = (model.margin(images, torch.zeros(256, dtype=torch.int64)) < 0).long()
    best, reach = model.margin(images, labels), EPS * float(model.direction.abs().sum())
    least = float(torch.special.ndtr((best - reach) / (SIGMA * model.direction.norm())).mean())
    ways: list[tuple[str, dict[str, Any]]] = [
        ("fgsm", {}),
        ("pgd", {"steps": 20}),
        ("cw", {"steps": 20}),
        ("apgd-ce", {"steps": 50}),
        ("apgd-dlr", {"steps": 50}),
        ("aa", {"variant": "rand"}),
        ("square", {"queries": 500}),
    ]
    for name, options in ways:
        for eot in (1, 20):
            points = ATTACKS.build(name, eps=EPS, eot=eot, **options)(model, images, labels)
            left = float(((model.margin(points, labels) - best + reach) / reach).mean())
            note = f"mean rate {float(model.rate(points, labels).mean()):.4f}, best possible {least:.4f}"
            show(f"margin left by {name}, {eot} draws", value=round(left, 4), goal=0.01, note=note)


def _row(generator: np.random.Generator, rate: float, draws: int, rule: sequential.Rule) -> list[int]:
    """The outcome of an image whose draws are right with this probability."""
    right = generator.random(500) < rate
    failures = np.cumsum(~right)
    first, drawn, decision = int(right[:draws].sum()), draws, -1
    for drawn in range(draws, 501):
        failed = int(failures[drawn - 1])
        if drawn >= rule.passes[min(failed, len(rule.passes) - 1)]:
            decision = 1
        elif drawn <= rule.fails[min(failed, len(rule.fails) - 1)]:
            decision = 0
        if decision >= 0:
            break
    return [first, int(right[:drawn].sum()), drawn, decision]


def _beta_above_half() -> float:
    from scipy.special import betainc

    return 1 - betainc(2, 0.8, 0.5)


def _beta_power(draws: int) -> float:
    """The mean of rate^draws."""
    return math.exp(math.lgamma(2 + draws) + math.lgamma(2.8) - math.lgamma(2) - math.lgamma(2.8 + draws))


def _noise(images: Tensor) -> Tensor:
    return images + 0.25 * torch.randn_like(images)


def _shift(images: Tensor) -> Tensor:
    """A shift of each image, by up to a pixel in both directions."""
    moved = [torch.roll(images, (i, j), (2, 3)) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    choice = torch.randint(0, 9, (len(images),))
    return torch.stack(moved)[choice, torch.arange(len(images))]


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "Gaussian noise .25": _noise,
    "dropout .3 of pixels": lambda images: functional.dropout(images, 0.3, True),
    "shift by a pixel": _shift,
}


class Randomised(nn.Module):
    """A random change of the image, then a network of two layers on digits."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.change = change
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        digits = load("digits", "train")
        images, labels = digits.images[:].float() / 255, digits.labels
        optimizer = torch.optim.Adam(self.parameters(), 1e-2)
        for _ in range(300):
            loss = functional.cross_entropy(self(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(self.change(images))
        return logits


def digits() -> None:
    """`aa` beside every single attack on three kinds of randomness."""
    data = load("digits", "test")
    given = (data.images[:256], data.labels[:256])
    singles: list[tuple[str, dict[str, Any]]] = [
        ("fgsm", {}),
        ("pgd", {"steps": 10}),
        ("pgd", {}),
        ("cw", {}),
        ("apgd-t", {"steps": 30, "targets": 3}),
        ("fab-t", {"steps": 20, "targets": 3}),
        ("square", {"queries": 500}),
    ]
    for kind, change in KINDS.items():
        model = Randomised(change)
        found = {}
        for name, options in [("aa", {}), *singles]:
            attack = ATTACKS.build(name, eps=48 / 255, **options)
            result = rbtools.evaluate(model, given, attack)
            found[result.metric] = result.value
            majority, every = (other["value"] for other in result.others)
            passes = f"{result.entry['eot']} draws" + (", rand" if name == "aa" else "")
            note = f"majority {majority:.3f}, every draw {every:.3f}; {passes}; {result.seconds:.0f} s"
            show(f"{kind}: {result.metric}", value=round(result.value, 4), note=note)
        single = min((value, name) for name, value in found.items() if not name.startswith("aa"))
        show(
            f"{kind}: aa minus the strongest single attack ({single[1]})",
            value=round(found["aa.48"] - single[0], 4),
            goal=0,
        )


def peers() -> None:
    """pyautoattack's `rand` and a plain loop of PGD over means, judged by the same new draws."""
    from pyautoattack import AutoAttack

    data = load("digits", "test")
    images, labels, eps = data.images[:256].float() / 255, data.labels[:256], 48 / 255
    model = Randomised(_noise)

    def rate(points: Tensor) -> float:
        with torch.no_grad():
            torch.manual_seed(1)
            return float(sum(model(points).argmax(1).eq(labels).float().mean() for _ in range(400)) / 400)

    ours: dict[str, tuple[float, float, float]] = {}
    for name, options in (("aa", {"variant": "rand", "eot": 20}), ("pgd", {"steps": 20, "eot": 20})):
        counting = CountingModel(RandomisedModel(model), None)
        start = time.perf_counter()
        draws = Draws(0, "attack", torch.arange(len(images)))
        points, _ = lattice.run(ATTACKS.build(name, eps=eps, **options), counting, images, labels, draws)
        ours[name] = (
            rate(points),
            (counting.forwards + counting.backwards) / len(images),
            time.perf_counter() - start,
        )

    class Counted(nn.Module):
        passes = 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.passes += len(inputs) * (2 if inputs.requires_grad else 1)
            return model(inputs)

    counted = Counted()

    def theirs() -> Tensor:
        attack = AutoAttack(counted, norm="Linf", eps=eps, version="rand", device="cpu", seed=0)
        attack.verbose = False
        return attack.run_standard_evaluation(images, labels, batch_size=256)[0]

    def plain_loop() -> Tensor:
        torch.manual_seed(0)
        points, step = (images + eps * (2 * torch.rand_like(images) - 1)).clamp(0, 1), 2.5 * eps / 20
        for _ in range(20):
            inputs = points.clone().requires_grad_(True)
            loss = sum(functional.cross_entropy(counted(inputs), labels, reduction="sum") for _ in range(20))
            (gradient,) = torch.autograd.grad(loss, inputs)
            points = (points + step * gradient.sign()).clamp(images - eps, images + eps).clamp(0, 1)
        return points

    for figure, name, peer, run in (
        ("mean accuracy under rand", "aa", "pyautoattack", theirs),
        ("mean accuracy under PGD-20 with 20 draws", "pgd", "a plain loop", plain_loop),
    ):
        counted.passes, start = 0, time.perf_counter()
        points = run()
        seconds = time.perf_counter() - start
        value, passes, took = ours[name]
        others = counted.passes / len(images)
        note = f"{peer}; passes an image {passes:.0f} and {others:.0f}, {took:.0f} and {seconds:.0f} s"
        show(figure, value=round(value, 4), peer=round(rate(points), 4), note=note)


def cost(weights: str, folder: str) -> None:
    """Passes and seconds of PGD-20 with 20 draws beside one draw."""
    name = f"imagefolder:{folder}" if Path(folder).is_dir() else folder
    run = Run.of(tool="bench", store=Store(None), dataset=name, device="cpu")
    record = checkpoints.record_of(weights, checkpoints.CheckpointHints(None, None), run)
    record = checkpoints.prepared(record, run)
    data = data_of(record, run)
    network = resolve.load_model(record, data, run, torch.device("cpu"))
    ids = data.order(data.load().labels)[:32]
    images = data.load().images[ids].float() / 255
    network.requires_grad_(False)

    class Noisy(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return network(inputs + 0.02 * torch.randn_like(inputs))  # type: ignore[no-any-return]

    model = RandomisedModel(Noisy())
    labels = network(images).argmax(1)
    taken = {}
    for eot in (1, 20, 1, 20):
        counting = CountingModel(model, 64)
        start = time.perf_counter()
        draws = Draws(0, "attack", torch.arange(len(images)))
        # at the last iterate every image takes every step
        attack = ATTACKS.build("pgd", eps=8 / 255, steps=20, eot=eot, iterate="last")
        lattice.run(attack, counting, images, labels, draws)
        seconds = time.perf_counter() - start
        passes = (counting.forwards + counting.backwards) / len(images)
        taken[eot] = (passes, min(seconds, taken.get(eot, (0, math.inf))[1]))
    show(
        "PGD-20, 20 draws and one: passes of an image",
        value=round(taken[20][0] / taken[1][0], 2),
        goal=20,
        note=f"{taken[20][0]:.0f} and {taken[1][0]:.0f}",
    )
    show(
        "PGD-20, 20 draws and one: seconds",
        value=round(taken[20][1] / taken[1][1], 2),
        goal=12,
        note=f"{taken[20][1]:.1f} and {taken[1][1]:.1f} s, 32 images",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["truth", "digits", "peers"])
    parser.add_argument("--checkpoint")
    parser.add_argument("--data")
    given = parser.parse_args()
    for part in given.parts:
        if part == "cost":
            cost(given.checkpoint, given.data)
        else:
            {"truth": truth, "digits": digits, "peers": peers}[part]()


if __name__ == "__main__":
    main()
