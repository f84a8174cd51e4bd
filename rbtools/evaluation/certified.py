"""Certified accuracy (`rb-certify`): the share of images for which the smoothed classifier, which returns the
most probable class under noise, provably returns the label in the whole L2 ball."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rbtools.certification import CERTIFIERS, smoothed_counts
from rbtools.certification.smooth import Smooth
from rbtools.evaluation.accuracy import Clean, share
from rbtools.evaluation.base import Batch, Outcome
from rbtools.evaluation.spec import Entry, Evaluation, Spec, rebuilt
from rbtools.lazy import np
from rbtools.probabilistic import smoothing
from rbtools.records import metric_name
from rbtools.records.metric_name import MetricName
from rbtools.records.name_forms import NUMBER, NameForm
from rbtools.registry import param
from rbtools.threats.ball import Ball

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self


DEFINITION = "g(x) = the most probable class of f(x + z), z~N(0,sigma^2) on each pixel and channel, unclipped"
STOPPING = "group sequential: exact binomial boundaries, error alpha for all radii of an image"


class _Certified(NameForm):
    """The name of a certified accuracy. Radii are in L2."""

    def attacked(self, parts: MetricName) -> bool:
        return True

    def _word(self, parts: MetricName) -> str:
        return "" if parts.stem == "cert.linf" else "l2"

    def settings(self, parts: MetricName) -> dict[str, Any]:
        sigma = {"sigma": float(parts.of)} if parts.of else {}
        return {**Ball.settings(self._word(parts), {"eps": parts.number}), **sigma}

    def axes_of(self, parts: MetricName) -> Mapping[str, str]:
        return {"eps": Ball.axis(self._word(parts))}

    def quantities(self, parts: MetricName) -> Mapping[str, str]:
        sigma = {"sigma": f"σ = {parts.of}"} if parts.of else {}
        return {**sigma, "eps": Ball.said(self._word(parts), {"eps": parts.number})}

    def heading(self, parts: MetricName, without: str | None = None) -> str:
        kept = [text for name, text in self.quantities(parts).items() if name != without]
        return ", ".join(
            ["certified by smoothing" if parts.of else f"certified{Ball.beside(parts.norm)}", *kept]
        )


@dataclass(frozen=True, kw_only=True)
class Smoothed(Spec):
    """Certified accuracy of the smoothed classifier at one L2 radius, eps.

    A row has five numbers: the selected class, whether this class is the label, the number of samples after
    the selection, the number of those with the selected class, and the number of certified questions (-1
    without `adaptive`). The first question is whether the selected class has a probability above 1/2;
    otherwise the classifier abstains. The other questions are whether the radii above 0 can be certified, in
    increasing order. With `adaptive`, an image is sampled until all questions are decided, or until the first
    question if the selected class is not the label.

    `radii` are all radii that are certified together. With `each_image`, the entry contains each image's
    radius.
    """

    names = (
        _Certified(rf"(?P<stem>cert\.smooth)\.(?P<of>{NUMBER})\.(?P<number>{NUMBER})", "images"),
        _Certified(
            rf"(?P<stem>cert\.linf|cert(?=\.l2\.))(?:\.(?P<norm>l2))?\.(?P<number>{NUMBER})", "images"
        ),
    )

    method: Smooth
    eps: float = param(0.0, "The L2 radius, for pixels in [0, 1].", check="non-negative")
    each_image: bool = False
    radii: tuple[float, ...] = field(default=(), compare=False)
    copies = smoothing.BLOCK

    @property
    def most_passes(self) -> int:
        return int(self.method.select + self.method.samples)

    @property
    def questions(self) -> tuple[float, ...]:
        """The radii to decide: 0 and all radii above 0."""
        return self.method.questions(self.radii or (self.eps,))

    def name(self) -> str:
        return metric_name.smoothing_name(self.method.sigma, self.eps)

    def rule(self) -> Entry:
        """The stopping rule, as fields for the store key and the record."""
        return {"stopping": STOPPING} if self.method.adaptive else {}

    def column(self) -> Entry:
        method = self.method
        decided = {"radii": list(self.questions), "alpha": method.alpha} if method.adaptive else {}
        return {
            "kind": "certificate",
            "certificate": method.name,
            "version": method.version,
            **{name: getattr(method, name) for name in ("sigma", "samples", "select")},
            **decided,
            **self.rule(),
        }

    @classmethod
    def reading(cls, specs: Sequence[Self]) -> Entry:
        detail = {"each_image": True} if specs[0].each_image else {}
        return {"radii": [spec.eps for spec in specs], "alpha": specs[0].method.alpha, **detail}

    @classmethod
    def joined(cls, specs: Sequence[Self]) -> list[Self]:
        radii: dict[Any, dict[float, None]] = {}
        for spec in specs:
            radii.setdefault(spec.method, {})[spec.eps] = None
        return [replace(spec, radii=tuple(radii[spec.method])) for spec in specs]

    def settings(self) -> Entry:
        method = self.method
        return {
            "certificate": method.name,
            "classifier": "smoothed",
            "definition": DEFINITION,
            "norm": method.norm,
            **{name: getattr(method, name) for name in ("sigma", "alpha", "samples", "select")},
            **self.rule(),
            "eps": self.eps,
        }

    def rows(self, batch: Batch) -> Outcome:
        method = self.method

        def logits(noisy: Tensor, rows: Tensor) -> Tensor:
            size = smoothed_counts.part_size(len(noisy), batch.chunk_size)
            return replace(batch, ids=batch.ids[rows], chunk_size=size, draw=None).logits(noisy)

        select, estimate = batch.draws(method.SELECT), batch.draws(method.ESTIMATE)
        classes = batch.clean_logits.shape[1]
        examples = smoothed_counts.SmoothedExamples(
            batch.images, batch.labels, select, estimate, logits, classes
        )
        rows = smoothed_counts.count(method, self.questions, examples)
        drawn = float(rows[:, 2].sum())
        copies = drawn + method.select * len(rows)
        return Outcome(rows.float(), {"forward": copies, "backward": 0.0, "draws": drawn})

    def certified(self, rows: np.ndarray) -> np.ndarray:
        """The certified radius (n,) of each image (one of `questions` with `adaptive`), or NaN."""
        return self.method.certified(rows, self.questions)

    def correct(self, rows: np.ndarray) -> np.ndarray:
        """Whether each image (n,) is certified at the radius. NaN counts as not certified."""
        return (rows[:, 1] == 1) & (self.certified(rows) >= self.eps)

    def findings(self, rows: np.ndarray, totals: Mapping[str, float]) -> Entry:
        right, certified = rows[:, 1] == 1, self.certified(rows)
        counted = np.where(right & ~np.isnan(certified), certified, 0.0)
        abstained = int(np.isnan(certified).sum())
        summary = {"abstained": abstained, "mean_radius": round(float(counted.mean()), 6)}
        drawn = {"draws_spent": int(totals.get("draws", 0))} if self.method.adaptive else {}
        detail = {}
        if self.each_image:
            radii = [None if math.isnan(radius) else round(radius, 6) for radius in certified.tolist()]
            detail = {"detail": {"radii": radii, "correct": right.tolist()}}
        return {**share(self.correct(rows)), **summary, **drawn, **detail}

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Self | None:
        adaptive = {"adaptive": "stopping" in entry}
        method = rebuilt(CERTIFIERS, entry.get("certificate"), entry, **adaptive)
        if method is None or "eps" not in entry:
            return None
        return cls(method=method, eps=entry["eps"], each_image="detail" in entry)


def certified(
    method: Smooth, eps: Sequence[float], warn: Callable[[str], object], *, each_image: bool = False
) -> Evaluation:
    """Certified accuracy at these radii, and clean accuracy. `warn` reports radii that need more samples."""
    short = smoothing.too_few(tuple(eps), method.samples, method.sigma, method.alpha)
    if short is not None:
        warn(short)
    specs = Smoothed.joined([Smoothed(method=method, eps=one, each_image=each_image) for one in eps])
    return Evaluation(title="randomised smoothing", specs=tuple(specs), along=(Clean(),))
