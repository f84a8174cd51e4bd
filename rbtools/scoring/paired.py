"""Comparison of two models on the same n images. The difference of the models' shares is (gained - lost) / n,
where `gained` images count only for the first model and `lost` images only for the second model."""

from __future__ import annotations

from typing import NamedTuple

from rbtools.lazy import np, special

_HALVINGS = 60
_TAIL = 0.025


class Comparison(NamedTuple):
    """A difference, its 95 % interval, and the p-value of the hypothesis that there is no difference."""

    difference: float
    ci95: tuple[float, float]
    p: float


def changed(first: np.ndarray, second: np.ndarray) -> tuple[int, int]:
    """The numbers of images that count only for the first and only for the second model, from bool (N,)."""
    return int((first & ~second).sum()), int((second & ~first).sum())


def interval(gained: np.ndarray, lost: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the 95 % intervals of differences; all arguments are counts (G,).

    The interval combines the mid-P intervals of the two shares (Zou, Psychol. Methods 12, 2007, for dependent
    estimates). If l and u are the ends for a and b, and r is their correlation, the lower end is a - b -
    sqrt(x^2 + y^2 - 2 r x y), with x = a - l_a and y = u_b - b. If the answers are equal for all images, the
    interval is -3 / n to 3 / n. `bench/paired_intervals.py` measures a coverage of .951 to .976 if the
    answers for five images differ on average; Tango's interval covers .931, Wald's .870, and Bonett and
    Price's .991.
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
    """The ends of mid-P intervals of shares (Berry and Armitage, The Statistician 44, 1995)."""
    different, places = np.unique(np.stack([count, images]), axis=1, return_inverse=True)
    low, high = _different_mid_p(*different)
    return low[places.ravel()], high[places.ravel()]


def _different_mid_p(count: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    def more(share: np.ndarray) -> np.ndarray:
        """The probability of more than `count`, plus half of the probability of exactly `count`."""
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
    """McNemar's exact two-sided p-values (G,) of the hypothesis that there is no difference (Psychometrika
    12, 1947). Under this hypothesis, the number of images gained follows Binomial(changed, 1/2)."""
    total = gained + lost
    below = special.bdtr(np.minimum(gained, lost), np.maximum(total, 1), 0.5)
    return np.where(total > 0, np.minimum(2 * below, 1), 1.0)


def holm(p: np.ndarray) -> np.ndarray:
    """Adjusts p-values (G,), so that with probability 95 % no difference is wrongly declared significant at
    .05 (Holm, Scand. J. Stat. 6, 1979)."""
    order = np.argsort(p, kind="stable")
    scaled = np.minimum(p[order] * np.arange(len(p), 0, -1), 1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(scaled)
    return adjusted


def of_means(difference: float, draws: np.ndarray, between: np.ndarray, freedom: np.ndarray) -> Comparison:
    """Compares two means over seeds.

    `draws` (B,) contains samples of the difference of the means, as if other test images had been used.
    `between` (2,) is the variance of each mean between its members, with `freedom` degrees of freedom. The
    p-value is from Student's distribution, with the degrees of freedom that `rank_sets` uses. The interval
    combines percentiles of the samples with Student's interval between members (Zou and Donner, Stat. Med.
    27, 2008).
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
