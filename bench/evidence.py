"""Sizes of FILE.adv: 10,000 images of 3x32x32 pixels at 8/255, with random differences in three forms.

    python bench/evidence.py [--images 10000]
    python bench/evidence.py --verify [--images 1000]

One JSON line a form. With --verify: the seconds of rb-verify --adv, from start to end, on the files of two
claims, PGD's and AutoAttack's, about a ResNet-18 with random weights, on random images of 3x32x32 pixels;
each image is moved in both files, so that each has its pass. How many tampered claims are refused is a test:

    pytest tests/evaluation/test_evidence.py -k tampered_file
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rbtools.jobs import evidence

if TYPE_CHECKING:
    from torch import Tensor

EPS, PIXELS, BLOCK = 8, 3 * 32 * 32, 128


def megabytes(form: int, choices: list[int], count: int) -> float:
    """The size of `count` images whose pixels are moved by one of these numbers of levels each."""
    draws, size = np.random.default_rng(0), 0
    for start in range(0, count, BLOCK):
        ids = np.arange(start, min(start + BLOCK, count))
        levels = draws.choice(np.array(choices, np.int8), (len(ids), PIXELS))
        exact = np.zeros(levels.shape, np.float32)
        size += len(evidence.packed(ids, np.full(len(ids), form, np.uint8), levels, exact, EPS))
    return size / 1e6


def tool(arguments: list[str], folder: Path, text: bytes = b"") -> bytes:
    """What a tool writes to standard output."""
    command = [sys.executable, "-m", f"rbtools.commands.{arguments[0]}", *arguments[1:]]
    done = subprocess.run(command, cwd=folder, input=text, stdout=subprocess.PIPE, check=False)
    if not done.stdout:
        sys.exit(f"{arguments[0]} ended with status {done.returncode}.")
    return done.stdout


def claims(folder: Path, count: int) -> list[tuple[str, bytes]]:
    """Two claims, each a file and the record that makes it, about a network with random weights.

    The labels are classes that it takes no moved image for, so that each image passes the judgement.
    """
    import torch

    from rbtools import models
    from rbtools.execution.run import Run
    from rbtools.inputs.checkpoints import resolve_inputs
    from rbtools.spaces import describe
    from rbtools.store import Store

    images = np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), np.uint8)
    torch.manual_seed(0)
    arch = describe({"space": "zoo", "name": "resnet18"}, 10, (3, 32, 32))
    network = models.build(arch, classes=10, shape=(3, 32, 32)).eval()
    torch.save(network.state_dict(), folder / "net.pt")
    labels = np.arange(count) % 10
    for seed in (0, 1, 0):
        labels = (labels + (labels == predictions(network, images, seed))) % 10
    pixels = images.transpose(0, 2, 3, 1)
    test = {"test_images": pixels, "test_labels": labels}
    np.savez(folder / "some.npz", **test, train_images=pixels[:20], train_labels=np.arange(20) % 10)
    given = ["--checkpoint", "net.pt", "--arch", "resnet18", "--normalize", "none", "--dataset"]
    record = json.loads(tool(["attack", "none", *given, "npz:some.npz", "--n", "20", "-q"], folder))
    os.chdir(folder)
    inputs = resolve_inputs(record, Run.of("rb-verify", store=Store("rb-store")), "test")
    about = {"checkpoint": inputs.checkpoint, "data": inputs.data.fingerprint, "split": "test"}
    made = []
    for seed, metric in enumerate(("pgd20.8", "aa.8")):
        claim = {"metric": metric, "eps": EPS / 255, "norm": "linf", "n": count, "value": 0.0}
        header = {**about, **claim, "step": 1 / 255, "coarse": EPS, "exact": 0}
        ids = inputs.data.order(inputs.data.load().labels).numpy()
        write(folder / f"{metric}.adv", header, ids, seed)
        text = json.dumps({**record, "evals": [claim], "metrics": {metric: 0.0}})
        made.append((f"{metric}.adv", text.encode()))
    return made


def moves(ids: np.ndarray, seed: int) -> np.ndarray:
    """Levels int8 (n, P) of these images: each pixel by 8 up or down."""
    rows = [np.random.default_rng([seed, number]).choice([-EPS, EPS], PIXELS) for number in ids.tolist()]
    return np.array(rows, np.int8)


def predictions(network: Callable[[Tensor], Tensor], images: np.ndarray, seed: int) -> np.ndarray:
    """The class that the network takes each moved image for."""
    import torch

    parts = []
    for start in range(0, len(images), BLOCK):
        ids = np.arange(start, min(start + BLOCK, len(images)))
        moved = images[ids] + moves(ids, seed).reshape(-1, 3, 32, 32).astype(np.float32)
        with torch.no_grad():
            parts.append(network(torch.from_numpy(moved.clip(0, 255) / 255).float()).argmax(1).numpy())
    return np.concatenate(parts)


def write(file: Path, header: dict[str, object], ids: np.ndarray, seed: int) -> None:
    """A file of moved images."""
    with tempfile.TemporaryFile() as blocks:
        for start in range(0, len(ids), BLOCK):
            part = ids[start : start + BLOCK]
            forms = np.full(len(part), evidence.COARSE, np.uint8)
            exact = np.zeros((len(part), PIXELS), np.float32)
            blocks.write(evidence.packed(part, forms, moves(part, seed), exact, EPS))
        blocks.seek(0)
        evidence.write(file, header, blocks)


def verify(count: int) -> None:
    """The seconds of rb-verify --adv on both claims."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, record in claims(folder, count):
            before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            text = tool(["verify", "--adv", file, "-q"], folder, record + b"\n")
            seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
            processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            verdict = next(iter(json.loads(text)["verify"]["entries"].values()))
            line = {"figure": f"rb-verify --adv {file}", "images": count, "seconds": round(seconds, 1)}
            print(json.dumps({**line, "processor": round(processor, 1), **verdict}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=None)
    parser.add_argument("--verify", action="store_true")
    options = parser.parse_args()
    if options.verify:
        return verify(options.images or 1000)
    count = options.images or 10_000
    for figure, form, choices in (
        ("every pixel by 8 levels, up or down", evidence.COARSE, [-EPS, EPS]),
        ("by 8 levels up, none, or 8 down", evidence.COARSE, [-EPS, 0, EPS]),
        ("any of 17 levels", evidence.LEVELS, list(range(-EPS, EPS + 1))),
    ):
        line = {"figure": figure, "images": count, "MB": round(megabytes(form, choices, count), 2), "goal": 8}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
