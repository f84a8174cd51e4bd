"""What rb-certify's bounds are worth: beside auto_LiRPA's, against attacks, and in seconds.

    python bench/certify.py peer     # IBP, CROWN-IBP and CROWN of ten networks; needs auto_LiRPA
    python bench/certify.py drawn    # 100 networks of drawn shape: AutoAttack, PGD, 10,000 random points
    python bench/certify.py speed --eps 1 --images 355   # rb-certify crown in two processes
    python bench/certify.py gap      # crown-ibp training at 16/255: clean, attacked, certified

auto_LiRPA is on no package index in a version for today's torch: install it from its repository, without
its dependencies, in an environment of its own. In L2 it takes a normalisation as a part of the network that
does not scale the ball, so the networks of `peer` in L2 have none.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rbtools.attacks import ATTACKS
from rbtools.certification import CERTIFIERS
from rbtools.certification.linear_bounds import margin_rows
from rbtools.models.normalize import Normalized
from rbtools.models.resnet import ResNet
from rbtools.rng.draws import Draws
from tests.certification.networks import DrawnNetwork, drawn_images, points_in_ball

METHODS = {"IBP": ("ibp", {}), "CROWN-IBP": ("crown", {"intermediate": "ibp"}), "CROWN": ("crown", {})}
EPS = {"linf": 4 / 255, "l2": 0.2}


def randomised(network: nn.Module, seed: int) -> nn.Module:
    """The network with drawn statistics of BatchNorm, in eval mode."""
    draw = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            mean, variance = module.running_mean, module.running_var
            assert mean is not None and variance is not None
            mean.copy_(torch.randn(mean.shape, generator=draw) * 0.1)
            variance.copy_(torch.rand(variance.shape, generator=draw) + 0.5)
    return network.eval().requires_grad_(False)


class Skipping(nn.Module):
    """Two convolutions with a skip, average pooling and a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width)
        self.second, self.last = nn.Conv2d(width, width, 3, padding=1), nn.Linear(16 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(images)))
        x = torch.relu(self.second(x) + x)
        logits: Tensor = self.last(torch.nn.functional.avg_pool2d(x, 2).flatten(1))
        return logits


def linear_layers(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convolutions(pool: nn.Module, width: int, stride: int) -> nn.Sequential:
    layers = [nn.Conv2d(1, width, 3), nn.ReLU(), pool, nn.Conv2d(width, 5, 2, stride), nn.ReLU()]
    features = nn.Sequential(*layers, nn.Flatten())
    return features.append(nn.Linear(features(torch.zeros(1, 1, 8, 8)).shape[1], 10))


def ten_networks() -> dict[str, nn.Module]:
    """Networks of images (N, 1, 8, 8), ten classes, with drawn weights."""
    torch.manual_seed(0)
    return {
        "linear 64-20-10": linear_layers(64, 20, 10),
        "linear 64-30-20-10": linear_layers(64, 30, 20, 10),
        "linear 64-40-40-40-10": linear_layers(64, 40, 40, 40, 10),
        "convolutions, max pooling": convolutions(nn.MaxPool2d(2), 4, 1),
        "convolutions, average pooling": convolutions(nn.AvgPool2d(2), 6, 1),
        "convolutions, stride 2": convolutions(nn.Identity(), 4, 2),
        "skip, 4 channels": Skipping(4),
        "skip, 8 channels": Skipping(8),
        "ResNet, 1 block a stage": ResNet([1, 1, 1, 1], classes=10, width=2, in_channels=1),
        "ResNet, 2 blocks a stage": ResNet([2, 1, 1, 1], classes=10, width=2, in_channels=1),
    }


def peer_bounds(network: nn.Module, images: Tensor, labels: Tensor, norm: str, method: str) -> Tensor:
    """auto_LiRPA's lower bounds (N,) of the smallest margins."""
    from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm

    bounded = BoundedModule(network, images, verbose=False, bound_opts={"conv_mode": "matrix"})
    ball = PerturbationLpNorm(norm=float("inf") if norm == "linf" else 2, eps=EPS[norm])
    rows = margin_rows(labels, 10)
    least, _ = bounded.compute_bounds(
        x=(BoundedTensor(images, ball),), C=rows, method=method, bound_upper=False
    )
    return least.amin(1)


def peer() -> None:
    """The differences from auto_LiRPA for each network, norm and method; rounding aside."""
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(1)) * 0.4 + 0.3
    for number, (name, network) in enumerate(ten_networks().items()):
        for norm in EPS:
            network = randomised(network, number)
            model = Normalized(network, [0.4], [0.3]).eval() if norm == "linf" else network
            labels = model(images).argmax(1)
            for method, (ours, options) in METHODS.items():
                certifier = CERTIFIERS.build(ours, eps=EPS[norm], norm=norm, **options)
                with torch.no_grad():
                    theirs = peer_bounds(model, images, labels, norm, method)
                    least = certifier.bounds(model, images, labels, outward=False)
                    stated = certifier.bounds(model, images, labels)
                print(
                    f"{name:30s} {norm:4s} {method:9s} ours above theirs {float((least - theirs).min()):.1e}"
                    f" to {float((least - theirs).max()):.1e}"
                    f"  outward {float((least - stated).max()):.1e}  bound {float(least.min()):.3g}",
                    flush=True,
                )


