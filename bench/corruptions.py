"""Corruptions beside the package imagecorruptions: how fast they are, and how near.

    python bench/corruptions.py speed [--data FOLDER] [--threads 2]
    python bench/corruptions.py near --data FOLDER [--golden FILE]
    python bench/corruptions.py share [--data FOLDER] [--n 256]

speed: all fifteen at severities 1 to 5 on 256 images of 32x32 (or --size), ours and theirs in turns, the best
of some runs of each, every side with images in its own form; ours with the constants of ImageNet-C, which are
theirs, and with those of CIFAR-10-C. near: pixel
statistics beside those of the generator of CIFAR-10-C (the JSON file of tests/corruptions/data, or one with
real images), and correlations with the package's images. share: how much of `rb-corrupt all` on a ResNet-18
is corruption. FOLDER holds CLASS/*.jpg. One JSON line a figure.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rbtools.corruptions import CORRUPTIONS
from rbtools.execution.device import _keep_memory
from rbtools.rng.draws import Draws
from tests.corruptions import peer

COUNT = 256


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figure", choices=("speed", "near", "share"))
    parser.add_argument("--data", type=Path, help="folder of CLASS/*.jpg [noise for speed]")
    parser.add_argument("--golden", type=Path, help="statistics of the generator of CIFAR-10-C")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="count time of the processor, for a busy machine")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--n", type=int, default=COUNT)
    parser.add_argument("--size", type=int, default=32, help="pixels a side, for speed [32]")
    parser.add_argument("--only", nargs="*", default=tuple(CORRUPTIONS.all), help="corruptions, for speed")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    _keep_memory()  # as the tools do
    {"speed": speed, "near": near, "share": share}[options.figure](options)


def pictures(folder: Path | None, count: int) -> np.ndarray:
    """uint8 (N, 32, 32, 3): the first images of each class in turn, or smooth noise."""
    if folder is None:
        from scipy import ndimage

        noise = np.random.default_rng(0).normal(size=(count, 32, 32, 3))
        smooth = ndimage.gaussian_filter(noise, (0, 2, 2, 0)) * 300 + 128
        return np.uint8(np.clip(smooth, 0, 255))
    classes = [sorted(one.glob("*.jpg")) for one in sorted(folder.iterdir()) if one.is_dir()]
    each = -(-count // len(classes))
    files = [file for one in classes for file in one[:each]][:count]
    return np.stack([np.asarray(Image.open(file)) for file in files])


def ours(name: str, images: np.ndarray, severity: int, constants: str, seed: int = 0) -> np.ndarray:
    """uint8 (N, H, W, 3) in, uint8 out."""
    corrupt = CORRUPTIONS.build(name, constants=constants)
    tensor = torch.from_numpy(images).permute(0, 3, 1, 2).float().div_(255)
    draws = Draws(seed, f"corruption.{name}", torch.arange(len(images)))
    levels = corrupt(tensor.contiguous(), severity, draws).mul_(255).round_().to(torch.uint8)
    return levels.permute(0, 2, 3, 1).numpy()


def theirs(module: Any, name: str, images: np.ndarray, severity: int) -> np.ndarray:
    """The same by the package, image by image."""
    work = getattr(module, name)
    return np.stack([np.uint8(work(Image.fromarray(one), severity)) for one in images])


def timed(work: Callable[[], Any], clock: Callable[[], float]) -> float:
    start = clock()
    work()
    return clock() - start


def speed(options: argparse.Namespace) -> None:
    images = pictures(options.data, options.n)
    one_by_one = [Image.fromarray(one).resize((options.size,) * 2) for one in images]
    batch = torch.from_numpy(np.stack([np.asarray(one) for one in one_by_one])).permute(0, 3, 1, 2)
    batch = batch.contiguous().float().div_(255)
    clock = time.process_time if options.cpu else time.perf_counter
    total = dict.fromkeys(("theirs", "imagenet", "cifar"), 0.0)
    for name in options.only:
        ways: dict[str, Callable[[int], Any]] = {
            constants: functools.partial(CORRUPTIONS.build(name, constants=constants), batch)
            for constants in ("imagenet", "cifar")
        }
        with peer.running() as module:
            work = getattr(module, name)
            ways["theirs"] = lambda severity, work=work: [np.uint8(work(one, severity)) for one in one_by_one]
            best = fastest(ways, options.runs, clock)
        for key, seconds in best.items():
            total[key] += seconds
        print(json.dumps(row(name, best, len(images))), flush=True)
    print(json.dumps(row("together", total, len(images))))


def fastest(ways: dict[str, Callable[[int], Any]], runs: int, clock: Callable[[], float]) -> dict[str, float]:
    """The seconds of each way for severities 1 to 5, each the best of some runs, in turns."""
    seconds = dict.fromkeys(ways, 0.0)
    for severity in range(1, 6):
        taken = [  # the first run, with tables, files and imports, does not count
            {key: timed(functools.partial(work, severity), clock) for key, work in ways.items()}
            for _ in range(runs + 1)
        ][1:]
        for key in ways:
            seconds[key] += min(one[key] for one in taken)
    return seconds


def row(name: str, seconds: dict[str, float], count: int) -> dict[str, Any]:
    found: dict[str, Any] = {"corruption": name, "images": count}
    found |= {f"{key}, ms": round(1e3 * value, 2) for key, value in seconds.items()}
    for key in ("imagenet", "cifar"):
        found[f"times as fast, {key}"] = round(seconds["theirs"] / seconds[key], 2)
    return found


def near(options: argparse.Namespace) -> None:
    if options.data is None:
        raise SystemExit("near compares real images: add --data FOLDER.")
    if options.golden is not None:
        beside_the_archive(json.loads(options.golden.read_text())["corruptions"], pictures(options.data, 200))
    small = pictures(options.data, COUNT)
    bicubic = Image.Resampling.BICUBIC
    images = np.stack([np.asarray(Image.fromarray(one).resize((64, 64), bicubic)) for one in small])
    for name in CORRUPTIONS:
        if CORRUPTIONS.build(name).random:
            continue
        worst, most = 1.0, 0
        for severity in range(1, 6):
            with peer.running() as module:
                want = theirs(module, name, images, severity).astype(int)
            found = ours(name, images, severity, "imagenet").astype(int)
            changes = zip(
                (want - images).reshape(COUNT, -1), (found - images).reshape(COUNT, -1), strict=True
            )
            worst = min(worst, *(float(np.corrcoef(a, b)[0, 1]) for a, b in changes if a.std() and b.std()))
            most = max(most, int(np.abs(want - found).max()))
        line = {"corruption": name, "images": f"{COUNT} of 64x64", "severities": "1-5"}
        line |= {"least correlation of the change": round(worst, 5), "most grey levels apart": most}
        print(json.dumps(line), flush=True)


def beside_the_archive(golden: dict[str, Any], images: np.ndarray) -> None:
    """Mean change, rms and shift beside the generator's, on its 200 real images."""
    for name, severities in golden.items():
        random = CORRUPTIONS.build(name).random
        for severity, sets in severities.items():
            want = sets["jpeg"]
            seeds = range(10 if random else 1)
            after = [ours(name, images, int(severity), "cifar", seed) for seed in seeds]
            change = np.concatenate(after).astype(float) - np.concatenate([images] * len(seeds))
            mean, per_image = np.abs(change).mean(), np.abs(change).mean(axis=(1, 2, 3))
            error = per_image.std() * (1 / want["images"] + 1 / len(per_image)) ** 0.5
            shift = np.abs(change.mean(axis=(0, 1, 2)) - want["mean_shift"]).max()
            line = {"corruption": name, "severity": int(severity), "mean change": round(float(mean), 3)}
            line |= {"theirs": want["mean_abs"], "apart, %": round(100 * (mean / want["mean_abs"] - 1), 2)}
            if random:
                line["standard errors"] = round(float((mean - want["mean_abs"]) / error), 1)
            rms = float(np.sqrt((change**2).mean()))
            line |= {"rms apart, %": round(100 * (rms / want["rms"] - 1), 2)}
            line |= {"shift apart, grey levels": round(float(shift), 3)}
            print(json.dumps(line), flush=True)


