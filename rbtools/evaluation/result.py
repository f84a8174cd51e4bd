"""The result of an evaluation in memory."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools.lazy import torch
from rbtools.rng import seed_fields

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.evaluation.arguments import KeptImages
    from rbtools.evaluation.base import Output
    from rbtools.evaluation.outcomes import Outcomes
    from rbtools.records.typed import Entry
    from rbtools.settings import Settings


@dataclass(frozen=True, repr=False)
class Result:
    """What `rbtools.evaluate` found for one task.

    metric: its name in records ("pgd20.8"); value: a share of the images in [0, 1]; ci95: its interval; n:
    the number of images. ids: int64 (n,), their positions in the data, ascending. correct: bool (n,), whether
    each is classified correctly under the task (with noise: in every copy). outcomes: what is counted of
    each, (n,) or (n, R). images: (n, C, H, W), as the task left them, where they are kept. seconds: of the
    computation; entry: what a record would say.
    """

    metric: str
    value: float
    ci95: tuple[float, float]
    n: int
    ids: Tensor
    correct: Tensor
    outcomes: Tensor
    images: Tensor | None
    seconds: float
    entry: Entry

    def __repr__(self) -> str:
        low, high = self.ci95
        return (
            f"{self.metric} {self.value:.4f} (95 % interval {low:.4f} to {high:.4f}, {self.n:,} images,"
            f" {self.seconds:.1f} s)"
        )

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        low, high = self.ci95
        rows = {
            "metric": self.metric,
            "value": f"{self.value:.4f}",
            "95 % interval": f"{low:.4f} to {high:.4f}",
            "images": f"{self.n:,}",
            "seconds": f"{self.seconds:.1f}",
        }
        lines = (f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in rows.items())
        return f"<table>{''.join(lines)}</table>"


def result_of(
    output: Output, known: Outcomes, order: Tensor, settings: Settings, images: KeptImages | None
) -> Result:
    """The result of an output from the outcomes of the examples in `order` (n,)."""
    outcomes = known.values(len(order))
    seed = seed_fields(settings.seed) if output.random else {}
    seconds = round(known.totals.get("seconds", 0.0), 3)
    entry: Any = {**output.entries(outcomes, known.totals)[0], **seed, "seconds": seconds}
    back = order.argsort().numpy()
    low, high = entry["ci95"]
    return Result(
        metric=entry["metric"],
        value=entry["value"],
        ci95=(low, high),
        n=len(order),
        ids=order.sort().values,
        correct=torch.from_numpy(output.correct(outcomes)[back]),
        outcomes=torch.from_numpy(outcomes[back]),
        images=None if images is None else images.of(output),
        seconds=seconds,
        entry=entry,
    )
