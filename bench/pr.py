"""rb-pr's figures, ratios side by side in one run: python bench/pr.py --data FOLDER

FOLDER holds CIFAR-10 as images, test/<class>/*. The network is the CIFAR-10 ResNet-18 that pyautoattack's
distribution ships (trained without attacks), so no weights are made up.

sampling  noisy copies on the prepared model, radii sharing the draws, near ties confirmed in float32, beside
          a plain float32 loop that draws for each radius; and the share of the time that draws take
adaptive  draws that the sequential test spends, and its decisions, beside a fixed number: on a small network
          trained on digits with attacks, here and now

One JSON line each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from common import images_of_folder, published_resnet18
from torch import Tensor, nn

from rbtools.evaluation import fast_model, noisy_copies
from rbtools.evaluation.base import Batch, batch_size
from rbtools.execution import precision
from rbtools.execution.run import Run
from rbtools.inputs import resolve
from rbtools.inputs.data import data_of
from rbtools.probabilistic import NOISES, sequential
from rbtools.rng.draws import Draws
from rbtools.spaces import sized
from rbtools.store import Store
from rbtools.trainer import recipe, train_model
from rbtools.training import METHODS

GAMMAS = (8 / 255, 0.08, 0.1, 0.12)


def seconds_of(work: Callable[[], Any]) -> tuple[float, Any]:
    """How long it took, and what came out. On a CPU processor time: the machine may do other work, too."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    start = clock()
    found = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - start, found


def plain_loop(
    model: nn.Module, images: Tensor, labels: Tensor, gammas: tuple[float, ...], samples: int
) -> list[Tensor]:
    """What one writes without a library: new noise for each radius, float32, channels first."""
    found = []
    with torch.no_grad():
        for gamma in gammas:
            right = torch.zeros_like(labels)
            for _ in range(samples):
                noisy = (images + gamma * (2 * torch.rand_like(images) - 1)).clamp(0, 1)
                right += model(noisy).argmax(1) == labels
            found.append(right)
    return found


def tile_of(args: argparse.Namespace, model: nn.Module, images: Tensor, labels: Tensor, fast: bool) -> Batch:
    """The images as rb-pr would meet them; `fast` with a search prepared for this machine."""
    how = precision.resolve(Run.of(tool="bench", precision="auto", device=args.device))
    search = fast_model.make_fast_model(model, how, tuple(images.shape[1:])).model if fast else None
    ids = torch.arange(len(labels), device=args.device)
    size = batch_size(torch.device(args.device), images.shape[1:])
    tile = Batch(model, images, labels, ids, seed=0, chunk_size=size, fast_model=search)
    _ = tile.clean
    return tile


def compare_sampling(args: argparse.Namespace, model: nn.Module, images: Tensor, labels: Tensor) -> None:
    noise = NOISES.build("uniform")
    exact, fast = (tile_of(args, model, images, labels, one) for one in (False, True))
    still_correct = exact.take(exact.clean)
    count = len(still_correct.ids)
    few = 1 if args.device == "cpu" else args.samples
    noisy_copies.sample_copies(fast, noise, GAMMAS, 1)  # warm
    # Both alternate, so that what else the machine does falls on both.
    plain = mine = 0.0
    found: list[Any] = []
    for _ in range(args.repeats):
        plain += seconds_of(lambda: plain_loop(model, images[exact.clean], labels[exact.clean], GAMMAS, few))[
            0
        ]
        took, found = seconds_of(lambda: noisy_copies.sample_copies(fast, noise, GAMMAS, args.samples))
        mine += took
    plain *= args.samples / few
    drawing, _ = seconds_of(
        lambda: [
            noise.unit(Draws(0, "bench", still_correct.ids), tuple(images.shape[1:]), i)
            for i in range(args.samples)
        ]
    )
    line = {
        "figure": "sampling",
        "images": count,
        "samples": args.samples,
        "radii": len(GAMMAS),
        "seconds": round(mine / args.repeats, 2),
        "plain_seconds": round(plain / args.repeats, 2),
        "times_as_fast": round(plain / mine, 2),
        "draws_share": round(drawing / (mine / args.repeats), 3),
        "confirmed_share": round(
            sum(one.totals["confirmed"] for one in found) / sum(one.totals["copies"] for one in found), 4
        ),
    }
    if args.check:
        few_samples = min(args.samples, args.check)
        some = noisy_copies.sample_copies(exact, noise, GAMMAS, few_samples)
        other = noisy_copies.sample_copies(fast, noise, GAMMAS, few_samples)
        line["checked_copies"] = count * few_samples * len(GAMMAS)
        line["differing_counts"] = sum(
            int((a.right != b.right).sum()) for a, b in zip(some, other, strict=True)
        )
    print(json.dumps(line), flush=True)


