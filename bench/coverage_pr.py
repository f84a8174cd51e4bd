"""How often the intervals of rb-pr and of two-phase attacks cover: python bench/coverage_pr.py [--part ...]

pr         PR_D of images whose failure rates come from known distributions: `pr_d`
quantiles  quantiles of the images' PR, over these images: `quantiles`
probacc    ProbAcc(0.1) from 100 copies of each image: `prob_acc`, and from tests that stop early
pfail      the mean of rare failure probabilities, from ten runs of splitting of each image: `findings`
two-phase  the accuracy on just these images from a stratified sample of a fixed size
goal       the same of a run with a goal of precision, with the bias of its value, also in units of the goal
wilson     the exact coverage of Wilson's interval of a proportion, the smallest and the mean one over a grid

One JSON line a case: name of the interval, shape, n, share covered, mean width. No network is trained. The
functions give these lines as a list, for other programs to join.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy import stats

from rbtools.probabilistic import estimate, intervals, splitting, two_phase

Row = dict[str, Any]
Law = tuple[Callable[[np.random.Generator, int], np.ndarray], float]

SIZES = (10, 50, 1000, 10_000)
COPIES = 100
RHO = 0.1


class Tally:
    """Intervals of one kind: how often they cover, and how wide they are."""

    def __init__(self) -> None:
        self.hits: list[bool] = []
        self.widths: list[float] = []

    def see(self, ends: Sequence[float] | None, truth: float) -> None:
        assert ends is not None
        self.hits.append(bool(ends[0] - 1e-12 <= truth <= ends[1] + 1e-12))
        self.widths.append(float(ends[1] - ends[0]))

    def row(self, interval: str, shape: str, n: int, **more: Any) -> Row:
        coverage, width = round(float(np.mean(self.hits)), 4), float(f"{np.mean(self.widths):.3g}")
        return {"interval": interval, "shape": shape, "n": n, "coverage": coverage, "width": width, **more}


def failure_rates() -> dict[str, tuple[Law, float]]:
    """Distributions of the images' failure rates: (draws, mean), and the share of images with at most RHO."""

    def two(share: float, often: float, rest: float) -> tuple[Law, float]:
        mean = share * often + (1 - share) * rest
        passing = float(rest <= RHO) * (1 - share) + float(often <= RHO) * share
        return (lambda rng, n: np.where(rng.random(n) < share, often, rest), mean), passing

    def beta(a: float, b: float) -> tuple[Law, float]:
        return (lambda rng, n: rng.beta(a, b, n), a / (a + b)), float(stats.beta.cdf(RHO, a, b))

    return {
        "one in 100 always, else .02": two(0.01, 1, 0.02),
        "one in 1,000 always, else .01": two(0.001, 1, 0.01),
        ".3 always, else never": two(0.3, 1, 0),
        ".3 at .4, .7 at .02": two(0.3, 0.4, 0.02),
        "all at .05": two(1, 0.05, 0),
        "none": two(1, 0, 0),
        "beta(.5, 8)": beta(0.5, 8),
        "beta(1, 2)": beta(1, 2),
        "beta(.05, 2)": beta(0.05, 2),
    }


def pr(sizes: Sequence[int], repeats: int, seed: int = 0) -> list[Row]:
    """PR_D over the source of the images, from COPIES copies of each."""
    rng, rows = np.random.default_rng(seed), []
    for shape, ((drawn, mean), _) in failure_rates().items():
        for n in sizes:
            tally = Tally()
            for _ in range(repeats):
                correct = COPIES - rng.binomial(COPIES, drawn(rng, n))
                tally.see(estimate.pr_d(correct.tolist(), COPIES).interval, 1 - mean)
            rows.append(tally.row("PR_D", shape, n))
    return rows


def quantiles(sizes: Sequence[int], repeats: int, seed: int = 0) -> list[Row]:
    """Each quantile of PR over the images that were drawn; the row is that of the worst one."""
    rng, rows = np.random.default_rng(seed), []
    for shape, ((drawn, _), _) in failure_rates().items():
        for n in sizes:
            tallies = {share: Tally() for share in estimate.SHARES}
            for _ in range(repeats):
                rates = drawn(rng, n)
                truth = np.sort(1 - rates)
                found = estimate.quantiles((COPIES - rng.binomial(COPIES, rates)).tolist(), COPIES)
                for entry in found:
                    rank = max(math.ceil(entry["share"] * n), 1)
                    tallies[entry["share"]].see(entry["ci95"], float(truth[rank - 1]))
            worst = min(tallies, key=lambda share: float(np.mean(tallies[share].hits)))
            rows.append(tallies[worst].row("quantiles of PR", shape, n, share=worst))
    return rows


