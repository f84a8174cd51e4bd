"""How far the fast copy in bfloat16 changes the accuracy under each attack: a table beside float32.

    python bench/calibration.py [--n 100] [--attacks pgd,fab-t]

The networks: `linear` on random images, `trained` (a small network), and `shifted` (the same network with the
constant 100 on all logits). The cost is the processor time in bfloat16 relative to float32. `worse` is the
accuracy in bfloat16 minus that in float32.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator

import torch
from torch import nn

import rbtools
from rbtools.attacks import ATTACKS

SHORT = {"aa": {}, "square": {"queries": 500}, "noise": {"samples": 50}}
EPS = {"linf": (0.008, 16 / 255), "l2": (0.05, 0.5), "l1": (0.3, 4.0)}


def trained() -> nn.Module:
    torch.manual_seed(0)
    digits = rbtools.datasets.load("digits", "train")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        logits = model(digits.images.float() / 255)
        nn.functional.cross_entropy(logits, digits.labels).backward()
        optimizer.step()
    return model.eval()


def networks(n: int) -> Iterator[tuple[str, nn.Module, torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    nn.init.normal_(linear[1].weight, std=4 / 192**0.5)
    images = torch.randint(0, 256, (n, 3, 8, 8)).float() / 255
    yield "linear", linear.eval(), images, linear(images).argmax(1)
    digits = rbtools.datasets.load("digits", "test")
    images, labels = digits.images[:n].float() / 255, digits.labels[:n]
    yield "trained", trained(), images, labels
    shifted = trained()
    with torch.no_grad():
        shifted[3].bias += 100
    yield "shifted", shifted, images, labels


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{'attack':10} {'network':8} {'fp32':>6} {'bf16':>6} {'worse':>7} {'cost':>5}")
    for name in args.attacks.split(","):
        worse = []
        for number, (network, model, images, labels) in enumerate(networks(args.n)):
            attack = ATTACKS.build(name, **SHORT.get(name, {}))
            eps = EPS[attack.norm][min(number, 1)]
            attack = ATTACKS.build(name, **SHORT.get(name, {}), eps=eps)
            values, seconds = [], []
            for precision in ("fp32", "bf16"):
                start = time.process_time()
                values.append(rbtools.evaluate(model, (images, labels), attack, precision=precision).value)
                seconds.append(time.process_time() - start)
            worse.append(values[1] - values[0])
            cost = seconds[1] / seconds[0]
            both = " ".join(f"{value:6.3f}" for value in values)
            print(f"{name:10} {network:8} {both} {worse[-1]:+7.3f} {cost:5.2f}", flush=True)
        print(f"{name:10} {'mean':8} {'':6} {'':6} {sum(worse) / len(worse):+7.3f}", flush=True)


if __name__ == "__main__":
    main()
