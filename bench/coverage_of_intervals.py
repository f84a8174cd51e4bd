"""How often the 95 % intervals hold the truth, by simulation where it is known.

python bench/coverage_of_intervals.py [--draws 2000] [--part NAME,...]

Results of n = 10, 50, 1000 and 10,000 images go through the functions that make the intervals of records.
No network is trained. It prints a table in Markdown, a row for each interval, shape of the truth and n: the
share of intervals that hold it, and their mean width.

accuracy   Wilson's, of every accuracy and certified accuracy, by exact sums: at some p, the least of a grid
gap        rb-ge: differences of two accuracies, from n test images and 5 n of training
mean       rb-corrupt: means over 5 and 75 accuracies on the same images
loss       rb-ge loss, and margins and distances of rb-measure: means of numbers of any range
batches    rb-measure: means over batches; rb-search: means over runs
rank       rb-rank --ci: ranks and values of ten close models, alone, over three seeds, of means of metrics
corr       rb-corr --bootstrap: Kendall's tau and Spearman's rho of n records (to 1000; 100 resamples)
pr         rb-pr: PR_D, quantiles, ProbAcc of images whose failure rates come from known distributions
pfail      rb-pr --rare: the mean of rare failure probabilities, from ten runs of splitting of each image
two-phase  rb-attack --two-phase: the accuracy on just these images, of a fixed size and with a goal

With --draws 2000 a share is known to half a point (standard error at .95); costly rows take fewer, as the
table says. Intervals of one draw (ten models) depend on each other.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import stats

from rbtools.evaluation.under_corruption import mean_over
from rbtools.jobs import measurement
from rbtools.measures.base import over_batches
from rbtools.probabilistic import estimate, splitting, two_phase
from rbtools.probabilistic.intervals import of_images, square_and_add, wilson
from rbtools.scoring import bootstrap, correlate
from rbtools.scoring.rank_order import SortKey
from rbtools.search.summary import spread

SIZES = (10, 50, 1000, 10_000)
COPIES, RHO = 100, 0.1  # of rb-pr
Row = dict[str, Any]
Law = tuple[Callable[[np.random.Generator, int], np.ndarray], float]


class Tally:
    """Intervals of one kind: how often they hold the truth, and how wide they are."""

    def __init__(self) -> None:
        self.hits: list[bool] = []
        self.widths: list[float] = []

    def see(self, ends: Any, least: float, most: float | None = None) -> None:
        """Count an interval that should hold `least`, and all up to `most`."""
        low, high = ends
        self.hits.append(bool(low - 1e-12 <= least and (least if most is None else most) <= high + 1e-12))
        self.widths.append(float(high - low))

    def row(self, interval: str, shape: str, n: int) -> Row:
        return {
            "interval": interval,
            "shape": shape,
            "n": n,
            "coverage": float(np.mean(self.hits)),
            "width": float(np.mean(self.widths)),
            "draws": len(self.hits),
        }


def accuracies(draws: int, rng: np.random.Generator) -> Iterator[Row]:
    for n in SIZES:
        ends = np.array([wilson(k, n) for k in range(n + 1)])

        def exact(p: np.ndarray, ends: np.ndarray = ends, n: int = n) -> np.ndarray:
            first = np.searchsorted(ends[:, 1], p - 1e-12)  # the least count whose interval reaches p
            last = np.searchsorted(ends[:, 0], p + 1e-12, side="right") - 1
            held: np.ndarray = stats.binom.cdf(last, n, p) - stats.binom.cdf(first - 1, n, p)
            return held

        shapes = {f"p = {p}": np.array([p]) for p in (0.5, 0.8, 0.95, 0.99, 0.999)}
        grid = np.linspace(0, 1, 20_001)[1:-1]
        lowest = grid[np.argmin(exact(grid))]
        shapes |= {"least of a grid of 20,000 p": np.array([lowest]), "mean of the grid": grid}
        for shape, p in shapes.items():
            weights = stats.binom.pmf(np.arange(n + 1)[:, None], n, p[::40])
            width = np.mean((ends[:, 1] - ends[:, 0]) @ weights)
            held = exact(p).mean()
            yield {"interval": "accuracy", "shape": shape, "n": n, "coverage": held, "width": width}


def gaps(draws: int, rng: np.random.Generator) -> Iterator[Row]:
    for n in SIZES:
        for train, test in ((0.6, 0.5), (0.95, 0.8), (0.999, 0.99), (1.0, 0.9), (1.0, 0.999)):
            tally = Tally()
            counts = zip(rng.binomial(5 * n, train, draws), rng.binomial(n, test, draws), strict=True)
            for right, known in counts:
                a, b = int(right) / (5 * n), int(known) / n
                ends = square_and_add(a, wilson(int(right), 5 * n), b, wilson(int(known), n))
                tally.see(ends, train - test)
            yield tally.row("gap of accuracies", f"{train} on train, {test} on test", n)


def means(draws: int, rng: np.random.Generator) -> Iterator[Row]:
    easy = {
        "beta(2, 1)": (2.0, 1.0),
        "beta(.3, .1)": (0.3, 0.1),
        "alike, .9": (9e6, 1e6),
        "beta(9, .1)": (9.0, 0.1),
    }
    for n in SIZES:
        for several in (5, 75):
            for shape, (a, b) in easy.items():
                tally = Tally()
                for _ in range(draws if n * several < 5000 else max(draws * 5000 // (n * several), 100)):
                    right = rng.binomial(1, rng.beta(a, b, n), (several, n))
                    parts = [{"corruption": "c", "severity": number, "n": n} for number in range(several)]
                    correct = {("c", number): row for number, row in enumerate(right)}
                    tally.see(mean_over(correct, parts), a / (a + b))
                yield tally.row(f"mean over {several} accuracies", f"images right in {shape}", n)


def laws() -> dict[str, Law]:
    def rare(share: float) -> Law:
        def drawn(rng: np.random.Generator, n: int) -> np.ndarray:
            return np.where(rng.random(n) < share, rng.exponential(5, n), rng.exponential(0.05, n))

        return drawn, share * 5 + (1 - share) * 0.05

    return {
        "normal": (lambda rng, n: rng.normal(3, 1, n), 3.0),
        "exponential": (lambda rng, n: rng.exponential(1, n), 1.0),
        "log-normal, sigma 1": (lambda rng, n: rng.lognormal(0, 1, n), math.exp(0.5)),
        "log-normal, sigma 1.5": (lambda rng, n: rng.lognormal(0, 1.5, n), math.exp(1.125)),
        "log-normal, sigma 2": (lambda rng, n: rng.lognormal(0, 2, n), math.exp(2)),
        "Pareto, 2.5": (lambda rng, n: rng.pareto(2.5, n) + 1, 2.5 / 1.5),
        "100 times greater in 1 of 20": rare(0.05),
        "100 times greater in 1 of 100": rare(0.01),
    }


def losses(draws: int, rng: np.random.Generator) -> Iterator[Row]:
    for n in SIZES:
        for shape, (drawn, mean) in laws().items():
            alone, gap = Tally(), Tally()
            for _ in range(draws):
                test, train = drawn(rng, n), 0.2 * drawn(rng, n)
                ends = [of_images(side, 0.0) for side in (test, train)]
                alone.see(ends[0], mean)
                gap.see(square_and_add(float(test.mean()), ends[0], float(train.mean()), ends[1]), 0.8 * mean)
            yield alone.row("loss, distance", shape, n)
            yield gap.row("gap of losses", shape, n)


def batches(draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Means of 256 images over n batches; means over n runs, also of values that are skewed."""
    for n in (2, *SIZES[:3]):
        job: Any = SimpleNamespace(measure=SimpleNamespace(probes=n), n=256 * n, batches=n)
        for shape, (drawn, mean) in laws().items():
            tally, runs = Tally(), Tally()
            for _ in range(draws if n < 1000 else draws // 10):
                numbers = drawn(rng, 256 * n).reshape(n, 256).mean(1)
                tally.see(
                    measurement._number(over_batches("m", numbers.tolist(), [256] * n), job)["ci95"], mean
                )
            yield tally.row("mean over batches of 256", shape, n)
        for shape, power in (("normal", None), ("best of ten uniform ones", 10)):
            runs, mean = Tally(), 0.0 if power is None else power / (power + 1)
            for _ in range(draws):
                values = rng.normal(size=n) if power is None else rng.random(n) ** (1 / power)
                runs.see(spread(values.tolist())["ci95"], mean)
            yield runs.row("mean over runs", shape, n)


def record(name: int, rows: np.ndarray) -> Row:
    """A record with an accuracy of each of rows (M, N) of outcomes."""
    evals = [
        {"metric": f"m.{number}", "value": int(row.sum()) / len(row), "n": len(row)}
        for number, row in enumerate(rows)
    ]
    metrics = {entry["metric"]: entry["value"] for entry in evals}
    return {"checkpoint": str(name), "metrics": metrics, "evals": evals}


def ranked(rows: np.ndarray, seed: int, stored: bool, key: str) -> list[bootstrap.Interval]:
    """What rb-rank --ci gives to models (G) over seeds (S) with metrics (M): outcomes (G, S, M, N)."""
    every = np.ones(rows.shape[-1], np.float32)
    flat = rows.reshape(-1, *rows.shape[2:])

    def shares(record: Any, entry: Any) -> Any:
        number = int(entry["metric"].split(".")[1])
        return (flat[int(record["checkpoint"])][number], every) if stored else None

    draws = bootstrap.BootstrapDraws(300, seed, shares)
    records = [record(name, row) for name, row in enumerate(flat)]
    size = rows.shape[1]
    members = [records[start : start + size] for start in range(0, len(records), size)]
    return bootstrap.of_ranking(draws, SortKey(key, True), members)


def ranks(draws: int, rng: np.random.Generator) -> Iterator[Row]:
    models = {
        "ten equal, .5": np.full(10, 0.5),
        "ten equal, .99": np.full(10, 0.99),
        "ten, .2 points apart": 0.9 - 0.002 * np.arange(10),
        "ten, .97 to .999": np.linspace(0.999, 0.97, 10),
        "ten, 2 points apart": 0.6 - 0.02 * np.arange(10),
    }
    kinds = {
        "one seed": (1, 1, "m.0"),
        "three seeds": (3, 1, "m.0"),
        "mean of 4 metrics": (1, 4, "mean(m.*)"),
    }
    for n in (10, 20, 50, 100, 1000, 10_000):
        for shape, true in models.items():
            for what, (seeds, metrics, key) in kinds.items():
                if n in (20, 100) and what != "one seed":
                    continue
                for stored in (True, False):
                    place, value = Tally(), Tally()
                    cost = n * seeds * metrics
                    for seed in range(max(draws // 10 if cost < 1000 else draws * 20 // cost, 10)):
                        hard = math.sqrt(0.6) * rng.standard_normal(n)
                        own = math.sqrt(0.35) * rng.standard_normal((10, seeds, 1, n))
                        noise = math.sqrt(0.05) * rng.standard_normal((10, seeds, metrics, n))
                        skill = stats.norm.ppf(true) * (math.sqrt(1.01) if seeds > 1 else 1)
                        skill = skill[:, None] + (0.1 * rng.standard_normal((10, seeds)) if seeds > 1 else 0)
                        rows = (hard + own + noise < skill[:, :, None, None]).astype(np.float32)
                        for one, own_true in zip(ranked(rows, seed, stored, key), true, strict=True):
                            value.see(one.value, own_true)
                            place.see(one.rank, 1 + (true > own_true).sum(), (true >= own_true).sum())
                    source = "outcomes" if stored else "value and n"
                    yield place.row(f"rank, {what}, {source}", shape, n)
                    yield value.row(f"rb-rank's value, {what}, {source}", shape, n)


def correlations(draws: int, rng: np.random.Generator) -> Iterator[Row]:
    def normal(tau: float) -> Callable[[int], np.ndarray]:
        strength = math.sin(math.pi * tau / 2)
        return lambda n: rng.multivariate_normal([0, 0], [[1, strength], [strength, 1]], n)

    def cluster(n: int) -> np.ndarray:
        return rng.standard_normal((n, 2)) + 8 * (rng.random((n, 1)) < 0.1)

    shapes = {f"normal, tau {tau}": normal(tau) for tau in (0, 0.3, 0.6, 0.9, 0.95)}
    shapes |= {"normal, tau .6, rounded": lambda n: normal(0.6)(n).round(), "1 of 10 far away": cluster}
    for shape, drawn in shapes.items():
        for kind in correlate.KINDS:
            many = [drawn(3000) for _ in range(40)]
            names = ["a", "b"]
            true = np.mean([correlate.matrix(kind, names, x, ["a"], ["b"]).value[0, 0] for x in many])
            for n, size in ((10, draws // 4), (50, draws // 4), (1000, draws // 20)):
                tally = Tally()
                for seed in range(size):
                    of = correlate.matrix(kind, names, drawn(n), ["a"], ["b"], bootstrap=100, seed=seed)
                    if of.low is not None and of.high is not None and of.value[0, 0] == of.value[0, 0]:
                        tally.see((of.low[0, 0], of.high[0, 0]), true)
                yield tally.row(f"{kind}, records", shape, n)


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


def probabilistic(draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """PR_D and ProbAcc(RHO) over the source of the images, from COPIES copies of each; ProbAcc from tests
    that are wrong for one image in 20; the worst of the quantiles of PR over the images that were drawn.
    """
    for shape, ((drawn, mean), passing) in failure_rates().items():
        for n in SIZES:
            pr, acc, tested = Tally(), Tally(), Tally()
            quantiles = {share: Tally() for share in estimate.SHARES}
            for _ in range(draws):
                rates = drawn(rng, n)
                correct = (COPIES - rng.binomial(COPIES, rates)).tolist()
                pr.see(estimate.pr_d(correct, COPIES).interval, 1 - mean)
                for entry in estimate.quantiles(correct, COPIES):
                    rank = max(math.ceil(entry["share"] * n), 1)
                    quantiles[entry["share"]].see(entry["ci95"], float(np.sort(1 - rates)[rank - 1]))
                acc.see(estimate.prob_acc(correct, COPIES, RHO).interval, passing)
                verdicts = np.where(rng.random(n) < 0.05, rates > RHO, rates <= RHO).astype(int)
                decided = [
                    [k, COPIES, verdict] for k, verdict in zip(correct, verdicts.tolist(), strict=True)
                ]
                (entry,) = estimate.stopped_findings(
                    decided, estimate.Estimator(rho=(RHO,)), COPIES, adaptive=True
                )
                tested.see(entry["ci95"], passing)
            worst = min(quantiles.values(), key=lambda tally: float(np.mean(tally.hits)))
            names = {"PR_D": pr, "quantiles of PR": worst, "ProbAcc": acc, "ProbAcc, --adaptive": tested}
            yield from (tally.row(name, shape, n) for name, tally in names.items())


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
        "1 % at .1, else 1e-8": (lambda rng, n: np.where(rng.random(n) < 0.01, 0.1, 1e-8), 0.001 + 0.99e-8),
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


def pfail(draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """The mean failure probability over the source."""
    for shape, (drawn, truth) in rare_rates().items():
        for n in SIZES[:3]:
            tally = Tally()
            for _ in range(draws):
                logs = split_shares(rng, drawn(rng, n))
                found = splitting.findings([[number, *row] for number, row in enumerate(logs.tolist())])
                tally.see(found["ci95"], truth)
            yield tally.row("pfail", shape, n)


# Shares that the attack breaks, of each stratum: where the margin tells much, and where it tells nothing.
BROKEN = ((0.6, 0.03, 0.0), (0.3, 0.1, 0.01), (0.05, 0.05, 0.05), (0.02, 0.02, 0.02), (0.0, 0.0, 0.0))


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


def two_phases(draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """The accuracy on just the n images, of which the screen leaves three in ten, or six."""
    for n, left, rates in itertools.product(SIZES, (0.3, 0.6), BROKEN):
        survivors = round(left * n)
        for size, goal in ((30, 0), (100, 0), (200, 0), (0, 0.02), (0, 0.01), (0, 0.005)):
            tally, errors = Tally(), []
            for _ in range(draws):
                found, truth = _two_phase_run(rng, n, survivors, rates, size, goal)
                tally.see([end / n for end in found.interval], truth / n)
                errors.append((found.robust - truth) / n)
            shape = f"{left} survive, broken {rates}, "
            shape += f"goal {goal}, bias {np.mean(errors) / goal:.2f} of it" if goal else f"sample of {size}"
            yield tally.row("two-phase", shape, n)


PARTS: dict[str, Callable[[int, np.random.Generator], Iterator[Row]]] = {
    "accuracy": accuracies,
    "gap": gaps,
    "mean": means,
    "loss": losses,
    "batches": batches,
    "rank": ranks,
    "corr": correlations,
    "pr": probabilistic,
    "pfail": pfail,
    "two-phase": two_phases,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", default=",".join(PARTS), help=f"what to simulate [{','.join(PARTS)}]")
    parser.add_argument("--draws", type=int, default=2000, help="of each row")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for part in args.part.split(","):
        rows = list(PARTS[part](args.draws, np.random.default_rng([args.seed, *part.encode()])))
        usual = "exact" if part == "accuracy" else args.draws
        print("\n".join(table([{"draws": usual, **row} for row in rows])), flush=True)


def table(rows: list[Row]) -> Iterator[str]:
    """A line for each interval and shape: at each n the coverage, and the mean width in brackets."""
    sizes = sorted({row["n"] for row in rows})
    yield "| interval | shape | " + " | ".join(f"n = {n}" for n in sizes) + " | draws |"
    yield "|---" * (len(sizes) + 3) + "|"
    for name, shape in dict.fromkeys((row["interval"], row["shape"]) for row in rows):
        of = {row["n"]: row for row in rows if (row["interval"], row["shape"]) == (name, shape)}
        cells = [f"{of[n]['coverage']:.3f} ({of[n]['width']:.2g})" if n in of else "" for n in sizes]
        draws = ", ".join(dict.fromkeys(str(row["draws"]) for row in of.values()))
        yield f"| {name} | {shape} | " + " | ".join(cells) + f" | {draws} |"


if __name__ == "__main__":
    main()
