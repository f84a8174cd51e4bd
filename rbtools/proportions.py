"""Wilson's interval of a proportion, which is used for all accuracies and does not need numpy."""

from __future__ import annotations

import functools
import math

Interval = tuple[float, float]


@functools.lru_cache(maxsize=64)
def normal_quantile(confidence: float) -> float:
    """Return the z for which P(|Z| <= z) = confidence (1.96 for 0.95), where Z is standard normal."""
    from statistics import NormalDist

    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    return NormalDist().inv_cdf((1 + confidence) / 2)


def check_counts(successes: float, trials: float) -> None:
    """Raise ValueError unless `trials` is at least 1 and `successes` is between 0 and `trials`."""
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials is not a proportion")


def wilson(successes: float, trials: float, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion, with continuity correction (Newcombe 1998, method 4).

    With the correction, the coverage is at least .948 from 10 trials on (`bench/coverage_of_intervals.py`).
    Without the correction, the coverage falls to .84 if fewer than one success (or failure) is expected. Each
    end of the interval moves by about 1 / (2 trials), and stays in [0, 1]. Unlike the interval of Clopper and
    Pearson, this interval needs no scipy.
    """
    check_counts(successes, trials)
    z2 = normal_quantile(confidence) ** 2
    share = successes / trials

    def reach(hits: float, misses: float) -> float:
        root = math.sqrt(max(z2 - 2 - 1 / trials + 4 * hits / trials * (misses + 1), 0.0))
        return (2 * hits + z2 - 1 - math.sqrt(z2) * root) / (2 * (trials + z2))

    low = 0.0 if successes <= 0 else max(0.0, reach(successes, trials - successes))
    high = 1.0 if successes >= trials else min(1.0, 1 - reach(trials - successes, successes))
    return min(low, share), max(high, share)