def share(options: argparse.Namespace) -> None:
    """A tile of the evaluation at a time, corrupted and then classified, as `rb-corrupt all` does it."""
    from rbtools import models

    torch.manual_seed(0)
    model = models.build({"space": "zoo", "name": "resnet18"}, classes=10, shape=(3, 32, 32)).eval()
    images = torch.from_numpy(pictures(options.data, options.n)).permute(0, 3, 1, 2).float().div(255)
    clock = time.process_time if options.cpu else time.perf_counter
    corrupting = classifying = 0.0
    with torch.no_grad():
        model(images[:128])
        for name in CORRUPTIONS.all:
            corrupt = CORRUPTIONS.build(name)
            corrupt(images[:8], 1, Draws(0, name, torch.arange(8)))
            for severity in range(1, 6):
                for ids in torch.arange(len(images)).split(128):
                    start = clock()
                    corrupted = corrupt(images[ids], severity, Draws(0, f"corruption.{name}", ids))
                    middle = clock()
                    model(corrupted).argmax(1)
                    corrupting += middle - start
                    classifying += clock() - middle
    line = {"figure": "rb-corrupt all on a ResNet-18 of CIFAR", "images": len(images), "corrupted": 75}
    line |= {"corrupting, s": round(corrupting, 1), "classifying, s": round(classifying, 1)}
    print(json.dumps({**line, "share": round(corrupting / (corrupting + classifying), 4)}))


if __name__ == "__main__":
    main()
