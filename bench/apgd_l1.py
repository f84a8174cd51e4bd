"""The attacks in L1 against AutoAttack's own code on the same network.

    python bench/apgd_l1.py [--images 300] [--eps 1.2,1.5] [--seeds 3] [--attacks apgd-ce,aa]

A small network is trained on scikit-learn's digits here; the images after the training set are attacked by
both. One JSON line an attack, eps and seed: the robust accuracy of each, how many images only one of both
breaks, and seconds. AutoAttack's own code is the package pyautoattack.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from minimal_norm import TRAINED, network
from sklearn.datasets import load_digits
from torch import Tensor, nn

from rbtools.attacks import ATTACKS
from rbtools.rng.draws import Draws

AS_IN_STANDARD = {"apgd-ce": {"restarts": 5}, "apgd-t": {"targets": 5}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--eps", default="1.2,1.5")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--attacks", default="apgd-ce,apgd-t,fab-t,square,aa")
    options = parser.parse_args()
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    labels = torch.tensor(digits.target)
    model = network(images[:TRAINED], labels[:TRAINED])
    images, labels = (part[TRAINED : TRAINED + options.images] for part in (images, labels))
    for name in options.attacks.split(","):
        for eps in map(float, options.eps.split(",")):
            for seed in range(options.seeds):
                row = compared(model, images, labels, name, eps, seed)
                print(json.dumps({"attack": name, "eps": eps, "seed": seed, **row}), flush=True)


def compared(
    model: nn.Module, images: Tensor, labels: Tensor, name: str, eps: float, seed: int
) -> dict[str, float | int]:
    draws = Draws(seed, "bench", torch.arange(len(images)))
    robust, seconds = [], []
    for backend in ("rbtools", "pyautoattack"):
        settings = AS_IN_STANDARD.get(name, {})
        attack = ATTACKS.build(name, norm="l1", eps=eps, backend=backend, **settings)
        start = time.process_time()
        points = attack(model, images, labels, draws)
        seconds.append(time.process_time() - start)
        robust.append(model(points).argmax(1) == labels)
    ours, theirs = robust
    return {
        "images": len(images),
        "ours": float(ours.float().mean()),
        "pyautoattack": float(theirs.float().mean()),
        "broken by ours only": int((~ours & theirs).sum()),
        "broken by pyautoattack only": int((ours & ~theirs).sum()),
        "processor seconds, ours": round(seconds[0], 2),
        "processor seconds, pyautoattack": round(seconds[1], 2),
    }


if __name__ == "__main__":
    main()
