"""What measures cost: the tangent kernel, traces of all layers, and a search space in one command.

    python bench/measures.py [--part ntk,traces,space] [--threads 2] [--repeat 3] [--archs 64]

One JSON line a part. Ways that are compared take turns. Seconds on the clock, and of the processor for a
machine that does other work: with one thread both count the same work.

ntk: 50 images of 32x32 pixels, nb201-13714 with 16 channels and 5 cells; beside it one backward pass for
each image, for the same sum of logits, and the products of the gradients. Peak memory is the process' own.
traces: ResNet-18, Hutchinson's estimates of all layers beside one of the whole, same images and probes.
space: `rb-arch --unique --sample 64 | rb-measure all --on init` on digits, 16 channels, one batch of 50.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rbtools import models
from rbtools.measures import derivatives, kernel
from rbtools.rng.draws import Draws


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", default="ntk,traces", help="ntk, traces, space [ntk,traces]")
    parser.add_argument("--threads", type=int, default=2, help="[2]")
    parser.add_argument("--repeat", type=int, default=3, help="turns of each way; the quickest counts [3]")
    parser.add_argument("--archs", type=int, default=64, help="architectures of the part space [64]")
    parser.add_argument("--cells", type=int, default=5, help="cells in a stage, of the part space [5]")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "ntk": lambda: ntk(options.repeat),
        "traces": lambda: traces(options.repeat),
        "space": lambda: space(options.archs, options.cells),
    }
    for part in options.part.split(","):
        print(json.dumps({"part": part, "threads": options.threads, **parts[part]()}), flush=True)


def in_turns(ways: dict[str, Callable[[], Any]], repeat: int) -> dict[str, dict[str, float]]:
    """The least seconds of each way, on the clock and of the processor."""
    found: dict[str, dict[str, float]] = {}
    for _ in range(repeat):
        for name, way in ways.items():
            clock, processor = time.perf_counter(), time.process_time()
            way()
            took = {"clock": time.perf_counter() - clock, "processor": time.process_time() - processor}
            best = found.setdefault(name, took)
            found[name] = {kind: round(min(best[kind], took[kind]), 3) for kind in took}
    return found


def ntk(repeat: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = models.build({"space": "nasbench201", "index": 13714}, classes=10, shape=(3, 32, 32)).eval()
    images = torch.rand(50, 3, 32, 32)
    ours = kernel.gram(model, images)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    exact = one_by_one(model, images)
    seconds = in_turns(
        {"rbtools": lambda: kernel.gram(model, images), "loop": lambda: one_by_one(model, images)}, repeat
    )
    ratios = {kind: round(seconds["loop"][kind] / seconds["rbtools"][kind], 2) for kind in seconds["loop"]}
    apart = float((ours - exact).abs().max() / exact.abs().max())
    return {"seconds": seconds, "times as fast": ratios, "peak GiB": round(peak, 2), "apart": apart}


def one_by_one(model: nn.Module, images: Tensor) -> Tensor:
    """One backward pass for each image."""
    parameters = list(model.parameters())
    rows = []
    for image in images:
        found = torch.autograd.grad(model(image[None]).sum(), parameters, allow_unused=True)
        rows.append(torch.cat([one.flatten() for one in found if one is not None]))
    gradients = torch.stack(rows).double()
    return gradients @ gradients.T


def traces(repeat: int, count: int = 16, probes: int = 3) -> dict[str, Any]:
    torch.manual_seed(0)
    model = models.build({"space": "zoo", "name": "resnet18"}, classes=10, shape=(3, 32, 32)).eval()
    images, labels = torch.rand(count, 3, 32, 32), torch.arange(count) % 10
    names = list(derivatives.layers(model).values())
    draws = Draws(0, "bench", torch.tensor([0]))

    def hessian() -> derivatives.WeightHessian:
        return derivatives.WeightHessian(model, images, labels, count, names)

    def whole() -> list[float]:
        """One number a probe: v . H v."""
        one, found = hessian(), [0.0] * probes
        signs = draws.child("trace")

        for number in range(probes):
            probe = derivatives.rademacher(signs, one.size, number)[0]
            product = one.product(one.shaped(probe))
            found[number] = float(probe @ torch.cat([value.flatten() for value in product.values()]))
        return found

    layers = [sum(row) for row in hessian().traces(draws, probes)]
    apart = max(abs(a - b) / abs(b) for a, b in zip(layers, whole(), strict=True))
    seconds = in_turns({"layers": lambda: hessian().traces(draws, probes), "whole": whole}, repeat)
    ratios = {kind: round(seconds["layers"][kind] / seconds["whole"][kind], 3) for kind in seconds["whole"]}
    return {"layers": len(names), "seconds": seconds, "layers over whole": ratios, "apart": apart}


def space(archs: int, cells: int) -> dict[str, Any]:
    tool = f"{sys.executable} -m rbtools.cli"
    line = f"{tool}.arch --unique --sample {archs} --seed 0 --cells {cells} | {tool}.measure all --on init"
    line += " --batches 1 --batch-size 50 -q"
    begun, first, count = time.perf_counter(), 0.0, 0
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    numbers: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        pipe = subprocess.Popen(f"{line} --store {folder}/store", shell=True, stdout=subprocess.PIPE)
        assert pipe.stdout is not None
        for text in pipe.stdout:
            first = first or time.perf_counter() - begun
            record = json.loads(text)
            count += "error" not in record
            numbers |= record["metrics"].keys()
        pipe.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "records": count,
        "numbers": len(numbers),
        "first record, seconds": round(first, 1),
        "seconds": round(time.perf_counter() - begun, 1),
        "processor": round(spent, 1),
        "peak GiB": round(after.ru_maxrss / 2**20, 2),
    }


if __name__ == "__main__":
    main()
