"""Samples noisy copies of images, and counts the copies that are classified correctly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from rbtools.attacks.active_examples import check_schedule, uploaded
from rbtools.attacks.losses import logit_margin
from rbtools.evaluation.base import Batch, batch_size
from rbtools.lazy import torch
from rbtools.probabilistic import sequential

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.probabilistic.distributions import Noise

# A decision of the fast model is accepted if its margin is larger than this multiple of the largest margin
# error among the first copies, which both models evaluate: 5 or 6 standard deviations of the error. For a
# ResNet-18 in bf16, the float32 model then decides 4 % of the copies.
_SAFETY = 2.0
_COMPARED = 64


class Copies(NamedTuple):
    """The result of sampling for each example at one radius.

    `right` is the number of copies classified correctly, int64 (N,), or -1 for an example that was not
    sampled. `drawn` is the number of samples, int64 (N,). `decisions` is int64 (N, R): for each rule 1
    (passed), 0 (failed) or -1 (undecided). `totals` are sums over the examples.
    """

    right: Tensor
    drawn: Tensor
    decisions: Tensor
    totals: dict[str, float]


def sample_copies(
    batch: Batch,
    noise: Noise,
    gammas: Sequence[float],
    samples: int,
    rules: Sequence[sequential.Rule] = (),
    everyone: bool = False,
) -> list[Copies]:
    """Count, at each radius, how many of the `samples` noisy copies of each example are classified correctly.

    All radii use the same unit samples, scaled by the radius. Curves over the radius are therefore smooth,
    and each unit sample is computed only once. With rules, an example is sampled at a radius until all rules
    have decided, and later samples do not count. The result therefore does not depend on the batch. Only the
    examples classified correctly without noise are sampled, or all examples if `everyone` is true. At radius
    0, a copy is the example itself, and no noise is sampled.
    """
    chosen = torch.ones_like(batch.clean) if everyone else batch.clean
    part = batch if bool(chosen.all()) else batch.take(chosen)
    radii = [_Radius(part, gamma, rules) for gamma in gammas]
    clean = batch.clean[chosen]
    for radius in radii:
        if radius.gamma == 0:
            radius.right, radius.open = clean * samples, torch.zeros_like(clean)
            radius.decisions[:] = clean[:, None].long()
    if len(part.ids):
        _sample(part, noise, radii, samples)
    return [radius.copies(chosen) for radius in radii]


def _sample(part: Batch, noise: Noise, radii: Sequence[_Radius], samples: int) -> None:
    """Sample until every radius has all its copies or is decided. Holds one batch of copies in memory."""
    draws, shape = part.draws(f"noise.{noise.stem}"), tuple(part.images.shape[1:])
    everybody = torch.arange(len(part.ids), device=part.ids.device)
    draw = 0
    while draw < samples:
        rows = everybody
        if any(radius.rules for radius in radii):
            rows = torch.stack([radius.open for radius in radii]).any(0).nonzero()[:, 0]
        elif not any(radius.gamma for radius in radii):
            return
        if not len(rows):
            return
        # with few examples, several copies of each form a batch
        block = min(samples - draw, max(1, batch_size(rows.device, shape) // len(rows)))
        mine = draws if len(rows) == len(everybody) else draws.take(rows)
        units = torch.stack([noise.unit(mine, shape, draw + i) for i in range(block)])
        for radius in radii:
            radius.see(noise, rows, units, draw)
        draw += block


class _Unsure(NamedTuple):
    """A block of copies `noisy` (N, C, H, W). `copies`, bool (N,), marks the copies that the exact model has
    to decide. `rows`, int64 (N,), are the positions of the copied examples in the batch."""

    noisy: Tensor
    copies: Tensor
    rows: Tensor


class _Radius:
    def __init__(self, batch: Batch, gamma: float, rules: Sequence[sequential.Rule]) -> None:
        self.batch, self.gamma = batch, gamma
        self.rules = [[torch.as_tensor(table, device=batch.ids.device) for table in rule] for rule in rules]
        self.right = torch.zeros_like(batch.labels)
        self.drawn = torch.zeros_like(batch.labels)
        self.decisions = torch.full((len(batch.ids), len(rules)), -1, device=batch.ids.device)
        self.open = torch.ones_like(batch.labels, dtype=torch.bool)
        self.classifier = _Classifier()
        self.unsure: list[_Unsure] = []

    def see(self, noise: Noise, rows: Tensor, units: Tensor, first: int) -> None:
        """Classify a block of noise samples, numbered from `first`. `units` (B, M, C, H, W) are the unit
        samples for the examples in `rows` (M,)."""
        if self.gamma == 0:
            return
        whole = not self.rules and len(rows) == len(self.batch.ids)
        if self.rules:
            mine = self.open[rows]
            if not bool(mine.all()):
                rows, units = rows[mine], units[:, mine]
            if not len(rows):
                return
        block = len(units)
        copied = self.batch if whole and block == 1 else self.batch.take(rows.repeat(block))
        if copied.draw is not None:  # a randomised model has its own random pass for each copy
            numbers = torch.arange(first, first + block, device=rows.device)
            copied = replace(copied, draw=numbers.repeat_interleave(len(rows)))
        noisy = noise.apply(copied.images, units.flatten(0, 1), self.gamma)
        if not self.rules:
            right, unsure = self.classifier.search(copied, noisy)
            self.right[rows] += (right & ~unsure).view(block, len(rows)).sum(0)
            self.drawn[rows] += block
            self.unsure.append(_Unsure(noisy, unsure, rows.repeat(block)))
            if len(self.unsure) >= check_schedule(rows.device).every:
                self._settle()
            return
        right = self.classifier.right(copied, noisy).view(block, len(rows))
        counted = self._decide(rows, right)
        self.right[rows] += (right & counted).sum(0)
        self.drawn[rows] += counted.sum(0)

    def _decide(self, rows: Tensor, right: Tensor) -> Tensor:
        """Apply the rules to a block (B, M), one sample after the other. Returns a mask (B, M) of the samples
        that count, which are those up to the decision."""
        block = len(right)
        number = torch.arange(1, block + 1, device=rows.device)[:, None]
        drawn = self.drawn[rows] + number
        failed = (self.drawn - self.right)[rows] + (~right).cumsum(0)
        last = torch.zeros_like(rows)  # the sample of this block at which the last rule decided
        for place, (passes, fails) in enumerate(self.rules):
            here = failed.clamp(max=len(passes) - 1)
            passed, lost = drawn >= passes[here], drawn <= fails[here]
            decided = passed | lost
            first = decided.long().argmax(0)
            decision = torch.where(decided.any(0), passed.gather(0, first[None])[0].long(), -1)
            previous = self.decisions[rows, place]
            self.decisions[rows, place] = torch.where(previous >= 0, previous, decision)
            at = torch.where(decided.any(0), first, block)
            last = torch.maximum(last, torch.where(previous >= 0, 0, at))
        self.open[rows] = last >= block
        return number <= (last + 1)

    def _settle(self) -> None:
        """Count the copies that the exact model has to decide, reading data from the device only once."""
        left, self.unsure = self.unsure, []
        if not left:
            return
        sizes = [len(block.copies) for block in left]
        unsure = torch.cat([block.copies for block in left]).cpu()  # waits for a GPU
        places = [mine.nonzero()[:, 0] for mine in unsure.split(sizes)]
        pairs = zip(left, places, strict=True)
        chosen = [(block, uploaded(at, block.rows.device)) for block, at in pairs if len(at)]
        if chosen:
            rows = torch.cat([block.rows[at] for block, at in chosen])
            noisy = torch.cat([block.noisy[at] for block, at in chosen])
            self.right.index_add_(0, rows, self.classifier.confirm(self.batch.take(rows), noisy).long())

    def copies(self, chosen: Tensor) -> Copies:
        """The counts and decisions for all examples of the batch; -1 for examples that were not sampled."""
        self._settle()
        right = torch.full_like(chosen, -1, dtype=torch.int64)
        drawn = torch.zeros_like(right)
        decisions = right[:, None].repeat(1, self.decisions.shape[1])
        right[chosen], drawn[chosen], decisions[chosen] = self.right, self.drawn, self.decisions
        return Copies(right, drawn, decisions, self.classifier.totals())


class _Classifier:
    """Classifies copies with the fast model and, if the logits are nearly tied, with the exact model."""

    def __init__(self) -> None:
        self.error: Tensor | None = None
        self.seen = 0
        self.confirmed = 0

    def right(self, batch: Batch, noisy: Tensor) -> Tensor:
        """Whether each copy in `noisy` is classified correctly: bool (N,)."""
        right, unsure = self.search(batch, noisy)
        rows = unsure.nonzero()[:, 0]  # the only read that waits for a GPU
        if len(rows):
            right[rows] = self.confirm(batch.take(rows), noisy[rows])
        return right

    def search(self, batch: Batch, noisy: Tensor) -> tuple[Tensor, Tensor]:
        """Whether each copy is classified correctly, and whether the exact model has to decide, because the
        fast model's margin is small or not finite: bool (N,) each."""
        self.seen += len(noisy)
        if batch.fast_model is batch.model:
            logits = batch.unchecked_logits(noisy)
            return logits.argmax(1).eq(batch.labels), ~logits.isfinite().all(1)
        margins = logit_margin(batch.outputs(batch.fast_model, noisy).float(), batch.labels)
        if self.error is None:  # the largest error of the first copies
            first = batch.take(slice(0, _COMPARED))
            exact = logit_margin(first.logits(noisy[:_COMPARED]), first.labels)
            self.error = (margins[:_COMPARED] - exact).abs().max()
            self.confirmed += len(exact)
        return margins > 0, ~(margins.abs() > _SAFETY * self.error)  # true for NaN, too

    def confirm(self, batch: Batch, noisy: Tensor) -> Tensor:
        """Whether the exact model classifies each copy correctly: bool (N,)."""
        self.confirmed += len(noisy)
        return batch.correct(noisy)

    def totals(self) -> dict[str, float]:
        exact = {"confirmed": float(self.confirmed)} if self.error is not None else {}
        return {"forward": float(self.seen + self.confirmed), "backward": 0.0, "copies": self.seen, **exact}
