"""How often 95 % intervals cover, by simulation: python bench/coverage.py [--repeats 200] [--part NAME,...]

probacc   images' failure rates from known distributions, M draws of each: `estimate.findings` beside
          Wilson's interval around the same value
corrupt   images of known difficulty under 5 severities of 1 and of 15 corruptions: `mean_over` beside the
          mean of the single intervals
rank      networks of known accuracies, images alike hard for all or not: `bootstrap.of_ranking` beside a
          bootstrap that resamples images and nothing else
losses    log-normal, Pareto and exponential losses on test and train: the gap of `Losses` beside that of
          normal intervals

One JSON line a case: the shares covered and the mean widths, `before` as it was and `now`. No network is
trained.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from rbtools.attacks import ATTACKS
from rbtools.evaluation.robust_loss import LossOutput
from rbtools.evaluation.tasks import accuracy_entry, mean_over
from rbtools.probabilistic import intervals
from rbtools.probabilistic.estimate import Estimator, findings
from rbtools.scoring import bootstrap
from rbtools.scoring.corruptions import summary
from rbtools.scoring.rank_order import SortKey

RHO = 0.1
RNG = np.random.default_rng(0)


class Tally:
    """Intervals of one kind: how often they cover, and how wide they are."""

    def __init__(self) -> None:
        self.hits: list[bool] = []
        self.widths: list[float] = []

    def see(self, ends: Any, truth: float) -> None:
        self.hits.append(bool(ends[0] - 1e-12 <= truth <= ends[1] + 1e-12))
        self.widths.append(float(ends[1] - ends[0]))

    def told(self) -> dict[str, float]:
        width = float(f"{np.mean(self.widths):.3g}")
        return {"coverage": round(float(np.mean(self.hits)), 3), "width": width}


def show(part: str, case: str, before: Tally, now: Tally, **more: Any) -> None:
    print(
        json.dumps({"part": part, "case": case, **more, "before": before.told(), "now": now.told()}),
        flush=True,
    )


def rates() -> dict[str, tuple[Callable[[int], np.ndarray], float]]:
    """Distributions of failure rates, and the share of images with at most RHO."""
    return {
        "all 0": (np.zeros, 1.0),
        ".7 at .02, .3 at .4": (lambda n: np.where(RNG.random(n) < 0.7, 0.02, 0.4), 0.7),
        "half 0, half beta(.5, 8)": (
            lambda n: np.where(RNG.random(n) < 0.5, 0, RNG.beta(0.5, 8, n)),
            0.5 + stats.beta.cdf(RHO, 0.5, 8) / 2,
        ),
        "beta(2, 7)": (lambda n: RNG.beta(2, 7, n), stats.beta.cdf(RHO, 2, 7)),
        "all at .11": (lambda n: np.full(n, 0.11), 0.0),
    }


def probacc(repeats: int) -> None:
    for samples in (20, 100, 1000):
        for images in (100, 1000):
            for case, (drawn, truth) in rates().items():
                before, now, values, estimates = Tally(), Tally(), [], []
                for _ in range(repeats):
                    counts = samples - RNG.binomial(samples, drawn(images))
                    _, entry = findings(counts, Estimator(rho=(RHO,)), samples)
                    before.see(intervals.wilson(round(entry["value"] * images), images), truth)
                    now.see(entry["ci95"], truth)
                    values.append(entry["value"])
                    estimates.append(entry["estimate"])
                means = {"value": round(np.mean(values), 4), "estimate": round(np.mean(estimates), 4)}
                how = {"samples": samples, "images": images, "truth": round(truth, 4)}
                show("probacc", case, before, now, **how, **means)


def corrupt(repeats: int) -> None:
    easy = {
        "beta(2, 1)": (2.0, 1.0),
        "beta(.3, .1)": (0.3, 0.1),
        "all alike": (2e6, 1e6),
        "beta(9, .3)": (9, 0.3),
    }
    for corruptions in (1, 15):
        names = [f"c{number}" for number in range(corruptions)]
        for images in (100, 1000):
            for case, (a, b) in easy.items():
                before, now = Tally(), Tally()
                for _ in range(repeats):
                    chances = RNG.beta(a, b, images)
                    pairs = [(name, severity) for name in names for severity in range(1, 6)]
                    right = {pair: RNG.binomial(1, chances) for pair in pairs}
                    parts = [
                        accuracy_entry({"metric": "m", "corruption": name, "severity": s}, right[name, s])
                        for name, s in pairs
                    ]
                    before.see(summary(parts, None, names)[-1]["ci95"], a / (a + b))
                    now.see(
                        summary(parts, None, names, joint=partial(mean_over, right))[-1]["ci95"], a / (a + b)
                    )
                show("corrupt", case, before, now, corruptions=corruptions, images=images)


def resampled(rows: np.ndarray, size: int) -> np.ndarray:
    """Accuracies (R, size) of images resampled with replacement."""
    drawn = RNG.integers(rows.shape[1], size=(size, rows.shape[1]))
    return rows[:, drawn].mean(2)


def rank(repeats: int) -> None:
    cases = {
        "near 1": (100, np.array([0.999, 0.995, 0.99, 0.98, 0.97])),
        "nearer 1": (100, np.array([0.999, 0.998, 0.997, 0.996, 0.995])),
        "ten near 1": (100, np.linspace(0.999, 0.97, 10)),
        "middle": (100, np.array([0.6, 0.55, 0.5, 0.45, 0.4])),
        "middle, 1000 images": (1000, np.array([0.58, 0.56, 0.54, 0.52, 0.5])),
    }
    for shared in (0.0, 0.6):
        for case, (images, true) in cases.items():
            tallies = [Tally() for _ in range(4)]
            for seed in range(repeats):
                hard = math.sqrt(shared) * RNG.standard_normal(images)
                own = math.sqrt(1 - shared) * RNG.standard_normal((len(true), images))
                rows = (hard + own < stats.norm.ppf(true)[:, None]).astype(np.float32)
                old = bootstrap.intervals(resampled(rows, 500), True)
                for place, (before, now) in enumerate(zip(old, ranked(rows, seed), strict=True)):
                    for one, (value, order) in ((before, tallies[:2]), (now, tallies[2:])):
                        value.see(one.value, true[place])
                        order.see(one.rank, place + 1)
            show("rank: values", case, tallies[0], tallies[2], images=images, alike=shared)
            show("rank: ranks", case, tallies[1], tallies[3], images=images, alike=shared)


def ranked(rows: np.ndarray, seed: int) -> list[bootstrap.Interval]:
    """The intervals that rb-rank gives to networks whose images are in the store."""
    every = np.ones(rows.shape[1], np.float32)
    records = []
    for name, row in enumerate(rows):
        value = int(row.sum()) / len(row)
        evals = [{"metric": "acc", "value": value, "n": len(row)}]
        records.append({"checkpoint": str(name), "metrics": {"acc": value}, "evals": evals})
    draws = bootstrap.BootstrapDraws(
        500, seed, lambda record, entry: (rows[int(record["checkpoint"])], every)
    )
    return bootstrap.of_ranking(draws, SortKey("acc", True), [[record] for record in records])


def losses(repeats: int) -> None:
    laws: dict[str, tuple[Callable[[int], np.ndarray], float]] = {
        "exponential": (lambda n: RNG.exponential(1, n), 1.0),
        "log-normal, sigma 1": (lambda n: RNG.lognormal(0, 1, n), math.exp(0.5)),
        "log-normal, sigma 1.5": (lambda n: RNG.lognormal(0, 1.5, n), math.exp(1.125)),
        "log-normal, sigma 2": (lambda n: RNG.lognormal(0, 2, n), math.exp(2)),
        "Pareto, 2.5": (lambda n: RNG.pareto(2.5, n) + 1, 2.5 / 1.5),
    }
    column = LossOutput(ATTACKS.build("fgsm", eps=0.1))
    for images in (100, 300, 1000):
        for case, (drawn, mean) in laws.items():
            before, now = Tally(), Tally()
            for _ in range(repeats):
                sides = [drawn(images), drawn(10 * images) * 0.2]  # test and train
                means = [float(side.mean()) for side in sides]
                half = [1.96 * float(side.std(ddof=1)) / math.sqrt(len(side)) for side in sides]
                normal = [(m - h, m + h) for m, h in zip(means, half, strict=True)]
                rows = [np.stack([side, np.ones(len(side))], axis=1) for side in sides]
                skewed = [column.entries(part, {})[0]["ci95"] for part in rows]
                for tally, ends in ((before, normal), (now, skewed)):
                    gap = intervals.square_and_add(means[0], ends[0], means[1], ends[1])
                    tally.see(gap, 0.8 * mean)
            show("losses", case, before, now, images=images)


PARTS = {"probacc": probacc, "corrupt": corrupt, "rank": rank, "losses": losses}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", default=",".join(PARTS), help=f"what to simulate [{','.join(PARTS)}]")
    parser.add_argument(
        "--repeats", type=int, default=200, help="of each case; losses take ten times as many"
    )
    args = parser.parse_args()
    for part in args.part.split(","):
        PARTS[part](args.repeats * (10 if part == "losses" else 1))


if __name__ == "__main__":
    main()
