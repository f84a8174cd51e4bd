"""Records to draw: few and many, with everything that a plot may ask for."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from rbtools.records import answers
from rbtools.spaces import nasbench201

METHODS = (
    "erm trades pgd mart alp clp kl-pgd cvar evar at-pr mixed corruption chen-lee-trades trades-awp"
    " a-method-with-a-name-that-is-long"
).split()
CORRUPTIONS = "gaussian_noise shot_noise impulse_noise defocus_blur glass_blur fog contrast".split()
CLASSES, IMAGES = 10, 450


def _detail(share: random.Random) -> dict[str, Any]:
    rows = [[share.randint(0, 9) for _ in range(CLASSES)] for _ in range(CLASSES)]
    means = [[round(share.random() / 5, 4) for _ in range(CLASSES)] for _ in range(CLASSES)]
    confidence = {"prediction": [share.uniform(0.6, 0.9), share.uniform(0.2, 0.5)]}
    return {
        "confidence": {**confidence, "label": means, "argmax": means},
        "confusion": rows,
        "images": {"label": [45] * CLASSES, "argmax": [45] * CLASSES},
    }


def record(number: int) -> dict[str, Any]:
    """A trained and evaluated network, the same for the same number."""
    share = random.Random(number)
    acc = share.uniform(0.7, 0.95)
    values = {"acc": acc}
    for stem in ("fgsm", "pgd20", "apgd-ce"):
        values |= {f"{stem}.{eps:g}": acc * 0.9**eps for eps in (0.5, 1, 2, 4, 8)}
    for corruption in CORRUPTIONS:
        values |= {f"corrupt.{corruption}.{s}": acc - 0.05 * s * share.random() for s in range(1, 6)}
    for gamma in (8 / 255, 0.08, 0.1, 0.12):
        values |= {f"pr.uniform.{gamma:g}": 1 - gamma * share.random()}
        values |= {f"ge.pr.uniform.{gamma:g}": gamma * share.random()}
    values |= {f"probacc.uniform.0.0313725.{rho:g}": 0.9 + rho * share.random() for rho in (0.1, 0.05, 0.01)}
    draws = np.random.default_rng(number)
    right = {name: draws.random(IMAGES) < value for name, value in values.items()}
    seen = {n: bits for n, bits in right.items() if n == "acc" or n.startswith(("pgd20", "corrupt.f"))}
    values |= {name: float(bits.mean()) for name, bits in seen.items()}
    values["seconds_per_epoch"] = share.uniform(3, 300)
    evals = [
        {"metric": name, "value": value, "n": IMAGES, "ci95": [max(0, value - 0.04), min(1, value + 0.04)]}
        | ({"detail": _detail(share)} if name.startswith(("fgsm", "pgd20")) else {})
        | ({answers.FIELD: answers.packed(seen[name], "abc")} if name in seen else {})
        for name, value in values.items()
    ]
    epochs = range(1, 6)
    history = {name: [acc * (1 - 0.5**n) for n in epochs] for name in ("acc", "val_acc", "val_robust_acc")}
    history["loss"] = [2.0 * acc / n for n in epochs]
    return {
        "schema": 1,
        "arch": nasbench201.arch(number * 7 % nasbench201.SIZE),
        "dataset": "cifar10",
        "train": {"method": METHODS[number % len(METHODS)], "seed": 0, "history": history},
        "metrics": values,
        "evals": evals,
    }


@pytest.fixture(scope="session")
def fifteen() -> list[dict[str, Any]]:
    """One network under fifteen methods."""
    return [{**record(number), "arch": nasbench201.arch(13714)} for number in range(15)]


@pytest.fixture(scope="session")
def crowd() -> list[dict[str, Any]]:
    """Forty networks, the neighbours of one among them."""
    found = [record(number) for number in range(40)]
    for place, index in enumerate([13714, *nasbench201.neighbours(13714)]):
        found[place]["arch"] = nasbench201.arch(index)
    return found
