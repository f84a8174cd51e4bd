"""FMN, DDN and rb-attack curve against adv-lib: distances of the nearest adversarial examples.

    python bench/minimal_norm.py [--adv-lib FOLDER] [--steps 50,200,1000]

A small network is trained on scikit-learn's digits here; the last images that it classifies right are
attacked by both. One JSON line an attack and number of steps: medians of the distances (null where most
images have none), how many images have none, and the median of the relative differences. adv-lib is
installed in an environment or a folder of its own: pip install --no-deps --target FOLDER adv-lib.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import types

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import rbtools.models.torchvision_import  # noqa: F401  # adv-lib imports torchvision
from rbtools.attacks import ATTACKS
from rbtools.attacks.curve import CurveAttack
from rbtools.rng.draws import Draws

TRAINED, ATTACKED = 1400, 1700
ORDERS = {"linf": math.inf, "l2": 2, "l1": 1}
QUERIES = 2000  # of rb-attack curve, and of each attack of its peer


def network(images: Tensor, labels: Tensor) -> nn.Module:
    """Two convolutions and a linear layer, trained for twelve epochs."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.ReLU())
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(12):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return model.eval().requires_grad_(False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--adv-lib", metavar="FOLDER")
    parser.add_argument("--steps", default="50,200,1000")
    options = parser.parse_args()
    if options.adv_lib:
        sys.path.append(options.adv_lib)
    sys.modules.setdefault("visdom", types.ModuleType("visdom"))  # which only its plots need
    from adv_lib.attacks.decoupled_direction_norm import ddn
    from adv_lib.attacks.fast_minimum_norm import fmn

    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    labels = torch.tensor(digits.target)
    model = network(images[:TRAINED], labels[:TRAINED])
    images, labels = images[TRAINED:ATTACKED], labels[TRAINED:ATTACKED]
    right = model(images).argmax(1) == labels
    images, labels = images[right], labels[right]
    for norm in ORDERS:
        attack = CurveAttack(norm=norm, queries=QUERIES)
        _, results = attack.run(model, images, labels, Draws(0, "bench", torch.arange(len(images))))
        theirs = ensemble(model, images, labels, norm)
        row = compared(results["distance"], theirs)
        print(json.dumps({"attack": "curve", "norm": norm, "queries": QUERIES, **row}), flush=True)
    for name, norm in (("fmn", "linf"), ("fmn", "l2"), ("fmn", "l1"), ("ddn", "l2")):
        for steps in map(int, options.steps.split(",")):
            own = {"norm": norm} if name == "fmn" else {}
            attack = ATTACKS.build(name, steps=steps, eps=1e3, **own)
            _, results = attack.run(model, images, labels, Draws(0, "bench", torch.arange(len(images))))
            if name == "fmn":
                points = fmn(model, images, labels, norm=ORDERS[norm], steps=steps)
            else:
                points = ddn(model, images, labels, steps=steps, levels=None)
            theirs = (points - images).flatten(1).norm(dim=1, p=ORDERS[norm])
            theirs[model(points).argmax(1) == labels] = torch.inf
            print(
                json.dumps(
                    {"attack": name, "norm": norm, "steps": steps, **compared(results["distance"], theirs)}
                )
            )


def ensemble(model: nn.Module, images: Tensor, labels: Tensor, norm: str) -> Tensor:
    """The smallest distance (N,) of adv-lib's FMN, DDN (in L2) and targeted APGD, QUERIES passes each."""
    from adv_lib.attacks.auto_pgd import minimal_apgd
    from adv_lib.attacks.decoupled_direction_norm import ddn
    from adv_lib.attacks.fast_minimum_norm import fmn

    steps, order = QUERIES // 2, ORDERS[norm]
    largest = {"linf": 0.5, "l2": 4.0, "l1": 20.0}[norm]
    points_of = [fmn(model, images, labels, norm=order, steps=steps)]
    points_of += [ddn(model, images, labels, steps=steps, levels=None)] if norm == "l2" else []
    halvings, targets = 10, 9
    points_of.append(
        minimal_apgd(
            model,
            images,
            labels,
            norm=order,
            max_eps=largest,
            binary_search_steps=halvings,
            targeted_version=True,
            n_iter=steps // (halvings * targets),
            use_large_reps=norm == "l1",
        )
    )
    distances = []
    for points in points_of:
        size = (points - images).flatten(1).norm(dim=1, p=order)
        size[model(points).argmax(1) == labels] = torch.inf
        distances.append(size)
    return torch.stack(distances).amin(0)


def compared(ours: Tensor, theirs: Tensor) -> dict[str, float | int | None]:
    both = ours.isfinite() & theirs.isfinite()
    difference = ((ours - theirs).abs() / theirs)[both].median().item() if both.any() else None
    medians = [
        None if middle == math.inf else middle for middle in (ours.median().item(), theirs.median().item())
    ]
    return {
        "images": len(ours),
        "ours": medians[0],
        "adv-lib": medians[1],
        "without, ours": int(ours.isinf().sum()),
        "without, adv-lib": int(theirs.isinf().sum()),
        "difference": difference,
    }


if __name__ == "__main__":
    main()
