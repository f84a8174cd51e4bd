"""Certified accuracy: the share of images whose label no image of their ball can lose, `rb-certify`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rbtools import registry
from rbtools.certification.smooth import Smooth
from rbtools.evaluation.base import EvalTask, Output
from rbtools.evaluation.smoothed_classifier import SmoothingOutput, SmoothingTask
from rbtools.evaluation.tasks import CleanOutput, accuracy_entry
from rbtools.lazy import np
from rbtools.probabilistic import smoothing
from rbtools.records import metric_name

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.certification.base import Certifier
    from rbtools.evaluation.base import Batch

# Images that are bounded one by one gain nothing from a large batch, and workers share small ones evenly.
_PARTS = 16


def certification_task(
    method: Any, eps: tuple[float, ...], warn: Callable[[str], object], *, each_image: bool = False
) -> EvalTask:
    """The evaluation of a registered method at these distances. `warn` gets the reason why some of them are
    out of reach. each_image: what is proved of each image goes into the entries, too."""
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
        return {
            "kind": "certificate",
            "certificate": self.method.name,
            "version": self.method.version,
            "config": registry.config(self.method),
        }

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

    def run(self, batch: Batch, wanted: Sequence[Output]) -> list[Tensor]:
        return [
            _rows(batch, output.method) if isinstance(output, CertifiedOutput) else batch.clean.int()
            for output in wanted
        ]


def _rows(batch: Batch, method: Certifier) -> Tensor:
    """The rows (N, 1) of a batch."""
    return method.margins(batch.model, batch.images, batch.labels, batch.clean, batch.chunk_size)[:, None]
