"""Two stopping rules that decide whether an image passes at a tolerated failure rate.

A rule has two tables, `passes` and `fails`, indexed by the number of failures f so far. After n samples, the
image passes if n >= passes[f], and fails if n <= fails[f].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

from rbtools.lazy import np, special

NEVER = 1 << 40

# The share of the stake on a failure rate of 0, which decides images without failures soonest. The rest is
# spread over (0, rho), so that images with a few failures are also decided, but later.
ON_ZERO = 0.99
# Failures are compared as counts: .01 * 100 may round to 1.0000000000000002 or to 1.0.
COUNT_SLACK = 1e-9


class Rule(NamedTuple):
    """The tables `passes` and `fails` are int64 (S,). Element i is for i failures, the last also for more."""

    passes: np.ndarray
    fails: np.ndarray


def allowed(samples: int, rho: float, above: bool = False) -> int:
    """Return the number of `samples` copies that may fail if PR must be at least 1 - rho or, with `above`,
    larger than 1 - rho, or -1 if even 0 failures are too many."""
    if above:
        return math.ceil(rho * samples - COUNT_SLACK) - 1
    return math.floor(rho * samples + COUNT_SLACK)


def needed(rho: float, confidence: float = 0.95) -> int | None:
    """Return the smallest number n of correct samples that shows a failure rate below rho, (1 - rho)^n <= 1 -
    confidence, such as 299 for rho .01 and 95 %. Returns None for rho 0, which no sample can show."""
    return math.ceil(math.log(1 - confidence) / math.log1p(-rho) - COUNT_SLACK) if rho > 0 else None


def too_few(rhos: Iterable[float], samples: int, confidence: float = 0.95) -> str | None:
    """Return why `samples` samples cannot decide every rho at this confidence, or None if they can."""
    for rho in rhos:
        least = needed(rho, confidence)
        if least is None:
            return "--rho 0 tolerates no failures, which no number of samples can show."
        if samples < least:
            return (
                f"{samples} samples cannot show a failure rate below {rho:g}. With {100 * confidence:g} %"
                f" confidence, this takes at least {least} samples, all of them correct."
            )
    return None


def undecided(samples: int, rho: float, confidence: float = 0.95) -> tuple[int, int]:
    """Return the smallest and largest number of failures in `samples` (0 or more) that do not decide if the
    rate is below rho, by the exact binomial test at level 1 - confidence."""
    counts = np.arange(samples + 1, dtype=float)
    level = 1 - confidence
    low = int((special.bdtr(counts, samples, rho) <= level).sum()) if rho > 0 else 0
    at_least = np.concatenate([[1.0], special.bdtrc(counts[:-1], samples, rho)]) if rho > 0 else counts == 0
    return low, samples - int((at_least <= level).sum())


@functools.lru_cache(maxsize=64)
def fixed(samples: int, rho: float, above: bool = False) -> Rule:
    """Return the rule that decides as all `samples` samples would, as soon as this decision is certain."""
    most = allowed(samples, rho, above)
    failures = np.arange(most + 2)
    passes = np.where(failures <= most, samples - most + failures, NEVER)
    return Rule(passes, np.where(failures <= most, -1, NEVER))


@functools.lru_cache(maxsize=64)
def anytime(samples: int, rho: float, confidence: float = 0.95) -> Rule:
    """Return a sequential test of the failure rate p against rho that is valid after every sample.

    An image with p >= rho passes at any time with probability at most 1 - confidence, and an image with p <=
    rho fails at any time with at most the same probability (Ville's inequality). Each decision corresponds to
    a bet against p = rho and is made when the wealth of the bet has grown by the factor 1 / (1 - confidence).
    The bet on passing puts 99 % of its stake on p = 0 and distributes 1 % evenly over (0, rho). The bet on
    failing is distributed evenly over (rho, 1). `rho` must be in (0, 1).
    """
    need = -math.log(1 - confidence)
    failures = np.arange(samples + 1)

    def first(wins: object, low: int) -> np.ndarray:
        """For each f, the smallest n in [f, samples + 1] for which the monotone `wins(f, n)` is true."""
        lower, upper = np.maximum(failures, low), np.full_like(failures, samples + 1)
        for _ in range(samples.bit_length() + 1):
            middle = (lower + upper) // 2
            won = wins(failures, middle) | (lower >= upper)  # type: ignore[operator]
            upper = np.where(won, np.minimum(upper, middle), upper)
            lower = np.where(won, lower, middle + 1)
        return upper

    passing = first(lambda f, n: _log_passing(f, n, rho) >= need, 1)
    lost = first(lambda f, n: _log_failing(f, n, rho) < need, 0)
    passes = np.where(passing <= samples, passing, NEVER)
    return Rule(passes, lost - 1)


def _log_passing(failures: np.ndarray, draws: np.ndarray, rho: float) -> np.ndarray:
    """The logarithm of the wealth of the bet that the failure rate is below rho."""
    right = draws - failures
    on_zero = np.where(failures == 0, math.log(ON_ZERO) - draws * math.log1p(-rho), -np.inf)
    with np.errstate(divide="ignore"):
        inside = np.log(special.betainc(failures + 1, right + 1, rho))
    spread = special.betaln(failures + 1, right + 1) + inside - math.log(rho)
    spread += math.log(1 - ON_ZERO) - failures * math.log(rho) - right * math.log1p(-rho)
    return np.asarray(np.logaddexp(on_zero, spread))


def _log_failing(failures: np.ndarray, draws: np.ndarray, rho: float) -> np.ndarray:
    """The logarithm of the wealth of the bet that the failure rate is above rho."""
    right = draws - failures
    with np.errstate(divide="ignore"):
        inside = np.log(special.betainc(right + 1, failures + 1, 1 - rho))
    worth = special.betaln(failures + 1, right + 1) + inside - math.log1p(-rho)
    return np.asarray(worth - failures * math.log(rho) - right * math.log1p(-rho))
