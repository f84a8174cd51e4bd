"""Attacks the examples of a batch. The exact model decides in float32 whether an example is broken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from rbtools.attacks import lattice
from rbtools.errors import RbError
from rbtools.evaluation.base import Batch
from rbtools.lazy import nn, torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.base import Attack
    from rbtools.evaluation.fast_model import CountingModel


class AttackResult(NamedTuple):
    """The result of an attack on the examples of a batch.

    `survived` is bool (N,), true if an example is classified correctly both unchanged and under the attack.
    `images` are the perturbed images (N, C, H, W), and `logits` are their logits, float32 (N, K). `totals`
    are sums over the examples.
    """

    survived: Tensor
    images: Tensor
    logits: Tensor
    totals: dict[str, float]


def run_attack(
    batch: Batch,
    method: Attack,
    previous: AttackResult | None = None,
    still_correct: Tensor | None = None,
    on: nn.Module | None = None,
) -> AttackResult:
    """Attack the examples that are classified correctly. With `still_correct` (N,), attack only those for
    which it is true.

    A misclassified clean example counts as broken and is not attacked. The images that the attack returns are
    projected onto the budget, the box and the attack's lattice before they are classified. A faulty attack
    therefore cannot report a false success. An example that the fast model misclassifies stays in the attack
    until the exact model also misclassifies it; on a GPU, the exact model is run every few steps. If the two
    models still disagree at the end, the example is attacked again on the exact model, unless `iterate` is
    "last", which evaluates only the last iterate. `previous` is the result at a smaller eps; its images are
    kept for the examples that are not attacked here. `on` is another model to attack, whose adversarial
    examples are evaluated on the model of the batch.
    """
    from rbtools.evaluation.fast_model import is_float32

    start = batch.partial.clock()
    images = batch.images.clone() if previous is None else previous.images.clone()
    logits = batch.clean_logits.clone() if previous is None else previous.logits.clone()
    survived = batch.clean.clone() if still_correct is None else batch.clean & still_correct
    totals = {"forward": float(len(images)), "backward": 0.0}
    if survived.any() and method.eps > 0:
        left = batch.take(survived)
        exact = on is not None or batch.fast_model is batch.model or method.batch_dependent
        network = on or (batch.model if exact else batch.fast_model)
        points, outputs = _attempt(left, method, network, totals)
        # A single step uses no decision of the fast model. In float32, both models decide alike, and a pass
        # that finds differences would cost as much as the step.
        confirmed = method.iterate == "last" or (method.single_step and is_float32(batch.fast_model))
        if not exact and not confirmed:
            _repeat_unconfirmed(left, method, points, outputs, totals)
        rows = survived.nonzero()[:, 0]
        images[rows], logits[rows] = points, outputs
        survived[rows] = outputs.argmax(1) == left.labels
    totals["seconds"] = batch.partial.clock() - start
    return AttackResult(survived, images, logits, totals)


def _repeat_unconfirmed(
    batch: Batch, method: Attack, images: Tensor, logits: Tensor, totals: dict[str, float]
) -> None:
    """Attack again, on the exact model, the examples that only the fast model misclassifies at the end.
    `images` (N, C, H, W) and the exact model's `logits` (N, K) are changed in place."""
    still_correct = logits.argmax(1) == batch.labels
    unconfirmed = torch.zeros_like(still_correct)
    if still_correct.any():
        left = batch.take(still_correct)
        found = left.outputs(batch.fast_model, images[still_correct]).argmax(1)
        unconfirmed[still_correct] = found != left.labels
        totals["forward"] += float(still_correct.sum())
    totals["unconfirmed"] = totals.get("unconfirmed", 0.0) + float(unconfirmed.sum())
    if unconfirmed.any():
        again = _attempt(batch.take(unconfirmed), method, batch.model, totals, True)
        images[unconfirmed], logits[unconfirmed] = again


def searched(
    batch: Batch, method: Attack, model: nn.Module, decides: nn.Module | None = None
) -> tuple[Tensor, Mapping[str, Tensor], CountingModel]:
    """Attack all examples. Returns the images (N, C, H, W), inside the budget; the other results of the
    attack; and the model that counted the passes. Raises RbError if the attack returns images of another
    shape, or values that are not finite."""
    from rbtools.evaluation.fast_model import CountingModel

    # AutoAttack's own code samples random numbers for the whole batch, which is therefore not divided.
    counting = CountingModel(model, None if method.batch_dependent else batch.chunk_size, decides)
    counting.begin(len(batch.ids) * method.draws_each)
    counting.watch, counting.partial = batch.watch, batch.partial
    draws = batch.draws(f"attack.{method.name}")

    def attack() -> dict[str, Tensor]:
        perturbed, findings = lattice.run(method, counting, batch.images, batch.labels, draws)
        return {"perturbed": perturbed, **findings}

    findings = dict(counting.once(attack))
    perturbed = findings.pop("perturbed")
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
    return lattice.project(perturbed, batch.images, method), findings, counting


def _attempt(
    batch: Batch, method: Attack, model: nn.Module, totals: dict[str, float], again: bool = False
) -> tuple[Tensor, Tensor]:
    """Attack a model. Returns the images, inside the budget, and their logits by the exact model."""
    decides = batch.model if model is batch.fast_model is not batch.model else None
    perturbed, findings, counting = searched(batch, method, model, decides)
    logits = batch.logits(perturbed)
    sums: dict[str, float] = {"forward": counting.forwards + len(perturbed), "backward": counting.backwards}
    if counting.backwards and not again:
        sums |= {"started": len(perturbed) * method.draws_each, "zero_gradient": counting.zero_gradients}
    loss = method.loss_for(logits.shape[1])
    if loss is not None:
        sums[f"loss.{loss}"] = len(perturbed)
    if "distance" in findings:
        distances = findings["distance"][torch.isfinite(findings["distance"])]
        sums |= {"distance": float(distances.sum()), "distances": len(distances)}
    if "broken_by" in findings:
        broken = findings["broken_by"][logits.argmax(1) != batch.labels]
        for number in broken.unique().tolist():
            sums[f"broken_by.{number}"] = int((broken == number).sum())
    for name, value in sums.items():
        totals[name] = totals.get(name, 0.0) + float(value)
    return perturbed, logits


def attempted(batch: Batch, method: Attack, model: nn.Module) -> tuple[Tensor, dict[str, float]]:
    """The images of an attack on all examples of the batch, and sums over the examples."""
    totals: dict[str, float] = {}
    if method.eps == 0:
        return batch.images, totals
    return _attempt(batch, method, model, totals)[0], totals
