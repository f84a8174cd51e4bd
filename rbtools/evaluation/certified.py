"""Certified accuracy (`rb-certify`): the share of images whose label the smoothed classifier, whose class
wins under noise, provably keeps in their ball.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools.certification import smoothed_counts
from rbtools.certification.smooth import Smooth
from rbtools.evaluation.base import Batch, EvalTask, Outcome, Output
from rbtools.evaluation.tasks import CleanOutput
from rbtools.lazy import np
from rbtools.probabilistic import intervals, smoothing
from rbtools.records import metric_name

if TYPE_CHECKING:
    from torch import Tensor


DEFINITION = "g(x) = the most probable class of f(x + z), z~N(0,sigma^2) on each pixel and channel, unclipped"
STOPPING = "group sequential: exact binomial boundaries, error alpha for all radii of an image"


def certification_task(
    method: Smooth, eps: tuple[float, ...], warn: Callable[[str], object], *, each_image: bool = False
) -> EvalTask:
    """The evaluation of a registered method at these distances. `warn` gets the reason why some of them
    cannot be certified. each_image: the entries also contain the certified radius of each image."""
    short = smoothing.too_few(eps, method.samples, method.sigma, method.alpha)
    if short is not None:
        warn(short)
    return SmoothingTask(SmoothingOutput(method, eps, each_image))


@dataclass(frozen=True)
class SmoothingOutput(Output):
    """A row for each example: the selected class, whether it is the label, the draws after
    the selection, those of the selected class, and the number of certified questions, -1 without `adaptive`.

    The questions are whether the selected class has a probability above 1/2 (else the classifier abstains),
    and the radii above 0, increasing. With `adaptive` an image is drawn until they are decided, and only
    until the first one where the selected class is not the label. each_image: the entries have the radii.
    """

    method: Smooth
    radii: tuple[float, ...]
    each_image: bool = False
    fixed_batches = False
    copies_together = smoothing.BLOCK

    @property
    def questions(self) -> tuple[float, ...]:
        """The radii that are decided: 0, then those above it."""
        return self.method.questions(self.radii)

    def rule(self) -> dict[str, Any]:
        """The stopping rule, for key and record."""
        return {"stopping": STOPPING} if self.method.adaptive else {}

    def key_fields(self) -> dict[str, Any]:
        method = self.method
        decided = {"radii": list(self.questions), "alpha": method.alpha} if method.adaptive else {}
        return {
            "kind": "certificate",
            "certificate": method.name,
            "version": method.version,
            "sigma": method.sigma,
            "samples": method.samples,
            "select": method.select,
            **decided,
            **self.rule(),
        }

    def postprocess_key(self) -> dict[str, Any]:
        detail = {"each_image": True} if self.each_image else {}
        return {"radii": list(self.radii), "alpha": self.method.alpha, **detail}

    def measure(self, batch: Batch) -> Outcome:
        method = self.method

        def logits(noisy: Tensor, rows: Tensor) -> Tensor:
            size = smoothed_counts.part_size(len(noisy), batch.chunk_size)
            copies = Batch(
                batch.model, noisy, batch.labels[rows], batch.ids[rows], seed=batch.seed, chunk_size=size
            )
            return copies.logits(noisy)

        select, estimate = batch.draws(method.SELECT), batch.draws(method.ESTIMATE)
        classes = batch.clean_logits.shape[1]
        examples = smoothed_counts.SmoothedExamples(
            batch.images, batch.labels, select, estimate, logits, classes
        )
        rows = smoothed_counts.count(method, self.questions, examples)
        drawn = float(rows[:, 2].sum())
        copies = drawn + method.select * len(rows)
        return Outcome(rows.float(), {"forward": copies, "backward": 0.0, "draws": drawn})

    def entry_template(self) -> list[dict[str, Any]]:
        method = self.method
        settings = {
            "certificate": method.name,
            "classifier": "smoothed",
            "definition": DEFINITION,
            "norm": method.norm,
            "sigma": method.sigma,
            "alpha": method.alpha,
            "samples": method.samples,
            "select": method.select,
            **self.rule(),
        }
        return [
            {"metric": metric_name.smoothing_name(method.sigma, radius), **settings, "eps": radius}
            for radius in self.radii
        ]

    def correct(self, outcomes: np.ndarray) -> np.ndarray:
        """Which examples are certified at the first radius; NaN is none."""
        correct: np.ndarray = (outcomes[:, 1] == 1) & (self.certified(outcomes) >= self.radii[0])
        return correct

    def counted(self, outcomes: np.ndarray, entry: Mapping[str, Any]) -> np.ndarray | None:
        certified: np.ndarray = (outcomes[:, 1] == 1) & (self.certified(outcomes) >= entry["eps"])
        return certified

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        n, right = len(outcomes), outcomes[:, 1] == 1
        certified = self.certified(outcomes)
        counted = np.where(right & ~np.isnan(certified), certified, 0.0)
        summary = {
            "abstained": int(np.isnan(certified).sum()),
            "mean_radius": round(float(counted.mean()), 6),
        }
        drawn = {"draws_spent": int(totals.get("draws", 0))} if self.method.adaptive else {}
        entries = []
        for template in self.entry_template():
            passed = int((right & (certified >= template["eps"])).sum())  # false for NaN
            value = {"n": n, "value": passed / n, "ci95": list(intervals.wilson(passed, n))}
            entries.append({**template, **value, **summary, **drawn, **self._detail(right, certified)})
        return entries

    def _detail(self, right: np.ndarray, certified: np.ndarray) -> dict[str, Any]:
        if not self.each_image:
            return {}
        radii = [None if math.isnan(radius) else round(radius, 6) for radius in certified.tolist()]
        return {"detail": {"radii": radii, "correct": right.tolist()}}

    def certified(self, outcomes: np.ndarray) -> np.ndarray:
        """The certified radius (n,) of each image, NaN where the classifier abstains.

        With `adaptive` it is the largest radius of the list that is certified.
        """
        return self.method.certified(outcomes, self.questions)


@dataclass(frozen=True)
class SmoothingTask(EvalTask):
    """Certified accuracy of the smoothed classifier at some L2 radii, by `smoothing`, and clean accuracy."""

    output: SmoothingOutput
    title = "randomised smoothing"

    def outputs(self) -> Sequence[Output]:
        return [CleanOutput(), self.output]