def robust_tile(args: argparse.Namespace) -> Batch:
    """Digits for a network that was trained on them with PGD at 32/255."""
    record = {"schema": 1, "arch": sized("nasbench201", channels=8, cells=1).arch(13714), "dataset": "digits"}
    method = METHODS.build("pgd", eps=32 / 255, step_size=8 / 255, attack_steps=7)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.of(tool="bench", store=Store(folder), device=args.device)
        trained = train_model.train(record, method, recipe.Recipe(epochs=15, lr=0.2), run)
        data = data_of(trained, run, "test")
        model = resolve.load_model(trained, data, run, torch.device(args.device))
    test = data.load()
    chosen = data.order(test.labels)[: args.n]
    images, labels = test.images[chosen].to(args.device).float() / 255, test.labels[chosen].to(args.device)
    return tile_of(args, model, images, labels, True)


def compare_adaptive(args: argparse.Namespace) -> None:
    noise, rho, gamma = NOISES.build("uniform"), args.rho, args.gamma
    tile = robust_tile(args)
    count = int(tile.clean.sum())
    rule = [sequential.anytime(args.maximum, rho)]
    exact = [sequential.fixed(args.maximum, rho)]
    took, (found,) = seconds_of(lambda: noisy_copies.sample_copies(tile, noise, [gamma], args.maximum, rule))
    spent = int(found.drawn.sum())
    line = {
        "figure": "adaptive",
        "images": count,
        "rho": rho,
        "gamma": round(gamma, 4),
        "maximum": args.maximum,
        "seconds": round(took, 1),
        "draws": spent,
        "times_fewer": round(args.maximum * count / spent, 1),
        "undecided": int((found.decisions[tile.clean] < 0).sum()),
    }
    if args.check:
        (fixed,) = noisy_copies.sample_copies(tile, noise, [gamma], args.maximum, exact)
        # An undecided image counts by its estimate.
        mine = torch.where(
            found.decisions[:, 0] < 0,
            (found.drawn - found.right) <= rho * found.drawn,
            found.decisions[:, 0] == 1,
        )
        agree = (mine == (fixed.decisions[:, 0] == 1))[tile.clean]
        line |= {"agreement": round(float(agree.float().mean()), 4), "passing": int(mine[tile.clean].sum())}
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="CIFAR-10 as images: FOLDER/test/<class>/... (for sampling)")
    parser.add_argument("--part", default="sampling,adaptive", help="what to measure [sampling,adaptive]")
    parser.add_argument("--n", type=int, default=64, help="images [64]")
    parser.add_argument("--samples", type=int, default=100, help="noisy copies of each [100]")
    parser.add_argument("--repeats", type=int, default=1, help="how often both are timed in turn [1]")
    parser.add_argument("--maximum", type=int, default=10_000, help="draws of an image at most [10000]")
    parser.add_argument("--rho", type=float, default=0.01, help="of the sequential test [0.01]")
    parser.add_argument("--gamma", type=float, default=0.12, help="of the sequential test [0.12]")
    parser.add_argument("--check", type=int, default=0, help="also compare decisions; so many copies each")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if not set(args.part.split(",")) <= {"sampling", "adaptive"}:
        parser.error(f"--part is '{args.part}'. Choose from: sampling, adaptive.")
    warnings.simplefilter("ignore")
    if "sampling" in args.part:
        images, labels = images_of_folder(args.data, args.n, args.device)
        compare_sampling(args, published_resnet18(args.device), images, labels)
    if "adaptive" in args.part:
        compare_adaptive(args)


if __name__ == "__main__":
    main()
