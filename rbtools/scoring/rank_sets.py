"""Intervals of ranks, from tests of all pairs of numbers. The rank of a number is 1 plus the number of truly
better numbers. If numbers are close, the ranks in bootstrap resamples do not form a valid interval: each
order of ten truly equal numbers is possible, but the first number in a resample is almost never the tenth
(Hall and Miller, Ann. Stat. 37, 2009). Therefore, each number is compared with all others at a simultaneous
level of 5 %. The lower end of a rank's interval follows from the number of significantly better numbers, and
the upper end from the number of significantly worse numbers (Mogstad, Romano, Shaikh and Wilhelm, Rev. Econ.
Stud. 91, 2024). Instead of their bootstrap, we use Bonferroni's bound, which is valid for any dependence
between the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rbtools.lazy import np, special

_LEVEL = 0.05
_BLOCK = 256  # consecutive numbers that are compared at once with all numbers near them
_GRID = 200  # degrees of freedom at which Student's quantile is computed; others are interpolated


class Drawn(NamedTuple):
    """Bootstrap samples (G, B) of numbers (G,), and the variance between the members of groups.

    `between` (G,) is the variance of each number between its members, which the samples do not contain, and
    `freedom` (G,) is the degrees of freedom of this variance. `rarity` (G,) is 1 / n for n images behind a
    number, or 0 if n is large or unknown. `joint` is true if the samples of different numbers are dependent.
    """

    draws: np.ndarray
    between: np.ndarray
    freedom: np.ndarray
    rarity: np.ndarray
    joint: bool


def rank_sets(drawn: Drawn, higher: bool) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest rank (G,) of each number, which are the ends of a 95 % interval.

    If several numbers are truly equal, each of them has several true ranks, and the interval contains all of
    these ranks. Only close numbers are compared, so G numbers need G log G steps and one step for each close
    pair.
    """
    count, size = drawn.draws.shape
    if count < 2:
        return np.ones(count, int), np.ones(count, int)
    first = drawn.draws[:, :1]
    moved = drawn.draws - first  # exactly 0 for numbers without variance
    centre = (first + moved.mean(1, keepdims=True))[:, 0] * (-1 if higher else 1)
    order = np.argsort(centre, kind="stable")
    centre = centre[order]
    moved -= moved.mean(1, keepdims=True)
    moved /= np.sqrt(size - 1)
    moved = moved[order]
    spread = _Spread(moved, drawn.between[order], drawn.freedom[order], drawn.joint)
    critical, most = _critical(count, spread)
    rarity = drawn.rarity[order]
    reach = spread.most() * most / np.sqrt(np.maximum(1 - most**2 * (rarity + rarity.max()) / 2, 1e-9))
    better, worse = np.empty(count, int), np.empty(count, int)
    for start in range(0, count, _BLOCK):
        rows = slice(start, min(start + _BLOCK, count))
        far = reach[rows].max()
        low = int(np.searchsorted(centre, centre[rows][0] - far))
        high = int(np.searchsorted(centre, centre[rows][-1] + far, side="right"))
        near = slice(low, high)
        apart = centre[rows, None] - centre[near]
        variance, inverse = spread.of_pairs(rows, near)
        # If both were equal, the variance would be larger by their squared difference / number of images.
        variance += apart**2 * (rarity[rows, None] + rarity[near]) / 2
        least = critical(inverse) * np.sqrt(variance)
        better[rows] = low + (apart > least).sum(1)
        worse[rows] = count - high + (-apart > least).sum(1)
    ends = np.empty((2, count), int)
    ends[:, order] = better + 1, count - worse
    return ends[0], ends[1]


class _Spread:
    """Variances of differences. The squares of the centred samples `moved` (G, B) add up to variances."""

    def __init__(self, moved: np.ndarray, between: np.ndarray, freedom: np.ndarray, joint: bool) -> None:
        self.moved, self.between, self.freedom, self.joint = moved, between, freedom, joint
        self.variance = (moved**2).sum(1)
        self.grouped = bool(between.any())
        self.inverse = 1 / (moved.shape[1] - 1)  # 1 / degrees of freedom of the samples' variances

    def most(self) -> np.ndarray:
        """The largest possible standard deviation (G,) of a difference from each number."""
        deviation, between = np.sqrt(self.variance), self.between
        most: np.ndarray = np.sqrt((deviation + deviation.max()) ** 2 + between + between.max())
        return most

    def of_pairs(self, rows: slice, near: slice) -> tuple[np.ndarray, np.ndarray]:
        """The variances (R, N) of differences, and the inverse degrees of freedom of these variances. The
        inverse degrees of freedom are averaged with the sizes of a variance's parts as weights. With Welch's
        squared weights, the coverage is a few per cent too low for groups of two and three."""
        variance = self.variance[rows, None] + self.variance[near]
        if self.joint:
            variance -= 2 * self.moved[rows] @ self.moved[near].T
            np.maximum(variance, 0, out=variance)
        if not self.grouped:
            return variance, np.full(1, self.inverse)
        parts = self.between / self.freedom
        total = variance + self.between[rows, None] + self.between[near]
        inverse = np.full(total.shape, self.inverse)
        weighted = variance * self.inverse + parts[rows, None] + parts[near]
        return total, np.divide(weighted, total, out=inverse, where=total > 0)


def _critical(count: int, spread: _Spread) -> tuple[Callable[[np.ndarray], np.ndarray], float]:
    """Returns a function from 1 / degrees of freedom to Student's quantile for one of `count` numbers, and
    the function's largest value. The function is convex, so interpolated values are never too small."""
    inverses = 1 / spread.freedom[spread.between > 0]
    least, most = (end(inverses, initial=spread.inverse) for end in (np.min, np.max))
    grid = np.linspace(least, most, _GRID if most > least else 1)
    quantiles = special.stdtrit(1 / grid, 1 - _LEVEL / 2 / (count - 1))
    return lambda inverse: np.interp(inverse, grid, quantiles), float(quantiles[-1])
