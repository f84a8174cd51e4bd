"""Certified accuracy (`rb-certify`): the share of images whose predicted label is proved constant in their
ball.

By bounds of the network itself, or of the smoothed classifier, whose class wins under noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rbtools import registry
from rbtools.certification import smoothed_counts
from rbtools.certification.smooth import Smooth
from rbtools.evaluation.base import Batch, EvalTask, Outcome, Output, method_key
from rbtools.evaluation.tasks import CleanOutput, accuracy_entry
from rbtools.lazy import np
from rbtools.probabilistic import intervals, smoothing
from rbtools.records import metric_name

if TYPE_CHECKING:
    from torch import Tensor


# Images that are bounded one by one gain nothing from a large batch, and workers share small ones evenly.
_PARTS = 16
DEFINITION = "g(x) = the most probable class of f(x + z), z~N(0,sigma^2) on each pixel and channel, unclipped"
STOPPING = "group sequential: exact binomial boundaries, error alpha for all radii of an image"


def certification_task(
    method: Any, eps: tuple[float, ...], warn: Callable[[str], object], *, each_image: bool = False
) -> EvalTask:
    """The evaluation of a registered method at these distances. `warn` gets the reason why some of them
    cannot be certified. each_image: the entries also contain the proved bound or radius of each image."""
    if not isinstance(method, Smooth):
        return CertifiedTask(method, eps, each_image)
    short = smoothing.too_few(eps, method.samples, method.sigma, method.alpha)
    if short is not None:
        warn(short)
    return SmoothingTask(SmoothingOutput(method, eps, each_image))


@dataclass(frozen=True)
class CertifiedOutput(Output):
    """A row (1,) for each example: the lower bound of its smallest margin, in a ball around it.

    An example with a bound above 0 is certified. The bound of one that is misclassified is minus infinity.
    each_image: the entry has the bounds.
    """

    method: Any
    each_image: bool = False
    random = False

    @property
    def fixed_batches(self) -> bool:
        return not self.method.alone

    @property
    def copies_together(self) -> int:
        return _PARTS if self.method.alone else 1

    def key_fields(self) -> dict[str, Any]:
        return method_key("certificate", "certificate", self.method)

    def measure(self, batch: Batch) -> Tensor:
        margins = self.method.margins(batch.model, batch.images, batch.labels, batch.clean, batch.chunk_size)
        return margins[:, None]  # type: ignore[no-any-return]

    def postprocess_key(self) -> dict[str, Any]:
        return {"each_image": True} if self.each_image else {}

    @property
    def metric(self) -> str:
        """The name of its result."""
        return metric_name.cert_name(self.method.eps, self.method.norm)

    def correct(self, outcomes: np.ndarray) -> np.ndarray:
        """Which examples are certified."""
        correct: np.ndarray = outcomes[:, 0] > 0
        return correct

    def entry_template(self) -> list[dict[str, Any]]:
        return [{"metric": self.metric, "certificate": self.method.name, **registry.config(self.method)}]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        (template,) = self.entry_template()
        margins = [float(f"{bound:.7g}") if bound > -math.inf else None for bound in outcomes[:, 0].tolist()]
        detail = {"detail": {"margins": margins}} if self.each_image else {}
        return [{**accuracy_entry(template, outcomes[:, 0] > 0), **detail}]


@dataclass(frozen=True)
class CertifiedTask(EvalTask):
    """Clean accuracy, and certified accuracy by one method at any number of eps."""

    method: Any
    eps: tuple[float, ...]
    each_image: bool = False

    @property
    def title(self) -> str:
        return f"certify {self.method.name}"

    def outputs(self) -> Sequence[Output]:
        distances = (replace(self.method, eps=eps) for eps in self.eps)
        return [CleanOutput(), *(CertifiedOutput(method, self.each_image) for method in distances)]


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
