"""Margin: the logit of the label minus the largest other logit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rbtools.attacks.losses import logit_margin
from rbtools.lazy import Tensor, nn, torch
from rbtools.measures.base import BatchResult, Measure, MeasureBatch, Value, over_images


@dataclass(frozen=True, kw_only=True)
class Margin(Measure):
    """Mean over the images of the label's logit minus the largest other logit. The value margin.clean is
    computed on the unchanged images, and margin.robust on their adversarial images.
    """

    name = "margin"
    version = 2
    weights = "trained"
    split = "test"
    attacks = 1
    of_images = True

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        return {
            "clean": _margins(model, batch.images, batch.labels, batch.chunk),
            "robust": _margins(model, batch.attacked, batch.labels, batch.chunk),
        }

    def values(self, results: Sequence[BatchResult], sizes: Sequence[int]) -> list[Value]:
        clean, robust = ([n for result in results for n in result[name]] for name in ("clean", "robust"))
        return [over_images("clean", clean, clean=True), over_images("robust", robust)]


def _margins(model: nn.Module, images: Tensor, labels: Tensor, chunk: int) -> list[float]:
    with torch.no_grad():
        logits = torch.cat([model(part).double() for part in images.split(chunk)])
    margins: list[float] = logit_margin(logits, labels).tolist()
    return margins
