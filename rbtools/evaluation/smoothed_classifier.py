"""Task of randomised smoothing: certified L2 radii of the smoothed classifier.

Each image has draws of its own, in blocks that no other image shares: neither other images nor the number of
workers change a count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools.evaluation.base import EvalTask, Outcome, Output
from rbtools.evaluation.tasks import CleanOutput
from rbtools.lazy import np, torch
from rbtools.probabilistic import intervals, smoothing
from rbtools.records import metric_name

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.certification.smooth import Smooth
    from rbtools.evaluation.base import Batch
    from rbtools.probabilistic.smoothing import StoppingPlan

DEFINITION = "g(x) = the most probable class of f(x + z), z~N(0,sigma^2) on each pixel and channel, unclipped"

STOPPING = "group sequential: exact binomial boundaries, error alpha for all radii of an image"


@dataclass(frozen=True)
class SmoothingOutput(Output):
    """What the draws of an image show, in a row: the selected class, whether it is the label, the draws after
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
        return (0.0, *sorted(radius for radius in set(self.radii) if radius > 0))

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
            passed = int((right & (certified >= template["eps"])).sum())  # no NaN is
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
        if not self.method.adaptive:
            sigma, alpha = self.method.sigma, self.method.alpha
            return smoothing.certified_radii(outcomes[:, 3], outcomes[:, 2], sigma, alpha)
        radii: np.ndarray = np.array([np.nan, *self.questions])[outcomes[:, 4].astype(int)]
        return radii


@dataclass(frozen=True)
class SmoothingTask(EvalTask):
    """Certified accuracy of the smoothed classifier at some L2 radii, by `smoothing`, and clean accuracy."""

    output: SmoothingOutput
    title = "randomised smoothing"

    def outputs(self) -> Sequence[Output]:
        return [CleanOutput(), self.output]

    def run(self, batch: Batch, wanted: Sequence[Output]) -> list[Tensor | Outcome]:
        return [
            _certify(batch, output) if isinstance(output, SmoothingOutput) else batch.clean.int()
            for output in wanted
        ]


def _certify(batch: Batch, output: SmoothingOutput) -> Outcome:
    """The rows of a batch's examples."""
    method = output.method
    votes = torch.zeros_like(batch.clean_logits, dtype=torch.int64)
    for classes in _classes(batch, "smooth.select", method.sigma, 0, method.select):
        votes.scatter_add_(1, classes, torch.ones_like(classes))
    selected = votes.argmax(1)
    state = _Drawing(batch, selected, output)
    state.draw()
    questions = state.passed if method.adaptive else torch.full_like(selected, -1)
    right = selected.eq(batch.labels)
    rows = torch.stack([selected, right.long(), state.drawn, state.hits, questions], dim=1)
    drawn = float(state.drawn.sum())
    copies = drawn + method.select * len(selected)
    return Outcome(rows.float(), {"forward": copies, "backward": 0.0, "draws": drawn})


class _Drawing:
    """The counts of some examples, and what they decide.

    drawn, hits, passed: int64 (N,), copies, those of the selected class, and certified questions.
    """

    def __init__(self, batch: Batch, selected: Tensor, output: SmoothingOutput) -> None:
        self.batch, self.selected, self.output = batch, selected, output
        self.method = output.method
        self.drawn, self.hits = torch.zeros_like(selected), torch.zeros_like(selected)
        self.passed = torch.zeros_like(selected)
        self.open = torch.ones_like(selected, dtype=torch.bool)

    def draw(self) -> None:
        """Draw all copies, or with `adaptive` from look to look those of the examples that are undecided."""
        method = self.method
        if not method.adaptive:
            self._extend(self.open.nonzero()[:, 0], 0, method.samples)
            return
        plan = smoothing.stopping_plan(method.samples, self.output.questions, method.sigma, method.alpha)
        crossed = torch.zeros(len(self.selected), len(plan.certify), dtype=torch.bool)
        before = 0
        for place, draws in enumerate(plan.looks.tolist()):
            rows = self.open.nonzero()[:, 0]
            if not len(rows):
                return
            self._extend(rows, before, draws)
            before = draws
            self._decide(rows, plan, place, crossed)

    def _extend(self, rows: Tensor, start: int, stop: int) -> None:
        """Count the copies number `start` to `stop` of the examples in rows (M,)."""
        part = self.batch.take(rows)
        for classes in _classes(part, "smooth.estimate", self.method.sigma, start, stop):
            self.hits[rows] += classes.eq(self.selected[rows][:, None]).sum(1)
        self.drawn[rows] += stop - start

    def _decide(self, rows: Tensor, plan: StoppingPlan, place: int, crossed: Tensor) -> None:
        """Close the examples in rows whose questions are decided at a look; `crossed` (N, R) is kept."""
        failures = (self.drawn - self.hits)[rows].cpu()[:, None]
        own, right = rows.cpu(), self.selected.eq(self.batch.labels)[rows].cpu()
        crossed[own] |= failures <= torch.as_tensor(plan.certify[:, place])
        passed = crossed[own].long().cumprod(1).sum(1)  # a radius counts only with all smaller ones
        questions = crossed.shape[1]
        given_up = (failures >= torch.as_tensor(plan.give_up[:, place])).gather(
            1, passed.clamp(max=questions - 1)[:, None]
        )[:, 0]
        done = given_up | (passed >= torch.where(right, questions, 1))
        self.passed[rows] = passed.to(rows.device)
        self.open[rows] = ~done.to(rows.device)


def _classes(batch: Batch, stream: str, sigma: float, start: int, stop: int) -> Iterator[Tensor]:
    """The classes (N, B) of the noisy copies number `start` to `stop` of each example, in blocks.

    `start` is a multiple of smoothing.BLOCK. The network itself decides, in float32.
    """
    draws, shape, size = batch.draws(stream), tuple(batch.images.shape[1:]), smoothing.BLOCK
    for first in range(start, stop, size):
        count = min(size, stop - first)
        noise = draws.normal((size, *shape), draw=first // size)[:, :count]
        copies = batch.take(torch.arange(len(batch.ids), device=batch.ids.device).repeat_interleave(count))
        # Parts of equal size: kernels round differently for a few images.
        parts = math.ceil(len(copies.ids) / batch.chunk_size)
        copies.chunk_size = math.ceil(len(copies.ids) / parts)
        noisy = copies.images.add(noise.flatten(0, 1), alpha=sigma)
        yield copies.logits(noisy).argmax(1).view(-1, count)