def probacc(sizes: Sequence[int], repeats: int, seed: int = 0) -> list[Row]:
    """ProbAcc(RHO) over the source, from all copies and from tests that are wrong for one image in 20."""
    rng, rows = np.random.default_rng(seed), []
    for shape, ((drawn, _), passing) in failure_rates().items():
        for n in sizes:
            tally, tested = Tally(), Tally()
            for _ in range(repeats):
                rates = drawn(rng, n)
                failures = rng.binomial(COPIES, rates)
                tally.see(estimate.prob_acc((COPIES - failures).tolist(), COPIES, RHO).interval, passing)
                verdicts = np.where(rng.random(n) < 0.05, rates > RHO, rates <= RHO).astype(int)
                seen = zip(failures.tolist(), verdicts.tolist(), strict=True)
                decided = [[COPIES - k, COPIES, verdict] for k, verdict in seen]
                asked = estimate.Estimator(rho=(RHO,))
                (entry,) = estimate.stopped_findings(decided, asked, COPIES, adaptive=True)
                tested.see(entry["ci95"], passing)
            rows += [tally.row("ProbAcc", shape, n), tested.row("ProbAcc, --adaptive", shape, n)]
    return rows


def rare_rates() -> dict[str, Law]:
    """Distributions of rare failure probabilities, and their means."""

    def lognormal(mean: float, deviation: float) -> Law:
        grid = stats.norm.ppf((np.arange(2_000_000) + 0.5) / 2_000_000)
        truth = float(np.minimum(np.exp(mean + deviation * grid), 1).mean())
        return (lambda rng, n: np.minimum(rng.lognormal(mean, deviation, n), 1), truth)

    def pareto(least: float, index: float) -> Law:
        # P(p > x) = (least / x)^index up to 1: the mean is least plus the integral of it.
        mean = least + least**index * (1 - least ** (1 - index)) / (1 - index)
        return (lambda rng, n: np.minimum(least * rng.random(n) ** (-1 / index), 1), mean)

    return {
        "1 % at .1, else 1e-8": (
            lambda rng, n: np.where(rng.random(n) < 0.01, 0.1, 1e-8),
            0.001 + 0.99e-8,
        ),
        "log-normal, e^-18, sigma 3": lognormal(-18, 3),
        "log-normal, e^-9, sigma 3": lognormal(-9, 3),
        "Pareto, from 1e-6, index .7": pareto(1e-6, 0.7),
        "all at 1e-8": (lambda rng, n: np.full(n, 1e-8), 1e-8),
    }


def split_shares(rng: np.random.Generator, rates: np.ndarray, runs: int = 10) -> np.ndarray:
    """The logarithms (N, runs) of splitting's estimates if its particles were independent: 200, of which a
    tenth survives each level."""
    levels = np.floor(-np.log10(rates)).astype(int)
    logs = np.zeros((len(rates), runs))
    for level in range(int(levels.max()) + 1):
        chance = np.where(level < levels, 0.1, np.where(level == levels, rates * 10.0**levels, 1.0))
        with np.errstate(divide="ignore"):
            logs += np.log(rng.binomial(200, np.minimum(chance, 1)[:, None], logs.shape) / 200)
    return logs


def pfail(sizes: Sequence[int], repeats: int, seed: int = 0) -> list[Row]:
    """The mean failure probability over the source."""
    rng, rows = np.random.default_rng(seed), []
    for shape, (drawn, truth) in rare_rates().items():
        for n in sizes:
            tally = Tally()
            for _ in range(repeats):
                logs = split_shares(rng, drawn(rng, n))
                found = splitting.findings([[number, *row] for number, row in enumerate(logs.tolist())])
                tally.see(found["ci95"], truth)
            rows.append(tally.row("pfail", shape, n))
    return rows


def wilson(sizes: Sequence[int], repeats: int = 0, seed: int = 0) -> list[Row]:
    """The exact coverage of Wilson's interval over a grid of proportions, beside Clopper and Pearson's."""
    rows = []
    for name, interval in (("Wilson", intervals.wilson), ("Clopper-Pearson", intervals.clopper_pearson)):
        for n in sizes:
            ends = np.array([interval(k, n) for k in range(n + 1)])
            shares = (np.arange(999) + 1) / 1000
            first = np.searchsorted(ends[:, 1], shares)
            last = np.searchsorted(ends[:, 0], shares, "right") - 1
            coverage = stats.binom.cdf(last, n, shares) - stats.binom.cdf(first - 1, n, shares)
            width = float(f"{(ends[:, 1] - ends[:, 0]).mean():.3g}")
            for where, inside in (("(0, 1)", shares > 0), ("[.1, .9]", abs(shares - 0.5) < 0.4001)):
                row = {"interval": f"{name}, proportion in {where}", "n": n, "width": width}
                for shape, number in (("worst", coverage[inside].min()), ("mean", coverage[inside].mean())):
                    rows.append({**row, "shape": shape, "coverage": round(float(number), 4)})
    return rows


