"""Attacks the examples of a batch.

The exact model, or a float32 copy of it (attacks/verdicts.py), decides which examples are broken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.attacks import ATTACKS, lattice
from rbtools.attacks.decision import AT
from rbtools.attacks.losses import logit_margin
from rbtools.errors import RbError
from rbtools.evaluation.base import Batch
from rbtools.lazy import nn, torch

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.base import Attack
    from rbtools.attacks.oracle import Oracle

_COMPARED = 4  # images of an attack for which a float32 copy has to have the logits of the model
_ROUNDINGS = 4  # within this multiple of the largest measured rounding error, an example is attacked again


class AttackResult(NamedTuple):
    """The result of an attack on the examples of a batch.

    `survived` is bool (N,), true if an example is classified correctly both unchanged and under the attack.
    `images` are the perturbed images (N, C, H, W), and `logits` are their logits, float32 (N, K). `totals`
    are sums over the examples. If the points of the threat are not images, `points` (N, ...) contains them,
    with NaN for examples that were not attacked. `marks` are the points of a search after fewer queries, with
    the numbers of queries, and also NaN for examples that were not attacked.
    """

    survived: Tensor
    images: Tensor
    logits: Tensor
    totals: dict[str, float]
    points: Tensor | None = None
    marks: Mapping[str, Tensor] = {}


def run_attack(
    batch: Batch,
    method: Attack,
    previous: AttackResult | None = None,
    still_correct: Tensor | None = None,
    on: nn.Module | None = None,
    everyone: bool = False,
) -> AttackResult:
    """Attack the examples that are classified correctly. With `still_correct` (N,), attack only those for
    which it is true. With `everyone`, misclassified examples are attacked, too.

    A misclassified clean example counts as broken and is not attacked. The images that the attack returns are
    projected onto the budget, the box and the attack's lattice before they are classified. A faulty attack
    therefore cannot report a false success. An example that the fast model misclassifies stays in the attack
    until float32 also misclassifies it; on a GPU, the exact model is run every few steps. If rounding errors
    of the fast copy may have decided an example, it is attacked again on the exact model (`_doubtful`).
    `previous` is the result at a smaller eps; its images are kept for the examples that are not attacked
    here. `on` is another model to attack; its adversarial examples are evaluated on the model of the batch.
    """
    check_answers(on or batch.model, method)
    start = batch.partial.clock()
    images = batch.images.clone() if previous is None else previous.images.clone()
    if everyone:
        logits, survived = None, torch.ones_like(batch.labels, dtype=torch.bool)
    else:
        logits = batch.clean_logits.clone() if previous is None else previous.logits.clone()
        survived = batch.clean.clone() if still_correct is None else batch.clean & still_correct
    totals = {"forward": 0.0 if everyone else float(len(images)), "backward": 0.0}
    searched: Any = batch.fast_model
    if method.precise:
        searched = None if batch.judge is None else batch.judge.copy
    copied = not (on is not None or method.batch_dependent or searched in (None, batch.model))
    networks = [searched, batch.model] if copied else [on or batch.model]
    rows, outside = survived.nonzero()[:, 0], torch.zeros_like(survived)
    every = None if previous is None or previous.points is None else previous.points.clone()
    marks: dict[str, Tensor] = {}
    for network in networks if not method.threat.empty else ():
        if not len(rows):
            break
        some = batch.take(rows)
        oracle = _oracle(some, method, network, copied and network is searched)
        draws = some.draws(f"attack.{method.name}")
        found = some.partial.open(oracle)
        if found is None:
            points, findings = method.runner(oracle)(oracle, some.images, some.labels, draws)
            found = some.partial.close({"points": points, **findings})
        found_images, far = _allowed(some, method, found["points"])
        outside[rows] = far | found.get("outside", far)
        outputs = some.logits(found_images)
        if some.judge is not None and not _agree(some, found_images, outputs):
            batch, some = replace(batch, judge=None), replace(some, judge=None)
            outputs = some.logits(found_images)
        logits = outputs.clone() if logits is None else logits
        images[rows], logits[rows] = found_images, outputs
        if not method.in_ball:
            every = _unknown(found["points"], len(images)) if every is None else every
            every[rows] = found["points"].float()
        for name in (one for one in found if one.startswith(AT) or one == "asked"):
            marks[name] = _unknown(found[name], len(images))
            marks[name][rows] = found[name].float()
        survived[rows] = outputs.argmax(1) == some.labels
        _add(totals, some, method, oracle, outputs, found, again=copied and network is batch.model)
        if network is not networks[-1]:
            rows = rows[_doubtful(some, method, oracle, found_images, outputs, totals)]
    totals |= {"outside": float(outside.sum()), "seconds": batch.partial.clock() - start}
    logits = batch.clean_logits if logits is None else logits
    return AttackResult(survived, images, logits, totals, every, marks)


def _agree(batch: Batch, images: Tensor, logits: Tensor) -> bool:
    """Whether the model has nearly these logits (N, K) for the first images (N, C, H, W) of an attack."""
    assert batch.judge is not None
    return batch.judge.agrees(batch.outputs(batch.model, images[:_COMPARED]), logits[:_COMPARED])


def _unknown(points: Tensor, count: int) -> Tensor:
    return points.new_full((count, *points.shape[1:]), torch.nan, dtype=torch.float32)


def answers_of(model: object) -> str:
    """What a model returns ("logits with gradients", "logits" or "labels"), even if it is wrapped, for
    example in defence stages."""
    parts = model.modules() if isinstance(model, nn.Module) else ()
    limited = [str(part.answers) for part in parts if hasattr(part, "answers")]
    return limited[0] if limited else "logits with gradients"


class CannotRun(RbError):
    """Raised if an attack needs more than the model returns."""


def check_answers(model: object, method: Attack) -> None:
    """Raise CannotRun if the attack needs more than the model returns (`models.answering`)."""
    answers = answers_of(model)
    if method.needs != "labels" and method.needs not in answers:
        raise _cannot_run(method, answers)


def able(method: Attack, answers: str, *, eight_bit: bool) -> tuple[Attack, tuple[str, ...]]:
    """The attack, or the part of it that can run, for a model that returns only "logits" or "labels", and the
    names of the attacks that are left out. With `eight_bit`, the model receives 8-bit images, and the attack
    returns 8-bit images. Raises CannotRun if no part can run."""
    left = method.able(answers)
    if left is None:
        raise _cannot_run(method, answers)
    out = tuple(part.name for part in method.parts if part.able(answers) is None)
    if eight_bit and left.grid == "none":
        left = replace(left, grid="8bit")
        left.check_distance()
    return left, out


def _cannot_run(method: Attack, answers: str) -> CannotRun:
    known = []
    needs = "logits" if any(part.needs == "logits" for part in method.parts) else method.needs
    for name in (*ATTACKS, *ATTACKS.plugins):
        with contextlib.suppress(RbError):  # the module of an installed package fails
            cls = ATTACKS.load(name)
            enough = not cls.uses_gradients and ("logits" in answers or not cls.uses_logits)
            known += [name] if enough else []
    return CannotRun(
        f"The attack {method.name} needs {needs}, but the model returns only {answers}. Attacks that need"
        f" only these are {', '.join(known)}."
    )


def _doubtful(
    batch: Batch, method: Attack, oracle: Oracle, images: Tensor, logits: Tensor, totals: dict[str, float]
) -> Tensor:
    """The examples (N,) whose outcome may be an effect of the fast copy's rounding errors.

    `images` (N, C, H, W) are the images that the attack found, and `logits` (N, K) are the logits that
    decided. The rounding error is the largest difference between the margins of copy and model at these
    images. An example that is still correct is in doubt if the copy misclassifies its image, or if a margin
    of the copy during the search was within a multiple of the rounding error. If only the last iterate
    counts, an example is in doubt, correct or not, if its last margin is that small. If margins are not
    finite, every such example is in doubt. A float32 copy decides as the model does, except for ties, and a
    single step or a last iterate does not use its decisions.
    """
    least, correct = oracle.least, logits.argmax(1) == batch.labels
    compared = torch.ones_like(correct) if least is not None else correct
    if least is None and batch.judge is not None:
        compared = correct & batch.judge.tied(logits)
    last = method.single_step or method.iterate == "last"
    doubt = torch.zeros_like(correct)
    if (least is None and last) or not compared.any():
        return doubt
    copies = batch.take(compared).outputs(oracle.model, images[compared])
    totals["forward"] += float(len(copies))
    doubt[compared] = correct[compared] & (copies.argmax(1) != batch.labels[compared])
    if least is not None:
        margin, of_copy = (logit_margin(some, batch.labels) for some in (logits, copies))
        near = _ROUNDINGS * (margin - of_copy).abs().max()
        smallest = margin.abs() if last else torch.minimum(least, of_copy)
        doubt |= ~(smallest > near) & (correct | last)
    totals["unconfirmed"] = totals.get("unconfirmed", 0.0) + float(doubt.sum())
    return doubt


def _oracle(batch: Batch, method: Attack, network: Any, copied: bool) -> Oracle:
    """The oracle for an attack on a network, which is a fast copy of the exact model if `copied` is true."""
    from rbtools.attacks.oracle import Oracle, PassCounts
    from rbtools.evaluation.fast_model import is_float32

    passes = PassCounts(first=len(batch.ids) * method.draws_each, watch=batch.watch)
    # AutoAttack's own code samples random numbers for the whole batch, which is therefore not divided.
    chunk = None if method.batch_dependent else batch.chunk_size
    oracle = Oracle(network, chunk, batch.model if copied else None, batch.judge, passes=passes)
    oracle.partial = batch.partial
    if copied and not is_float32(network):
        oracle.least = torch.full_like(batch.images[:, 0, 0, 0], torch.inf)
    return oracle


def _allowed(batch: Batch, method: Attack, points: Tensor) -> tuple[Tensor, Tensor]:
    """The images of an attack, projected onto its threat, and whether they were outside it (N,). Raises
    RbError if the attack returned images of another shape, or values that are not finite."""
    shape = tuple(batch.images.shape) if method.in_ball else (len(batch.images), *points.shape[1:])
    if tuple(points.shape) != shape:
        raise RbError(
            f"The attack {method.name} returned {'images' if method.in_ball else 'points'} of shape"
            f" {tuple(points.shape)}; expected {shape}. This is an error in the attack."
        )
    if not torch.isfinite(points).all():
        first = int((~torch.isfinite(points)).reshape(len(points), -1).any(1).nonzero()[0])
        what = "pixels" if method.in_ball else "points"
        hint = " Check that the gradient of the model is finite there." * method.uses_gradients
        raise RbError(
            f"The attack {method.name} returned NaN or infinite {what} for image"
            f" {int(batch.ids[first])}.{hint}"
        )
    allowed = method.threat.contains(points.detach().float(), batch.images)
    if tuple(allowed.shape) != (len(points),):
        raise RbError(
            f"The threat {method.threat.name} returned the shape {tuple(allowed.shape)} from contains() for"
            f" {len(points)} points. Expected one value for each point. This is an error in the threat."
        )
    outside = ~allowed
    return lattice.project(points, batch.images, method), outside


def _add(
    totals: dict[str, float],
    batch: Batch,
    method: Attack,
    oracle: Oracle,
    logits: Tensor,
    findings: Mapping[str, Tensor],
    again: bool,
) -> None:
    """Add the counts of one attack, summed over the examples of a batch, to `totals`."""
    passes = oracle.passes
    sums: dict[str, float] = {"forward": passes.forwards + len(logits), "backward": passes.backwards}
    if passes.backwards and not again:
        sums |= {"started": passes.started, "zero_gradient": passes.zero_gradients}
    loss = method.loss_for(logits.shape[1])
    if loss is not None:
        sums[f"loss.{loss}"] = len(logits)
    if "distance" in findings:
        distances = findings["distance"][torch.isfinite(findings["distance"])]
        sums |= {"distance": float(distances.sum()), "distances": len(distances)}
    if "broken_by" in findings:
        broken = findings["broken_by"][logits.argmax(1) != batch.labels]
        for number in broken.unique().tolist():
            sums[f"broken_by.{number}"] = int((broken == number).sum())
    for name, value in sums.items():
        totals[name] = totals.get(name, 0.0) + float(value)
