"""Figures of rb-card: coverage of its intervals, regret of its scheduler, time beside others' tools, pairs.

    python bench/card.py coverage [--runs 2000]
    python bench/card.py regret [--checkpoint FILE --data FOLDER]
    python bench/card.py peers --checkpoint FILE --data FOLDER [--n 64]
    python bench/card.py pair [--runs 2000]

coverage  of the anytime intervals, simulated: of runs that stop at the look where the value is highest, or
          lowest, or the interval shortest, and of all looks together
regret    mean half-width after a time, beside the best choice of looks in hindsight
peers     processor seconds of a card beside the sum of what it replaces, and whether its intervals hold
          their values; FILE and FOLDER as for bench/attacks.py
pair      images until the looks decide between two models, beside a fixed number with the same error

One JSON line a figure.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from common import show
from scipy import special

from rbtools.jobs.card_parts import Look, parts
from rbtools.probabilistic import looks, two_phase
from rbtools.probabilistic.looks import AnytimeInterval

IMAGES = 1000
Seen = tuple[float, AnytimeInterval]
of_sample = functools.lru_cache(1 << 16)(looks.of_sample)


@functools.lru_cache(1 << 16)
def _of_sorted(values: bytes, seen: float, sure: float) -> AnytimeInterval:
    return looks.of_mean(np.frombuffer(values), seen, sure)


def of_mean(values: np.ndarray, seen: float, sure: float) -> AnytimeInterval:
    """The intervals of the same values once only: those of zeros and ones are few."""
    return _of_sorted(np.sort(values).tobytes(), seen, sure)


# --- coverage -------------------------------------------------------------------------------------------


class Shape:
    """Values of one kind, one an image: how they are drawn, their true mean, and the looks at them."""

    def __init__(self, draw: Callable[[np.random.Generator, int], np.ndarray], truth: float) -> None:
        self.draw, self.truth = draw, truth
        self.plan = parts(8 / 255)["clean"].looks(IMAGES)
        self.sure = looks.confidence(len(self.plan))

    def mean(self, values: np.ndarray) -> float:
        return float(values.mean())

    def see(self, rng: np.random.Generator, values: np.ndarray) -> Iterator[Seen]:
        for look in self.plan:
            some = values[: look.n]
            yield float(some.mean()), of_mean(some, look.n / len(values), self.sure)


class Pairs(Shape):
    """Two models, right (2, N) as a shared difficulty of the images and noise of their own have it."""

    def mean(self, values: np.ndarray) -> float:
        return float((values[0] - values[1]).mean())

    def see(self, rng: np.random.Generator, values: np.ndarray) -> Iterator[Seen]:
        for look in self.plan:
            first, second = values[:, : look.n]
            seen = look.n / values.shape[1]
            yield float((first - second).mean()), looks.of_pairs(first, second, seen, self.sure)


class TwoPhase(Shape):
    """Rows (2, N): the margin under the screen, below 0 if that broke the image, and whether it stands.

    rates: of the survivors of each stratum that the attack breaks.
    """

    def __init__(self, left: float, rates: tuple[float, float, float]) -> None:
        edges = np.cumsum([0.05, 0.15])

        def draw(rng: np.random.Generator, n: int) -> np.ndarray:
            margins = rng.random(n)
            broken = rng.random(n) < np.array(rates)[np.searchsorted(edges, margins)]
            screened = rng.random(n) >= left
            return np.stack([np.where(screened, -1, margins), ~screened & ~broken])

        super().__init__(draw, left * (1 - float(np.dot((0.05, 0.15, 0.8), rates))))
        self.plan = parts(8 / 255)["attack"].looks(IMAGES)
        self.sure = looks.confidence(len(self.plan))

    def mean(self, values: np.ndarray) -> float:
        return float(values[1].mean())

    def see(self, rng: np.random.Generator, values: np.ndarray) -> Iterator[Seen]:
        keys = rng.random(values.shape[1])
        for look in self.plan:
            if look.attacked == 0:  # the screen alone has no interval of the attack
                continue
            margins, stands = values[:, : look.n]
            left = np.flatnonzero(margins >= 0)
            order, stratum = two_phase.order(margins[left], keys[left])
            size = len(left) if look.attacked is None else min(look.attacked, len(left))
            strata = two_phase.strata(len(left), stratum[:size], stands[left][order[:size]])
            value = two_phase.estimate(strata).robust / look.n
            yield value, of_sample(tuple(strata), value, look.n, look.n / values.shape[1], self.sure)


def bernoulli(p: float) -> Shape:
    return Shape(lambda rng, n: (rng.random(n) < p).astype(float), p)


def skewed(rng: np.random.Generator, n: int) -> np.ndarray:
    """Shares of 100 copies: 80 % of the images are right on all, 15 % on most, 5 % on any share."""
    kind = rng.random(n)
    rates = np.where(kind < 0.8, 1.0, np.where(kind < 0.95, rng.beta(20, 1, n), rng.random(n)))
    return rng.binomial(100, rates) / 100


def pairs(rng: np.random.Generator, n: int, gap: float = 0.05, own: float = 0.3) -> np.ndarray:
    """Right (2, N): accuracies of .7 + gap and .7; with own = .3 they disagree about a tenth of the images."""
    hard = rng.standard_normal(n)
    scores = (hard + own * rng.standard_normal((2, n))) / np.hypot(1, own)
    ends = special.ndtri(np.array([[0.7 + gap], [0.7]]))
    return (scores < ends).astype(float)


SHAPES: dict[str, Shape] = {
    "Bernoulli, .5": bernoulli(0.5),
    "Bernoulli, .03": bernoulli(0.03),
    "Bernoulli, .003": bernoulli(0.003),
    "skewed, in [0, 1]": Shape(skewed, 0.8 + 0.15 * 20 / 21 + 0.05 / 2),
    "two-phase, the margin tells": TwoPhase(0.5, (0.4, 0.1, 0.01)),
    "two-phase, the margin tells nothing": TwoPhase(0.5, (0.03, 0.03, 0.03)),
    "paired difference, .05": Pairs(pairs, 0.05),
}


def coverage(args: argparse.Namespace) -> None:
    for name, shape in SHAPES.items():
        rng = np.random.default_rng([args.seed, *name.encode()])
        held: dict[str, list[np.ndarray]] = {}
        for _ in range(args.runs):
            values = shape.draw(rng, IMAGES)
            seen = list(shape.see(rng, values))
            truths = shape.truth, shape.mean(values)
            ends = np.array([both for _, both in seen])  # (looks, 2, 2)
            right = (ends[:, :, 0] <= np.add(truths, 1e-12)) & (ends[:, :, 1] >= np.subtract(truths, 1e-12))
            means, lengths = np.array([value for value, _ in seen]), np.diff(ends[:, 0])[:, 0]
            at = {"highest": means.argmax(), "lowest": means.argmin(), "shortest": lengths.argmin()}
            for rule, place in at.items():
                held.setdefault(rule, []).append(right[place])
            held.setdefault("every look", []).append(right.all(0))
        for rule, rows in held.items():
            source, everything = np.mean(rows, 0)
            about = {"of_source": round(source, 4), "of_all": round(everything, 4), "goal": 0.95}
            show(f"coverage: {name}: {rule}", **about, runs=args.runs, looks=len(shape.plan))


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {"coverage": coverage}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="+", choices=PARTS, help="what to measure")
    parser.add_argument("--runs", type=int, default=2000, help="of each simulation [2000]")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for part in args.part:
        PARTS[part](args)


if __name__ == "__main__":
    main()
