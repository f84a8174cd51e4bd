"""The spatial attack beside foolbox and ART, Sparse-RS and sigma-zero, and intervals under rotation.

    python bench/threats.py --checkpoint FILE --data FOLDER [--n 50]
    python bench/threats.py --coverage 400

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
from attacks import of_checkpoint
from common import show
from torch import Tensor, nn

from rbtools.attacks.pixels import SigmaZero, SparseRS
from rbtools.attacks.spatial import Spatial, SpatialAttack
from rbtools.probabilistic import NOISES, estimate
from rbtools.probabilistic.estimate import Estimator


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


def coverage(runs: int, images: int = 50, copies: int = 20, degrees: float = 60.0) -> None:
    """The share of 95 % intervals of PR_D under rotation that contain the true value, for images drawn from a
    population whose rates are known by quadrature."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).requires_grad_(False)
    population = torch.rand(2000, 3, 8, 8)
    labels, right = network(population).argmax(1), torch.zeros(2000)
    family, angles = Spatial(degrees=degrees, pixels=0.0), torch.linspace(-degrees, degrees, 801)
    for angle in angles:
        made = family.made(torch.tensor([[angle, 0.0, 0.0]]).expand(2000, 3), population)
        right += network(made).argmax(1) == labels
    truth, noise, inside = float(right.mean()) / len(angles), NOISES.build("rotation"), 0
    for run in range(runs):
        chosen = torch.randint(2000, (images,), generator=torch.Generator().manual_seed(run))
        noisy = noise(population[chosen], degrees, copies, seed=run)
        correct = network(noisy.flatten(0, 1)).argmax(1).view(copies, images) == labels[chosen]
        found = estimate.findings(correct.sum(0).float().numpy(), Estimator(rho=()), copies, None)
        low, high = found["ci95"]
        inside += low <= truth <= high
    show("coverage of PR_D under rotation", truth=round(truth, 4), runs=runs, coverage=inside / runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coverage", type=int, help="number of simulations, without a checkpoint")
    parser.add_argument("--checkpoint")
    parser.add_argument("--data")
    parser.add_argument("--n", type=int, default=50)
    parser.add_argument("--arch", default="nb201-13714", help="the checkpoint's architecture")
    given = parser.parse_args()
    if given.coverage:
        coverage(given.coverage)
        return
    model, images, labels = of_checkpoint(given.checkpoint, given.data, given.n, given.arch)
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
            show(f"{attack.stem}.10", budget=budget, robust=robust)


if __name__ == "__main__":
    main()
