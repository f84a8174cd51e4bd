"""Launches and waits of a step of attacks, of training and of sampling, counted on a pretend GPU.

    python bench/waits.py                one JSON line each
    python bench/waits.py pgd 'training by trades'     some of them

A wait is what makes the host wait for all work of a GPU: a value that is read, a mask as an index, a copy
from memory that is not pinned (tests/pretend_device.py). The network is a cell of NAS-Bench-201; launches
depend on its layers. No example is broken, so all steps are made; counts are what 8 steps more take. Launches
are those without CUDA graphs, which replay a pass by one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rbtools import models
from rbtools.attacks import ATTACKS
from rbtools.evaluation import sampling
from rbtools.evaluation.base import Batch
from rbtools.probabilistic import NOISES
from rbtools.rng.draws import Draws
from rbtools.training import METHODS
from tests.pretend_device import PretendDevice

CELL = "|nor_conv_3x3~0|+|none~0|none~1|+|skip_connect~0|nor_conv_1x1~1|none~2|"
IMAGES, STEPS = 4, 8
OPTIONS = {"square": "queries", "noise": "samples"}  # with the number of steps; of others it is `steps`
ONE_LOOP = {"apgd-t": {"targets": 1}, "fab-t": {"targets": 1}}
WITHOUT_STEPS = ("fgsm", "aa", "cw-l2")  # cw-l2 ends by itself where it gains nothing


def network() -> nn.Module:
    torch.manual_seed(0)
    arch = {"space": "nasbench201", "str": CELL, "channels": 4, "cells": 1}
    return models.build(arch, classes=10, shape=(3, 8, 8)).to("cuda")


def images() -> Tensor:
    return torch.rand(IMAGES, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to("cuda")


def draws() -> Draws:
    return Draws(0, "waits", torch.arange(IMAGES, device="cuda"), host=torch.arange(IMAGES))


def attack(name: str, count: int) -> None:
    """An attack of so many steps that breaks no image."""
    model, x = network().eval().requires_grad_(False), images()
    own = {OPTIONS.get(name, "steps"): count, **ONE_LOOP.get(name, {})}
    ATTACKS.build(name, eps=1e-6, **own)(model, x, model(x).argmax(1), draws())


def training(name: str, count: int) -> None:
    """So many steps of training; its inner attack has its default number of steps."""
    model, x = network().train(), images()
    labels = torch.arange(IMAGES, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    for _ in range(count):
        optimizer.zero_grad(set_to_none=True)
        METHODS.build(name)(model, x, labels, draws()).value.backward()
        optimizer.step()


def pr(count: int) -> None:
    """So many batches of noisy copies."""
    model, x = network().eval().requires_grad_(False), images()
    ids = torch.arange(IMAGES, device="cuda")
    batch = Batch(model, x, model(x).argmax(1), ids, seed=0, chunk_size=512)
    block = sampling.batch_size(ids.device, (3, 8, 8)) // IMAGES
    sampling.batch_size = lambda device, shape: IMAGES  # a draw of each image is a batch
    try:
        sampling.copies(batch, NOISES.build("uniform"), (0.1,), min(count, block))
    finally:
        sampling.batch_size = BATCH_SIZE


BATCH_SIZE = sampling.batch_size


def works() -> Iterator[tuple[str, str, Callable[[int], None]]]:
    """Name, kind, and what makes so many steps."""
    for name in ATTACKS:
        if name not in WITHOUT_STEPS:
            yield name, "attack", lambda count, name=name: attack(name, count)
    for name in ("erm", "n-fgsm", "fgsm-pgi", "pgd", "trades", "at-pr"):
        yield f"training by {name}", "training", lambda count, name=name: training(name, count)
    yield "pr", "batch of copies", pr


def counted(work: Callable[[int], None]) -> dict[str, Any]:
    """Launches and waits of a step."""
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
    parser.add_argument("names", nargs="*", help="some of them: pgd, apgd-ce, 'training by pgd', pr ...")
    chosen = parser.parse_args().names
    for name, kind, work in works():
        if not chosen or name in chosen:
            print(json.dumps({"step of": name, "kind": kind, **counted(work)}), flush=True)


if __name__ == "__main__":
    main()
