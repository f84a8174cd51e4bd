"""Estimates from counts: proportions, PR_D(gamma), ProbAcc(rho).

The input is what sampling leaves behind, for each image the number of its N noisy copies that were
classified correctly, and which images were correct without noise. PRBench (Probabilistic Robustness
for Free?) averages over the latter only; leave the mask out to count every image.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rbtools.probabilistic.intervals import Interval, mean_interval, wilson

# Failures are compared as counts: .01 * 100 is 1.0000000000000002 or 1.0 as the rounding falls.
COUNT_SLACK = 1e-9


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, or the reason why there is none.

    `n` is the number of images it was counted over. `interval` is None exactly where `value` is.
    """

    value: float | None
    interval: Interval | None
    n: int
    confidence: float = 0.95
    reason: str | None = None

    def entry(self) -> dict[str, Any]:
        """The fields of an `evals` entry: value, n, ci95 (ci99 ... for other confidences), reason."""
        fields: dict[str, Any] = {"value": self.value, "n": self.n}
        if self.interval is not None:
            fields[f"ci{100 * self.confidence:g}"] = list(self.interval)
        if self.reason is not None:
            fields["reason"] = self.reason
        return fields


def proportion(successes: int, n: int, confidence: float = 0.95) -> Estimate:
    """A share of images, such as an accuracy, with Wilson's interval; None of no images."""
    if n == 0:
        return Estimate(None, None, 0, confidence, "there are no images to count")
    return Estimate(successes / n, wilson(successes, n, confidence), n, confidence)


def pr_d(
    correct: Sequence[int], samples: int, clean: Sequence[bool] | None = None, confidence: float = 0.95
) -> Estimate:
    """PR_D: the mean over images of the share of `samples` noisy copies classified correctly.

    The images are the sampling unit. The interval comes from the deviation between them and never
    from images * samples pooled draws, which would be too narrow; where all images give the same
    (every share 1, say) it is the exact binomial one over images.
    """
    counts = _counted(correct, samples, clean)
    if not counts:
        return _nothing_counted(clean, confidence)
    n = len(counts)
    total = sum(counts)
    # In whole numbers: n * sum k^2 - (sum k)^2 is exactly 0 when all counts are equal.
    spread = n * sum(k * k for k in counts) - total * total
    deviation = math.sqrt(spread / (n * (n - 1))) / samples if n > 1 else 0.0
    value = total / (n * samples)
    return Estimate(value, mean_interval(value, deviation, n, confidence), n, confidence)


def prob_acc(
    correct: Sequence[int],
    samples: int,
    rho: float,
    clean: Sequence[bool] | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """ProbAcc(rho): the share of images that at most rho * samples noisy copies get wrong.

    PRBench eq. 24, PR(x) >= 1 - rho, on counts: 100 samples at rho .01 allow one failure. The
    interval is Wilson's over images; it does not say how sure each image's own verdict is.
    """
    counts = _counted(correct, samples, clean)
    if not counts:
        return _nothing_counted(clean, confidence)
    allowed = rho * samples + COUNT_SLACK
    return proportion(sum(samples - k <= allowed for k in counts), len(counts), confidence)


def entries(
    outcomes: Iterable[int], rhos: Iterable[float], *, noise: str, gamma: float, samples: int, **settings: Any
) -> list[dict[str, Any]]:
    """The `evals` entries of one radius: pr.NOISE.GAMMA, then probacc.NOISE.GAMMA.RHO for each rho.

    `outcomes`: for each image its number of correctly classified noisy copies, -1 where the clean
    image is misclassified. `settings` go into each entry. A metric that cannot be computed has
    value None and a reason.
    """
    outcomes = [int(k) for k in outcomes]
    clean = [k >= 0 for k in outcomes]
    asked = {"noise": noise, "gamma": gamma, "samples": samples, **settings, "denominator": "correct"}
    stem = f"{noise}.{gamma:g}"
    found = [{"metric": f"pr.{stem}", **asked, **pr_d(outcomes, samples, clean).entry()}]
    for rho in rhos:
        passed = prob_acc(outcomes, samples, rho, clean)
        found.append({"metric": f"probacc.{stem}.{rho:g}", **asked, "rho": rho, **passed.entry()})
    return found


def _counted(correct: Iterable[int], samples: int, clean: Sequence[bool] | None) -> list[int]:
    """The counts of the images that count, as Python integers (numpy's would overflow when squared)."""
    if clean is not None:
        correct = (k for k, good in zip(correct, clean, strict=True) if good)
    counts = [int(k) for k in correct]
    if samples < 1 or any(not 0 <= k <= samples for k in counts):
        raise ValueError(f"correct counts must lie between 0 and the number of samples, {samples}")
    return counts


def _nothing_counted(clean: Sequence[bool] | None, confidence: float) -> Estimate:
    if clean is None or len(clean) == 0:
        return proportion(0, 0, confidence)
    reason = "no image is classified correctly without noise, so there is nothing to average over"
    return Estimate(None, None, 0, confidence, reason)