def drawn(seeds: range, points: int) -> None:
    """Certified images of networks under AutoAttack, PGD and random points: how many are broken."""
    certified = broken = below = 0
    for seed in seeds:
        network: nn.Module = DrawnNetwork(seed)
        images = drawn_images(network, 8, seed)
        labels = network(images).argmax(1)
        for norm, eps in (("linf", 0.02), ("l2", 0.1)):
            method = CERTIFIERS.build("crown", eps=eps, norm=norm)
            with torch.no_grad():
                safe = method.bounds(network, images, labels) > 0
            if not safe.any():
                continue
            kept, truth = images[safe], labels[safe]
            certified += len(kept)
            for name, options in (("aa", {}), ("pgd", {"steps": 40, "restarts": 2})):
                attack = ATTACKS.build(name, eps=eps, norm=norm, **options)
                moved = attack(network, kept, truth, Draws(seed, name, torch.arange(len(kept))))
                broken += int((network(moved).argmax(1) != truth).sum())
            for part in range(0, points, 1000):
                cloud = points_in_ball(kept, eps, norm, min(1000, points - part), seed * 1000 + part)
                below += int((network(cloud.flatten(0, 1)).argmax(1) != truth.repeat(len(cloud))).sum())
        print(f"{seed}: {certified} certified, {broken} broken, {below} points", flush=True)
    print(
        f"{len(seeds)} networks: {certified} certified images; broken by attacks {broken}; by points {below}"
    )


DIGITS = ["--dataset", "digits"]
# One cell a stage without skip or none, by PGD for 8 epochs: the network of the figures of `speed`.
FULL_CELL = "|nor_conv_3x3~0|+|nor_conv_1x1~0|nor_conv_3x3~1|+|nor_conv_3x3~0|avg_pool_3x3~1|nor_conv_1x1~2|"
SKIP_CELL = "|none~0|+|none~0|none~1|+|skip_connect~0|none~1|none~2|"
BY_BOUNDS = (
    "--method crown-ibp --eps 16 --epochs 60 --lr .05 --eps-warmup .05 --eps-ramp .4 --beta-end 1".split()
)


def pipe(store: str, *steps: list[str]) -> list[dict[str, Any]]:
    """The records that the tools write, each reading those of the one before it."""
    text = ""
    for tool, *arguments in steps:
        stored = [] if tool == "rb-arch" else ["--store", store]
        done = subprocess.run(
            [tool, *arguments, *stored, "-q"], input=text, capture_output=True, text=True, check=True
        )
        text = done.stdout
    return [json.loads(line) for line in text.splitlines()]


def speed(store: str, eps: float, images: int, channels: int) -> None:
    """Seconds and memory of `rb-certify crown` on digits."""
    cell = ["rb-arch", "--str", FULL_CELL, "--cells", "1", "--channels", str(channels), *DIGITS]
    (record,) = pipe(store, cell, ["rb-train", "--method", "pgd", "--eps", "16", "--epochs", "8"])
    words = ["--eps", f"{eps:g}", "--n", str(images), "--jobs", "2", "--threads", "1", "-q"]
    with tempfile.TemporaryDirectory() as folder:  # processes share the images of one network by a store
        copy = shutil.copytree(store, Path(folder, "store"))
        command = ["rb-certify", "crown", *words, "--store", str(copy)]
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(command, input=json.dumps(record), capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    metrics = json.loads(done.stdout)["metrics"]
    print(
        f"{channels} channels, {images} images at {eps:g}/255: {seconds:.1f} s, processors {busy:.1f} s,"
        f" largest process {after.ru_maxrss / 2**20:.2f} GB, {metrics}"
    )


def gap(store: str, seeds: str) -> None:
    """Clean, attacked and certified accuracy at 16/255 of networks that crown-ibp trained."""
    records = pipe(
        store,
        ["rb-arch", "--str", SKIP_CELL, "--cells", "1", "--channels", "8", *DIGITS],
        ["rb-train", *BY_BOUNDS, "--seed", seeds, "--threads", "1"],
        ["rb-certify", "crown", "--intermediate", "ibp", "--eps", "16"],
        ["rb-attack", "pgd", "--steps", "40", "--eps", "16"],
    )
    for record in records:
        metrics = record["metrics"]
        clean, attacked, certified = (metrics[name] for name in ("acc", "pgd40.16", "cert.linf.16"))
        print(
            f"seed {record['train']['seed']}: clean {clean:.3f}, PGD-40 {attacked:.3f},"
            f" certified {certified:.3f}, gap {100 * (attacked - certified):.1f} points",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", choices=("peer", "drawn", "speed", "gap"))
    parser.add_argument("--store", default="rb-store", help="of speed and gap: where trainings are kept")
    parser.add_argument("--channels", type=int, default=16, help="of speed: of the network")
    parser.add_argument("--seed", default="0,1,2", help="of gap: seeds of the training")
    parser.add_argument("--eps", type=float, default=1.0, help="of speed, in 1/255")
    parser.add_argument("--images", type=int, default=355)
    parser.add_argument("--networks", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="of drawn: the seed of the first network")
    parser.add_argument("--points", type=int, default=10_000)
    given = parser.parse_args()
    runs: dict[str, Callable[[], None]] = {
        "peer": peer,
        "drawn": lambda: drawn(range(given.first, given.first + given.networks), given.points),
        "speed": lambda: speed(given.store, given.eps, given.images, given.channels),
        "gap": lambda: gap(given.store, given.seed),
    }
    runs[given.what]()


if __name__ == "__main__":
    main()