# Shares that the attack breaks, of each stratum: where the margin tells much, and where it tells nothing.
BROKEN = ((0.6, 0.03, 0.0), (0.3, 0.1, 0.01), (0.05, 0.05, 0.05), (0.02, 0.02, 0.02), (0.0, 0.0, 0.0))


# (size, goal) of runs
_SIZES: tuple[tuple[int, float], ...] = ((30, 0), (100, 0), (200, 0))
_GOALS: tuple[tuple[int, float], ...] = ((0, 0.02), (0, 0.01), (0, 0.005))


@functools.lru_cache(maxsize=1 << 16)
def _estimate(
    sizes: tuple[int, ...], sampled: tuple[int, ...], lost: tuple[int, ...], confidence: float
) -> two_phase.TwoPhaseEstimate:
    parts = [two_phase.Stratum(*part) for part in zip(sizes, sampled, lost, strict=True)]
    return two_phase.estimate(parts, confidence)


def _two_phase_run(
    rng: np.random.Generator, n: int, survivors: int, rates: Sequence[float], size: int, goal: float
) -> tuple[two_phase.TwoPhaseEstimate, int]:
    """The estimate of a run of a fixed size, or with a goal if that is above 0; and how many truly stand."""
    sizes = tuple(two_phase.sizes(survivors))
    broken = [round(rate * some) for rate, some in zip(rates, sizes, strict=True)]
    _, stratum = two_phase.order(np.arange(survivors, dtype=float), rng.random(survivors))
    outcomes = [rng.permutation(np.arange(some) < lost) for some, lost in zip(sizes, broken, strict=True)]
    confidence = two_phase.confidence_of_look(survivors) if goal else 0.95
    for look in two_phase.looks(survivors) if goal else [min(size, survivors)]:
        counts = tuple(np.bincount(stratum[:look], minlength=len(sizes)).tolist())
        lost = tuple(int(one[:some].sum()) for one, some in zip(outcomes, counts, strict=True))
        found = _estimate(sizes, counts, lost, confidence)
        if (found.interval[1] - found.interval[0]) / 2 / n <= goal:
            break
    return found, survivors - sum(broken)


def two_phases(sizes: Sequence[int], repeats: int, seed: int = 0, goals: bool = False) -> list[Row]:
    """The accuracy on just the n images, of which the screen leaves three in ten, or six."""
    rng, rows = np.random.default_rng(seed), []
    for n in sizes:
        for survivors in (3 * n // 10, 6 * n // 10):
            for rates in BROKEN:
                for size, goal in _GOALS if goals else _SIZES:
                    tally, errors = Tally(), []
                    for _ in range(repeats):
                        found, truth = _two_phase_run(rng, n, survivors, rates, size, goal)
                        tally.see([end / n for end in found.interval], truth / n)
                        errors.append((found.robust - truth) / n)
                    bias = float(np.mean(errors))
                    more = {"bias": round(bias, 5)} | ({"of_goal": round(bias / goal, 3)} if goal else {})
                    shape = f"{survivors} survivors, broken {rates}, "
                    shape += f"goal {goal}" if goal else f"sample of {size}"
                    rows.append(tally.row("two-phase", shape, n, **more))
    return rows


PARTS: dict[str, Callable[..., list[Row]]] = {
    "pr": pr,
    "quantiles": quantiles,
    "probacc": probacc,
    "pfail": pfail,
    "wilson": wilson,
    "two-phase": two_phases,
    "goal": functools.partial(two_phases, goals=True),
}


def rows(draws: int, seed: int) -> Iterator[Row]:
    """Every part at every number of images, for bench/coverage_of_intervals.py."""
    for name, part in PARTS.items():
        if name != "wilson":  # the other script has the accuracies
            yield from part(SIZES, draws, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", default=",".join(PARTS), help=f"what to simulate [{','.join(PARTS)}]")
    parser.add_argument("--repeats", type=int, default=1000, help="of each case [1000]")
    parser.add_argument("--n", default=",".join(map(str, SIZES)), help="numbers of images")
    args = parser.parse_args()
    for part in args.part.split(","):
        for row in PARTS[part](tuple(map(int, args.n.split(","))), args.repeats):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
