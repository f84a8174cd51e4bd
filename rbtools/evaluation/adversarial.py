"""Whether an attack broke an example: decided here, in float32, inside the budget."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rbtools.attacks import steps
from rbtools.attacks.base import Attack
from rbtools.errors import RbError
from rbtools.evaluation.batches import Batch
from rbtools.evaluation.counting import CountingModel


class AttackResult(NamedTuple):
    """What became of a batch's examples under an attack.

    survived: bool (N,), classified right unchanged and under the attack. images: (N, C, H, W), what the
    attack made of them; logits: float32 (N, K) there. totals: sums over the examples.
    """

    survived: Tensor
    images: Tensor
    logits: Tensor
    totals: dict[str, float]


def run_attack(
    batch: Batch,
    method: Attack,
    before: AttackResult | None = None,
    standing: Tensor | None = None,
    on: nn.Module | None = None,
) -> AttackResult:
    """Attack the examples that are classified right, or of them only those in `standing` (N,).

    A clean error counts as broken and is not attacked. Whatever the attack returns is projected
    onto the budget and the box first, so that a wrong attack cannot report a false success. A search on
    a prepared model decides nothing: what it takes for broken stays in the attack until the model itself
    agrees; where they still disagree at the end, the example is attacked again on the model itself (not
    where `iterate` is "last", which judges one point alone). `before`: the verdict at a smaller distance,
    whose images stand where nothing is attacked here. `on`: another model to attack; its adversarial
    examples are what is judged.
    """
    start = time.perf_counter()
    images = batch.images.clone() if before is None else before.images.clone()
    logits = batch.clean_logits.clone() if before is None else before.logits.clone()
    survived = batch.clean.clone() if standing is None else batch.clean & standing
    totals = {"forward": float(len(images)), "backward": 0.0}
    if survived.any() and method.eps > 0:
        left = batch.take(survived)
        points, outputs = _attempt(left, method, on, totals) if on else _perturbed(left, method, totals)
        rows = survived.nonzero()[:, 0]
        images[rows], logits[rows] = points, outputs
        survived[rows] = outputs.argmax(1) == left.labels
    totals["seconds"] = time.perf_counter() - start
    return AttackResult(survived, images, logits, totals)


def _perturbed(batch: Batch, method: Attack, totals: dict[str, float]) -> tuple[Tensor, Tensor]:
    """What the attack makes of the examples, and the model's logits there."""
    exact = batch.fast_model is batch.model or method.batch_dependent
    images, logits = _attempt(batch, method, batch.model if exact else batch.fast_model, totals)
    if exact or method.iterate == "last":
        return images, logits
    standing = logits.argmax(1) == batch.labels
    believed = torch.zeros_like(standing)
    if standing.any():
        believed[standing.clone()] = ~batch.take(standing).judged(batch.fast_model, images[standing])
        totals["forward"] += float(standing.sum())
    totals["unconfirmed"] = totals.get("unconfirmed", 0.0) + float(believed.sum())
    if believed.any():
        images[believed], logits[believed] = _attempt(batch.take(believed), method, batch.model, totals, True)
    return images, logits


def _attempt(
    batch: Batch, method: Attack, model: nn.Module, totals: dict[str, float], again: bool = False
) -> tuple[Tensor, Tensor]:
    """Run the attack on a model: images inside the budget, and the logits of the model that decides."""
    # AutoAttack's own code draws for a batch as a whole: it gets the fixed batch undivided.
    whole = method.batch_dependent
    decides = batch.model if model is batch.fast_model is not batch.model else None
    metered = CountingModel(model, None if whole else batch.chunk_size, decides)
    metered.begin(len(batch.ids))
    draws = batch.draws(f"attack.{method.name}")
    perturbed, findings = method.run(metered, batch.images, batch.labels, draws)
    if perturbed.shape != batch.images.shape:
        raise RbError(
            f"The attack {method.name} returned images of shape {tuple(perturbed.shape)}; expected"
            f" {tuple(batch.images.shape)}. This is an error in the attack."
        )
    if not torch.isfinite(perturbed).all():
        first = int((~torch.isfinite(perturbed)).flatten(1).any(1).nonzero()[0])
        raise RbError(
            f"The attack {method.name} gave NaN or infinite pixels for image {int(batch.ids[first])}. Check"
            " that the gradient of the model is finite there."
        )
    norm = method.norm
    perturbed = steps.project(perturbed.detach().float(), batch.images, method.eps, norm)
    logits = batch.logits(perturbed)
    sums: dict[str, float] = {"forward": metered.forwards + len(perturbed), "backward": metered.backwards}
    if metered.backwards and not again:
        sums |= {"started": len(perturbed), "zero_gradient": metered.zero_gradients}
    loss = method.loss_for(logits.shape[1])
    if loss is not None:
        sums[f"loss.{loss}"] = len(perturbed)
    if "distance" in findings:
        near = findings["distance"][torch.isfinite(findings["distance"])]
        sums |= {"distance": float(near.sum()), "distances": len(near)}
    if "broken_by" in findings:
        broken = findings["broken_by"][logits.argmax(1) != batch.labels]
        for number in broken.unique().tolist():
            sums[f"broken_by.{number}"] = int((broken == number).sum())
    for name, value in sums.items():
        totals[name] = totals.get(name, 0.0) + float(value)
    return perturbed, logits
