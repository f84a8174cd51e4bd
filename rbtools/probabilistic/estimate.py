"""Estimates from counts: PR_D(gamma) and ProbAcc(rho).

The input is a count for each image: the number of its N noisy copies that were classified correctly, or -1 if
the image is excluded. PRBench averages over the images that are correct without noise; advbench counts every
image.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rbtools.lazy import special
from rbtools.probabilistic import mixing, sequential
from rbtools.probabilistic.intervals import Interval, clopper_pearson, mean_interval

# The quantiles of the images' PR in an entry, with more detail at the low end.
SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5)
INTERVALS = 3  # version of the intervals of PR_D, quantiles, ProbAcc and pfail, for the keys of results


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """Settings of the estimates. `denominator` is "correct" (images classified correctly without noise) or
    "all". `passes` is "at-least" for PR >= 1 - rho (PRBench's paper), or "above" for PR > 1 - rho (its
    code)."""

    rho: tuple[float, ...] = (0.1, 0.05, 0.01)
    denominator: str = "correct"
    passes: str = "at-least"
    confidence: float = 0.95

    @property
    def criterion(self) -> str:
        """The criterion that an image must meet, in the notation of an entry."""
        return {"at-least": "PR >= 1 - rho", "above": "PR > 1 - rho"}[self.passes]

    def allowed(self, samples: int, rho: float) -> int:
        return sequential.allowed(samples, rho, self.passes == "above")


@dataclass(frozen=True)
class Estimate:
    """A value from `n` images with its confidence interval, or the reason why there is no value. `interval`
    is None if and only if `value` is None."""

    value: float | None
    interval: Interval | None
    n: int
    confidence: float = 0.95
    reason: str | None = None

    def entry(self) -> dict[str, Any]:
        """Return the fields of an `evals` entry: value, n, ci95 (or ci99 for another confidence), reason."""
        fields: dict[str, Any] = {"value": self.value, "n": self.n}
        if self.interval is not None:
            fields[interval_name(self.confidence)] = list(self.interval)
        if self.reason is not None:
            fields["reason"] = self.reason
        return fields


def pr_d(correct: Sequence[int], samples: int, confidence: float = 0.95) -> Estimate:
    """PR_D: the fraction of `samples` noisy copies that are classified correctly, averaged over images.

    The interval is for the mean over the distribution from which the images are drawn independently
    (`mean_interval`). An interval that treats the images * samples copies as independent would be too narrow.
    An interval from the deviation between images would also be too narrow if most kinds of failing images are
    missing from the sample.
    """
    counts = _counted(correct, samples)
    if not counts:
        return _nothing_counted(correct, confidence)
    different = Counter(counts)
    shares = [count / samples for count in different]
    interval = mean_interval(shares, list(different.values()), confidence)
    return Estimate(sum(counts) / (len(counts) * samples), interval, len(counts), confidence)


def prob_acc(
    correct: Sequence[int], samples: int, rho: float, confidence: float = 0.95, above: bool = False
) -> Estimate:
    """ProbAcc(rho): the fraction of images with at most rho * samples misclassified noisy copies.

    On counts, the criterion PR(x) >= 1 - rho (PRBench, eq. 24) allows one failure in 100 samples at rho .01.
    With `above`, the criterion is PR(x) > 1 - rho. The plug-in estimate is biased if images have failure
    rates near rho. The interval is for the true fraction of images whose failure rate is at most rho
    (`mixing.share_interval`), and is extended if necessary to include the plug-in estimate.
    """
    counts = _counted(correct, samples)
    if not counts:
        return _nothing_counted(correct, confidence)
    failures = [samples - k for k in counts]
    most, n = sequential.allowed(samples, rho, above), len(counts)
    seen = mixing.events(failures, samples, rho)
    return _of_share(sum(k <= most for k in failures), n, seen, rho, confidence)


def _of_share(passed: int, n: int, seen: Sequence[mixing.Event], rho: float, confidence: float) -> Estimate:
    low, high = mixing.share_interval(seen, n, rho, confidence)
    return Estimate(passed / n, (min(low, passed / n), max(high, passed / n)), n, confidence)


def undecided(correct: Sequence[int], samples: int, rho: float, confidence: float = 0.95) -> int:
    """The number of images for which the exact test does not decide whether their PR is above 1 - rho."""
    low, high = sequential.undecided(samples, rho, confidence)
    return sum(low <= samples - k <= high for k in _counted(correct, samples))


def quantiles(correct: Sequence[int], samples: int, confidence: float = 0.95) -> list[dict[str, Any]]:
    """Quantiles of PR over these images, one for each value in SHARES. A quantile is the smallest PR that at
    least the given fraction of the images does not exceed.

    `pr` is the quantile of the observed fractions. The interval is for the quantile of the true PR of these
    images, and not of the distribution of images.
    """
    counts = sorted(_counted(correct, samples))
    entries = []
    for share in SHARES if counts else ():
        rank = max(math.ceil(share * len(counts)), 1)
        interval = list(_quantile_interval(counts, rank, samples, confidence))
        pr = counts[rank - 1] / samples
        entries.append({"share": share, "pr": pr, interval_name(confidence): interval})
    return entries


def _quantile_interval(counts: Sequence[int], rank: int, samples: int, confidence: float) -> Interval:
    """The interval of the rank-th smallest PR, from the numbers of correct copies in ascending order.

    The lowest counts are low partly by chance, so the interval of a single count would be too low. If the
    rank-th smallest PR is q or more, all but rank - 1 images have a PR of q or more. If the (rank + more)-th
    smallest count is at most k, then `more` + 1 of these images have at most k correct copies, each with
    probability at most P[Bin(samples, q) <= k]. The upper end is the q for which the probability of `more` +
    1 such images is half of the error probability. The lower end is computed in the same way. The coverage of
    both ends is valid for any PR of the images.
    """
    n, tail, more = len(counts), (1 - confidence) / 2, rank // 10

    def chance(images: int) -> float:
        """Return the probability p for which P[Bin(images, p) >= more + 1] = tail."""
        return float(special.betaincinv(more + 1, images - more, tail))

    low, high = counts[rank - 1 - more], counts[min(rank + more, n) - 1]
    least = float(special.betaincinv(low, samples - low + 1, chance(rank))) if low else 0.0
    if high == samples:
        return least, 1.0
    return least, float(special.betaincinv(high + 1, samples - high, 1 - chance(n - rank + 1)))


def findings(
    outcomes: Iterable[int], estimator: Estimator, samples: int, rho: float | None = None
) -> dict[str, Any]:
    """Return the results in the `evals` entry of one radius: PR_D, or ProbAcc(rho). `outcomes` contains for
    each image the number of correctly classified noisy copies, or -1 if the image is excluded. A number that
    cannot be computed has the value None and a reason."""
    outcomes, sure = [int(k) for k in outcomes], estimator.confidence
    if rho is None:
        entry = pr_d(outcomes, samples, sure).entry()
        return entry | ({"quantiles": quantiles(outcomes, samples, sure)} if entry["n"] else {})
    passed = prob_acc(outcomes, samples, rho, sure, estimator.passes == "above")
    entry = passed.entry()
    if passed.interval is not None:
        low, high = passed.interval
        (share,) = mixing.share_estimate([samples - k for k in outcomes if k >= 0], samples, (rho,))
        entry |= {"estimator": plug_in(samples), "estimate": min(max(share, low), high)}
        entry["undecided"] = undecided(outcomes, samples, rho, sure)
    return entry


def plug_in(samples: int) -> str:
    """The field `estimator` of a ProbAcc entry."""
    return (
        f"value: the images whose own {samples} draws pass, biased where their PR is near 1 - rho; estimate"
        " and interval: those whose true PR does"
    )


def stopped_findings(
    rows: Iterable[Sequence[float]], estimator: Estimator, samples: int, adaptive: bool = False
) -> list[dict[str, Any]]:
    """Return the results of ProbAcc for each rho if sampling stops as soon as an image is decided.

    A row contains the number of correct copies (-1 if the image is excluded), the number of samples, and for
    each rho 1 (passed), 0 (failed) or -1 (undecided after `samples` samples). An undecided image passes or
    fails by its estimated PR. PR_D is not computed, because the fraction of correct copies is biased if
    sampling stops early. Decisions are the same as with all `samples` samples, or, with `adaptive`, are wrong
    with probability at most 1 - confidence.
    """
    images = [[int(value) for value in row] for row in rows]
    included = [row for row in images if row[0] >= 0]
    if not included:
        return [_nothing_counted(images, estimator.confidence).entry() for _ in estimator.rho]
    spent = sum(row[1] for row in included)
    draws = {"draws_spent": spent, "draws_saved": samples * len(included) - spent}
    entries = []
    seen = [
        mixing.Event(sum(row[2 + number] == 1 for row in included), samples, estimator.allowed(samples, rho))
        for number, rho in enumerate(estimator.rho)
    ]
    for number, rho in enumerate(estimator.rho):
        decisions = [row[2 + number] for row in included]
        passed = sum(
            row[1] - row[0] <= estimator.allowed(row[1], rho) if decision < 0 else decision == 1
            for row, decision in zip(included, decisions, strict=True)
        )
        if adaptive:
            result = _of_decisions(passed, decisions, estimator.confidence)
        else:
            result = _of_share(passed, len(included), sorted(seen), rho, estimator.confidence)
        more = {"estimator": plug_in(samples), "undecided": decisions.count(-1), **draws}
        entries.append({**result.entry(), **more})
    return entries


def _of_decisions(passed: int, decisions: Sequence[int], confidence: float) -> Estimate:
    """ProbAcc from a test that is wrong for an image with probability at most 1 - confidence.

    In expectation, at least a fraction `confidence` of the images that truly pass are not decided as failed,
    and vice versa. Both fractions are proportions of images and are bounded by the exact interval.
    """
    n = len(decisions)
    high = clopper_pearson(n - decisions.count(0), n, confidence)[1] / confidence
    low = 1 - clopper_pearson(n - decisions.count(1), n, confidence)[1] / confidence
    return Estimate(passed / n, (min(max(low, 0.0), passed / n), min(high, 1.0)), n, confidence)


def interval_name(confidence: float) -> str:
    """`ci95`, `ci99.9`."""
    return f"ci{100 * confidence:g}"


def _counted(correct: Sequence[int], samples: int) -> list[int]:
    """The counts of the included images, as Python integers, whose squares cannot overflow."""
    counts = [int(k) for k in correct]
    if samples < 1 or any(not -1 <= k <= samples for k in counts):
        raise ValueError(f"correct counts must lie between 0 and the number of samples, {samples}")
    return [k for k in counts if k >= 0]


def _nothing_counted(images: Sequence[Any], confidence: float) -> Estimate:
    reason = "no image is classified correctly without noise, so there is nothing to average over"
    return Estimate(None, None, 0, confidence, reason if len(images) else "there are no images to count")
