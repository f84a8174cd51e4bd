"""The spatial attack beside foolbox and ART, and Sparse-RS and sigma-zero at growing budgets.

    python bench/threats.py --checkpoint FILE --data FOLDER [--n 50]

FOLDER/test/CLASS/* are the images, and the network is recognised as by --checkpoint. All three spatial
attacks try the same grid (31 rotations up to 30 degrees, 5 by 5 translations up to 3 pixels). One JSON line a
figure: robust accuracy, seconds on the clock and of the processor, and the ratio to ours.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from attacks import Bench
from common import show
from torch import Tensor, nn

from rbtools.attacks.pixels import SigmaZero, SparseRS
from rbtools.attacks.spatial import SpatialAttack


def ours(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """The wrong predictions under our attack: bool (N,)."""
    attack = SpatialAttack()
    made = attack.threat.images(attack(model, images, labels), images)  # type: ignore[arg-type]
    return model(made).argmax(1) != labels


def of_foolbox(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    import foolbox

    attack = foolbox.attacks.SpatialAttack(3, 30, 5, 31)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    found: Tensor = attack(wrapped, images, foolbox.criteria.Misclassification(labels))[2]
    return found


def of_art(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """ART rotates all images by the same angle: the one that fools most of them."""
    from art.attacks.evasion import SpatialTransformation
    from art.estimators.classification import PyTorchClassifier

    shape, classes = tuple(images.shape[1:]), model(images[:1]).shape[1]
    wrapped = PyTorchClassifier(model, nn.CrossEntropyLoss(), shape, classes, clip_values=(0.0, 1.0))
    share = 100 * 3 / shape[2]
    attack = SpatialTransformation(wrapped, share, 5, 30.0, 31, verbose=False)
    made = torch.from_numpy(np.asarray(attack.generate(images.numpy())))
    return model(made).argmax(1) != labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--n", type=int, default=50)
    parser.add_argument("--arch", help="the checkpoint's architecture, if several fit")
    bench = Bench(argparse.Namespace(**vars(parser.parse_args()), cpu=True))
    model, images, labels = bench.model, bench.images, bench.labels
    base: tuple[float, float] | None = None
    ways: dict[str, Callable[..., Tensor]] = {"rbtools": ours, "foolbox": of_foolbox, "art": of_art}
    for name, way in ways.items():
        clock, processor = time.perf_counter(), time.process_time()
        with torch.no_grad():
            broken = way(model, images, labels)
        took = time.perf_counter() - clock, time.process_time() - processor
        base = base or took
        values: dict[str, Any] = {"robust": 1 - broken.float().mean().item(), "seconds": round(took[0], 1)}
        show(f"spatial {name}", **values, cpu=round(took[1], 1), ratio=round(took[1] / base[1], 1))
    for budget in (100, 300, 1000):
        for attack in (SparseRS(pixels=10, queries=budget), SigmaZero(pixels=10, steps=budget // 2)):
            made = attack(model, images, labels)  # type: ignore[arg-type]
            robust = (model(made).argmax(1) == labels).float().mean().item()
            show(f"{attack.name}.pixels.10", budget=budget, robust=robust)


if __name__ == "__main__":
    main()
