"""How far the fast copy in bfloat16 changes the accuracy under each attack: a table beside float32.

    python bench/calibration.py [--n 100] [--attacks pgd,fab-t] [--checkpoint FILE --data FOLDER]

The networks: `linear` (two linear layers) on random images, `trained` (a small network for digits) and
`shifted` (the same with the constant 100 on all logits); or that of a checkpoint on FOLDER/test/CLASS/*.
`worse` is the accuracy in bfloat16 minus that in float32, `passes` the passes of an image in both, and `cost`
the processor time in bfloat16 relative to float32. Another checkout is measured with PYTHONPATH=CHECKOUT.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import rbtools
from rbtools.attacks import ATTACKS
from rbtools.attacks.base import Attack
from rbtools.attacks.verdicts import Judge
from rbtools.evaluation.attacking import AttackResult, run_attack
from rbtools.evaluation.base import Batch
from rbtools.evaluation.fast_model import make_fast_model

SHORT: dict[str, dict[str, Any]] = {
    "square": {"queries": 500},
    "noise": {"samples": 50},
    "pixels": {"queries": 500, "pixels": 2},
    "color": {"what": "contrast", "amount": 0.5},
}
EPS = {"linf": (0.008, 16 / 255), "l2": (0.05, 0.5)}  # on random images, and on digits
Case = tuple[str, nn.Module, Tensor, Tensor]


def linear(n: int) -> Case:
    """Logits W2 W1 x, so that the accuracy under any attack is at least a closed form."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 48, bias=False), nn.Linear(48, 10))
    nn.init.normal_(model[1].weight, std=4 / 192**0.5)
    nn.init.normal_(model[2].weight, std=1 / 48**0.5)
    images = torch.randint(0, 256, (n, 3, 8, 8)).float() / 255
    return "linear", model.eval().requires_grad_(False), images, model(images).argmax(1)


def trained(n: int, shift: float = 0.0) -> Case:
    torch.manual_seed(0)
    digits, test = (rbtools.datasets.load("digits", split) for split in ("train", "test"))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(digits.images.float() / 255), digits.labels).backward()  # type: ignore[union-attr, operator]
        optimizer.step()
    model.requires_grad_(False)[3].bias += shift  # type: ignore[union-attr, operator]
    name = "shifted" if shift else "trained"
    return name, model.eval(), test.images[:n].float() / 255, test.labels[:n]


def networks(n: int) -> Iterator[Case]:
    yield linear(n)
    yield trained(n)
    yield trained(n, shift=100.0)


def loaded(options: argparse.Namespace) -> Case:
    from attacks import of_checkpoint

    EPS["linf"] = (8 / 255, 8 / 255)
    return "loaded", *of_checkpoint(options.checkpoint, options.data, options.n)


def attack_on(name: str, network: str) -> Attack:
    attack = ATTACKS.build(name, **SHORT.get(name, {}))
    return replace(attack, eps=EPS[attack.norm][network != "linear"]) if attack.in_ball else attack


def attacked(attack: Attack, case: Case, precision: str) -> AttackResult:
    _, model, images, labels = case
    made = make_fast_model(model, precision, tuple(images.shape[1:]))
    judge = None if made.judge is None else Judge.of(made.judge, model(images[:8]).detach())
    copies: dict[str, Any] = {"fast_model": made.model, "judge": judge}
    ids = torch.arange(len(images))
    return run_attack(Batch(model, images, labels, ids, seed=0, chunk_size=128, **copies), attack)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--checkpoint", help="a checkpoint for the images of --data, attacked at eps 8/255")
    parser.add_argument("--data")
    parser.add_argument("--arch", help="the checkpoint's architecture, if several fit")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cases = [loaded(args)] if args.checkpoint else list(networks(args.n))
    print(
        f"{'attack':9} {'network':8} {'fp32':>6} {'bf16':>6} {'worse':>7} {'passes':>15} {'cost':>5}  seconds"
    )
    for name in args.attacks.split(","):
        worse = []
        for case in cases:
            values, seconds, passes = [], [], []
            for precision in ("fp32", "bf16"):
                start = time.process_time()
                found = attacked(attack_on(name, case[0]), case, precision)
                seconds.append(time.process_time() - start)
                values.append(float(found.survived.float().mean()))
                passes.append(f"{(found.totals['forward'] + found.totals['backward']) / args.n:.1f}")
            worse.append(values[1] - values[0])
            accuracies = f"{values[0]:6.3f} {values[1]:6.3f} {worse[-1]:+7.3f}"
            cost = f"{seconds[1] / seconds[0]:5.2f}  {seconds[0]:.1f}/{seconds[1]:.1f}"
            print(f"{name:9} {case[0]:8} {accuracies} {'/'.join(passes):>15} {cost}", flush=True)
        print(f"{name:9} {'mean':8} {'':6} {'':6} {sum(worse) / len(worse):+7.3f}", flush=True)


if __name__ == "__main__":
    main()
