"""Comparison of two models on the same images.

Only images that count for exactly one of the models matter: of n images, `gained` count only for the first
model and `lost` only for the second one, and the difference of their shares is (gained - lost) / n.
"""

from __future__ import annotations

from typing import NamedTuple

from rbtools.lazy import np, special

_HALVINGS = 60
_TAIL = 0.025


class Comparison(NamedTuple):
    """A difference, its 95 % interval, and the p-value of no difference."""

    difference: float
    ci95: tuple[float, float]
    p: float


def changed(first: np.ndarray, second: np.ndarray) -> tuple[int, int]:
    """The numbers of images that count only for the first model, and only for the second. Both: bool (N,)."""
    return int((first & ~second).sum()), int((second & ~first).sum())


def interval(gained: np.ndarray, lost: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the 95 % intervals of differences; all arguments are counts (G,).

    The mid-P intervals of both shares are joined with the variance estimates that follow from their ends
    (Zou, Psychol. Methods 12, 2007, for dependent estimates: with l, u the ends of a and b, and r their
    correlation, the lower end is a - b - sqrt(x^2 + y^2 - 2 r x y), x = a - l_a, y = u_b - b). Without
    changes, this is -3 / n to 3 / n. `bench/paired_intervals.py` measures the coverage: .951 to .976 if five
    images change on average. In this case, Tango's interval falls to .931, Wald's to .870, and Bonett and
    Price's rises to .991.
    """
    first, second = gained / images, lost / images
    (low, high), (least, most) = (_mid_p(count, images) for count in (gained, lost))
    odds = first * second / np.maximum((1 - first) * (1 - second), 1e-300)
    correlation = -np.sqrt(np.minimum(odds, 1))
    below = _joined(first - low, most - second, correlation)
    above = _joined(high - first, second - least, correlation)
    return np.maximum(first - second - below, -1), np.minimum(first - second + above, 1)


def _joined(one: np.ndarray, other: np.ndarray, correlation: np.ndarray) -> np.ndarray:
    squared = one**2 + other**2 - 2 * correlation * one * other
    length: np.ndarray = np.sqrt(np.maximum(squared, 0))
    return length


def _mid_p(count: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the mid-P intervals of shares (Berry and Armitage, The Statistician 44, 1995)."""
    different, places = np.unique(np.stack([count, images]), axis=1, return_inverse=True)
    low, high = _different_mid_p(*different)
    return low[places.ravel()], high[places.ravel()]


def _different_mid_p(count: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    def more(share: np.ndarray) -> np.ndarray:
        """The probability of more than `count`, plus half the probability of `count`."""
        at_least = np.where(count > 0, special.bdtrc(count - 1, images, share), 1)
        above = np.where(count < images, special.bdtrc(count, images, share), 0)
        total: np.ndarray = (at_least + above) / 2
        return total

    def end(tail: float) -> np.ndarray:
        low, high = np.zeros(count.shape), np.ones(count.shape)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = np.where(more(middle) < tail, [middle, high], [low, middle])
        return high

    return np.where(count > 0, end(_TAIL), 0), np.where(count < images, end(1 - _TAIL), 1)


def mcnemar(gained: np.ndarray, lost: np.ndarray) -> np.ndarray:
    """McNemar's exact two-sided p-values (G,) of no difference (Psychometrika 12, 1947). Without a
    difference, the number of images gained follows Binomial(changed, 1/2)."""
    total = gained + lost
    below = special.bdtr(np.minimum(gained, lost), np.maximum(total, 1), 0.5)
    return np.where(total > 0, np.minimum(2 * below, 1), 1.0)


def holm(p: np.ndarray) -> np.ndarray:
    """p-values (G,), adjusted so that with probability 95 % none below .05 is wrong (Holm, Scand. J. Stat. 6,
    1979)."""
    order = np.argsort(p, kind="stable")
    scaled = np.minimum(p[order] * np.arange(len(p), 0, -1), 1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(scaled)
    return adjusted


def of_means(difference: float, draws: np.ndarray, between: np.ndarray, freedom: np.ndarray) -> Comparison:
    """The comparison of two means over seeds. draws (B,): draws of their difference, for other test images.

    between: (2,), the variance of each mean between its members; freedom: its degrees of freedom. The p-value
    is Student's, with the degrees of freedom of `rank_sets`. The interval joins percentiles of the draws with
    Student's interval between members (Zou and Donner, Stat. Med. 27, 2008).
    """
    seeds, images = float(between.sum()), float(draws.var(ddof=1))
    inverse = float((between / freedom).sum())
    half = special.stdtrit(seeds / inverse, 1 - _TAIL) * np.sqrt(seeds) if seeds else 0.0
    low, high = np.percentile(draws, [100 * _TAIL, 100 * (1 - _TAIL)]) - draws.mean()
    below, above = float(np.hypot(low, half)), float(np.hypot(high, half))
    ends = max(difference - below, -1.0), min(difference + above, 1.0)
    total = seeds + images
    if not total:
        return Comparison(difference, ends, float(difference == 0))
    degrees = total / (inverse + images / (len(draws) - 1))
    p = 2 * special.stdtr(degrees, -abs(difference) / np.sqrt(total))
    return Comparison(difference, ends, float(p))
