"""rb-certify smooth --adaptive beside a fixed number of draws: python bench/smoothing.py

A small network, trained here on digits with the noise of the smoothing, is certified twice on the same
images, with all --samples and adaptively. One JSON line has draws, processor seconds and certified
accuracies, and one for each failure rate p has the draws until a radius is decided on Bernoulli streams, by
the plan and by the anytime-valid bet of rb-pr --adaptive.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

import rbtools
from rbtools.probabilistic import sequential, smoothing

RADII = (0, 0.25, 0.5, 0.75, 1)


def trained(args: argparse.Namespace) -> dict[str, Any]:
    """A network of three layers, trained on Gaussian noise."""
    (record,) = rbtools.arch(space="fcnn", depth=3, width=256, sample=1, dataset="digits")
    noise = {"noise": "gaussian", "sigma": args.sigma}
    model = rbtools.train(record, method="corruption", epochs=args.epochs, lr=0.1, store=args.store, **noise)
    return dict(model)


def certified(model: dict[str, Any], args: argparse.Namespace, adaptive: bool) -> dict[str, Any]:
    """What certifying the model takes, and its certified accuracies."""
    start = time.process_time()
    options = {"sigma": args.sigma, "samples": args.samples, "adaptive": adaptive, "n": args.n}
    record = rbtools.certify(model, "smooth", eps=RADII, store=args.store, force=True, **options)
    seconds = time.process_time() - start
    entries = [entry for entry in record["evals"] if "certificate" in entry]
    return {
        "images": entries[0]["n"],
        "draws of an image": entries[0]["passes"]["forward"],
        "processor seconds": round(seconds, 1),
        "certified": {f"{entry['eps']:g}": round(entry["value"], 4) for entry in entries},
        "abstained": entries[0]["abstained"],
    }


def draws_of(
    rate: float, radius: float, sigma: float, runs: int = 1000, most: int = 100_000
) -> dict[str, Any]:
    """The mean draws until one radius is decided, at failure rate `rate`, and the share that is certified."""
    generator = np.random.default_rng(0)
    found: dict[str, Any] = {"rate": rate, "radius": radius}
    plan = smoothing.stopping_plan(most, (radius,), sigma, 0.001)
    bet = sequential.anytime(most, smoothing.failure_rate(radius, sigma), 0.999)
    every = np.append(np.arange(128, most, 128), most)
    passes = np.searchsorted(bet.passes, every, side="right") - 1
    fails = np.searchsorted(bet.fails, every, side="left")  # the fewest failures with which it is lost
    for name, looks, certify, give_up in (
        ("plan", plan.looks, plan.certify[0], plan.give_up[0]),
        ("bet", every, passes, fails),
    ):
        steps = np.diff(looks, prepend=0)
        failures = generator.binomial(steps, rate, size=(runs, len(steps))).cumsum(1)
        passed, lost = failures <= certify, failures >= give_up
        done = passed | lost
        done[:, -1] = True
        at = done.argmax(1)
        found[name] = round(float(looks[at].mean()))
        found[f"{name} certified"] = round(float(passed[np.arange(runs), at].mean()), 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sigma", type=float, default=0.25)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--n", type=int, default=None, help="images of digits' test split [all]")
    parser.add_argument("--store", default=None)
    args = parser.parse_args()
    model = trained(args)
    fixed, adaptive = (certified(model, args, adaptive) for adaptive in (False, True))
    gaps = [fixed["certified"][radius] - adaptive["certified"][radius] for radius in fixed["certified"]]
    ratio = fixed["draws of an image"] / adaptive["draws of an image"]
    line = {
        "fixed": fixed,
        "adaptive": adaptive,
        "draws": round(ratio, 1),
        "largest gap": round(max(gaps), 4),
    }
    print(json.dumps(line), flush=True)
    limit = smoothing.failure_rate(0.5, args.sigma)
    for relative in (0, 0.1, 0.3, 0.5, 0.7, 0.85, 1.2, 1.5, 2):
        print(json.dumps(draws_of(relative * limit, 0.5, args.sigma)), flush=True)


if __name__ == "__main__":
    main()
