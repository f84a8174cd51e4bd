"""Launches and waits of a step of attacks, of training and of sampling, counted on a pretend GPU.

    python bench/waits.py                one JSON line each
    python bench/waits.py pgd 'training by trades, 10 steps'     some of them

A wait is what makes the host wait for all work of a GPU: a value that is read, a mask as an index, a copy
from memory that is not pinned (tests/pretend_device.py). The network is a cell of NAS-Bench-201; launches
depend on its layers. Launches are those without CUDA graphs, which replay a pass by one, and in float32.

Of attacks no example is broken, so all steps are made; counts are what 8 steps more take. Of fgsm they are
of the whole attack. A training step is one of rb-train itself: upload, crop and flip, the copy of the network
for the inner attack, losses and totals, the optimiser; not the loss that is read every 32 steps, nor
validation.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from rbtools import models
from rbtools.attacks import ATTACKS, cw_l2
from rbtools.evaluation import noisy_copies
from rbtools.evaluation.base import Batch
from rbtools.probabilistic import NOISES
from rbtools.rng.draws import Draws
from rbtools.training import METHODS
from tests.pretend_device import PretendDevice
from tests.pretend_training import SMALL, counts_of_steps

CELL = "|nor_conv_3x3~0|+|none~0|none~1|+|skip_connect~0|nor_conv_1x1~1|none~2|"
ARCH = {"space": "nasbench201", "str": CELL, "channels": 4, "cells": 1}
IMAGES, STEPS = 4, 8
OPTIONS = {"square": "queries", "noise": "samples"}  # with the number of steps; of others it is `steps`
ONE_LOOP = {"apgd-t": {"targets": 1}, "fab-t": {"targets": 1}, "cw-l2": {"searches": 1}}
OWN: dict[str, dict[str, Any]] = {
    **SMALL,
}
OF_PARTS = ("aa",)  # its steps are those of the attacks that it runs, which have lines of their own


def network() -> nn.Module:
    torch.manual_seed(0)
    return models.build(ARCH, classes=10, shape=(3, 8, 8)).to("cuda")


def images() -> Tensor:
    return torch.rand(IMAGES, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to("cuda")


def draws() -> Draws:
    return Draws(0, "waits", torch.arange(IMAGES, device="cuda"), host=torch.arange(IMAGES))


def attack(name: str, count: int) -> None:
    """An attack of so many steps that breaks no image."""
    model, x = network().eval().requires_grad_(False), images()
    own = {OPTIONS.get(name, "steps"): count, **ONE_LOOP.get(name, {})}
    built = ATTACKS.build(name, eps=1e-6, **own)
    # cw-l2 would stop by itself where an example gains nothing.
    with mock.patch.object(cw_l2, "NO_BETTER", math.inf):
        built(model, x, model(x).argmax(1), draws())


def fgsm(count: int) -> None:
    """So many whole attacks, each of one step."""
    model, x = network().eval().requires_grad_(False), images()
    labels, built = model(x).argmax(1), ATTACKS.build("fgsm", eps=1e-6)
    for _ in range(count):
        built(model, x, labels, draws())


def trainings() -> Iterator[tuple[str, dict[str, Any]]]:
    """Methods and their options: all in their default form, or where it makes many passes in a small one."""
    for name in METHODS:
        steps = {"attack_steps": 10} if "attack_steps" in METHODS.load(name).__dataclass_fields__ else {}
        yield name, dict(OWN.get(name, steps))
    yield "pgd", {"attack_steps": 7}
    yield "at-pr", {"candidates": 5}  # its default


def in_words(name: str, options: dict[str, Any]) -> str:
    """The name of a training step."""
    words = [
        f"{value} steps" if key == "attack_steps" else f"{key} {value}" for key, value in options.items()
    ]
    return ", ".join((f"training by {name}", *words))


def training(name: str, options: dict[str, Any]) -> dict[str, float]:
    """Launches and waits of a step of rb-train."""
    counts = counts_of_steps(METHODS.build(name, **options), arch=ARCH, augment=("crop", "flip"))
    return {"launches": counts.launches, "waits": counts.waits_of_a_step}


def pr(count: int) -> None:
    """So many batches of noisy copies."""
    model, x = network().eval().requires_grad_(False), images()
    ids = torch.arange(IMAGES, device="cuda")
    batch = Batch(model, x, model(x).argmax(1), ids, seed=0, chunk_size=1024)
    block = noisy_copies.batch_size(ids.device, (3, 8, 8)) // IMAGES
    noisy_copies.batch_size = lambda device, shape: IMAGES  # a draw of each image is a batch
    try:
        noisy_copies.sample_copies(batch, NOISES.build("uniform"), (0.1,), min(count, block))
    finally:
        noisy_copies.batch_size = BATCH_SIZE


BATCH_SIZE = noisy_copies.batch_size


def works() -> Iterator[tuple[str, str, Callable[[], dict[str, float]]]]:
    """Name, kind, and what counts a step of it."""
    for name in ATTACKS:
        if name not in OF_PARTS:
            steps = fgsm if name == "fgsm" else partial(attack, name)
            yield name, "attack", partial(counted, steps)
    for name, options in trainings():
        yield in_words(name, options), "training", partial(training, name, options)
    yield "pr", "batch of copies", partial(counted, pr)


def counted(work: Callable[[int], None]) -> dict[str, float]:
    """Launches and waits of a step, of work that makes so many."""
    counts = []
    for count in (1, STEPS, 2 * STEPS):  # the first fills caches
        with PretendDevice() as device:
            work(count)
        counts.append((device.launches.total(), device.waits.total()))
    (_, (launches, waits), (more, longer)) = counts
    return {"launches": (more - launches) / STEPS, "waits": (longer - waits) / STEPS}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="some of them: pgd, apgd-ce, 'training by erm', pr ...")
    chosen = parser.parse_args().names
    known = {name: (kind, count) for name, kind, count in works()}
    for name in chosen:
        if name not in known:
            raise SystemExit(f"There is no step {name!r}. Known steps: {'; '.join(known)}.")
    for name in chosen or known:
        kind, count = known[name]
        print(json.dumps({"step of": name, "kind": kind, **count()}), flush=True)


if __name__ == "__main__":
    main()
