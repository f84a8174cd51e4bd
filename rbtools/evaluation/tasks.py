"""The tasks that most tools run: accuracy on unchanged, attacked and corrupted images.

An attack only proposes: whether it broke an example is decided in float32 and inside the budget
(`run_attack`). Nothing here imports torch before a batch is measured, so that a task whose outcomes are all
stored only reads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rbtools import registry
from rbtools.attacks import lattice
from rbtools.corruptions import CORRUPTIONS
from rbtools.errors import RbError
from rbtools.evaluation import diagnostics
from rbtools.evaluation.base import Batch, EvalTask, Outcome, Output, method_key
from rbtools.lazy import nn, np, torch
from rbtools.probabilistic import estimate, intervals
from rbtools.records import metric_name
from rbtools.scoring import corruptions as sums

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.base import Attack
    from rbtools.evaluation.base import Correct, Entries

Rows = TypeVar("Rows", "np.ndarray", "Tensor")


def rows_of(batch: Batch, logits: Tensor, detail: bool) -> Tensor:
    """The outcomes (N,) of a batch's examples, from their logits (N, K), or their rows (N, 1 + K)."""
    if detail:
        return torch.cat([batch.labels[:, None].float(), logits], dim=1)
    return logits.argmax(1).eq(batch.labels).int()


def right(outcomes: Rows, detail: bool) -> Rows:
    """Which examples (N,) are classified correctly, from outcomes or rows."""
    return outcomes[:, 1:].argmax(1) == outcomes[:, 0] if detail else outcomes


def accuracy_entries(output: Output, outcomes: np.ndarray) -> list[dict[str, Any]]:
    """The entries of an accuracy, with confidence and confusion if the output keeps the logits."""
    fields = {"detail": diagnostics.of_rows(outcomes)} if output.detail else {}
    bits = right(outcomes, output.detail)
    return [accuracy_entry(template, bits) | fields for template in output.entry_template()]


def rows_key(detail: bool) -> dict[str, Any]:
    """The key field for rows that are kept in place of bits."""
    return {"rows": "label, logits"} if detail else {}


def accuracy_entry(template: dict[str, Any], outcomes: np.ndarray) -> dict[str, Any]:
    """The entry of an accuracy: outcomes are 1 for examples that are still classified correctly."""
    n, right = len(outcomes), int(outcomes.sum())
    return {**template, "n": n, "value": right / n, "ci95": list(intervals.wilson(right, n))}


@dataclass(frozen=True)
class CleanOutput(Output):
    """Accuracy on the unchanged images; with `among` by the logits of these classes only."""

    random = False
    implicit: bool = True
    detail: bool = False
    among: tuple[int, ...] = ()

    @property
    def fixed_batches(self) -> bool:
        return self.detail  # logits are kept to the bit

    def key_fields(self) -> dict[str, Any]:
        among = {"among": list(self.among)} if self.among else {}
        return {"kind": "clean", **rows_key(self.detail), **among}

    def entry_template(self) -> list[dict[str, Any]]:
        return [{"metric": "acc-among" if self.among else "acc"}]

    def measure(self, batch: Batch) -> Tensor:
        logits = batch.clean_logits
        if self.among:
            others = [index for index in range(logits.shape[1]) if index not in self.among]
            logits = logits.index_fill(1, torch.tensor(others, device=logits.device), -torch.inf)
        return rows_of(batch, logits, self.detail)

    def judged_images(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        return batch.images, {}

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        return accuracy_entries(self, outcomes)


@dataclass(frozen=True)
class AccuracyTask(EvalTask):
    """Clean accuracy as the requested result, for `rb-attack none` and `rb-ge acc`; with `among` also by the
    logits of these classes only."""

    title = "clean accuracy"
    detail: bool = False
    among: tuple[int, ...] = ()

    def outputs(self) -> Sequence[CleanOutput]:
        clean = CleanOutput(implicit=False, detail=self.detail)
        return [replace(clean, detail=False, among=self.among), clean] if self.among else [clean]


def attack_settings(method: Attack, **more: object) -> dict[str, Any]:
    """The settings of the attack in an entry: its name and configuration, with the norm and step in use.

    They do not make the key: each output has `key_fields` of its own.
    """
    settings = registry.config(method)
    settings.setdefault("norm", method.norm)
    if "step_size" in settings:
        settings["step_size"] = lattice.searched(method).effective_step_size
    return {"attack": method.name, **more, **settings}


class AttackResult(NamedTuple):
    """Result of an attack on the examples of a batch.

    survived: bool (N,), classified correctly unchanged and under the attack. images: (N, C, H, W), the
    perturbed images; logits: float32 (N, K) on them. totals: sums over the examples.
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
    """Attack the examples that are classified correctly, or only those of them in `still_correct` (N,).

    A misclassified clean example counts as broken and is not attacked. The images that the attack returns are
    projected onto the budget, the box and the attack's lattice first, so that a wrong attack cannot report a
    false success. The fast model decides nothing: an example that it misclassifies stays in the attack until
    the model itself agrees (on a GPU the model is asked every few steps); if they still
    disagree at the end, the example is attacked again on the model itself (not with `iterate` "last", which
    only evaluates the last iterate). `previous`: the result at a
    smaller eps, whose images are kept for examples that are not attacked here. `on`: another model to attack;
    its adversarial examples are evaluated on this one.
    """
    from rbtools.evaluation.fast_model import is_float32

    start = time.perf_counter()
    images = batch.images.clone() if previous is None else previous.images.clone()
    logits = batch.clean_logits.clone() if previous is None else previous.logits.clone()
    survived = batch.clean.clone() if still_correct is None else batch.clean & still_correct
    totals = {"forward": float(len(images)), "backward": 0.0}
    if survived.any() and method.eps > 0:
        left = batch.take(survived)
        exact = on is not None or batch.fast_model is batch.model or method.batch_dependent
        network = on or (batch.model if exact else batch.fast_model)
        points, outputs = _attempt(left, method, network, totals)
        # A single step follows no decision of the fast model; in float32 both decide alike, and a pass to
        # find where they do not would cost as much as the step.
        confirmed = method.iterate == "last" or (method.single_step and is_float32(batch.fast_model))
        if not exact and not confirmed:
            _repeat_unconfirmed(left, method, points, outputs, totals)
        rows = survived.nonzero()[:, 0]
        images[rows], logits[rows] = points, outputs
        survived[rows] = outputs.argmax(1) == left.labels
    totals["seconds"] = time.perf_counter() - start
    return AttackResult(survived, images, logits, totals)


def _repeat_unconfirmed(
    batch: Batch,
    method: Attack,
    images: Tensor,
    logits: Tensor,
    totals: dict[str, float],
) -> None:
    """Attack the examples again, on the model itself, that only the fast model misclassifies at the end.

    images: (N, C, H, W), the perturbed ones; logits: (N, K), the model's on them. Both are changed in place.
    """
    still_correct = logits.argmax(1) == batch.labels
    unconfirmed = torch.zeros_like(still_correct)
    if still_correct.any():
        unconfirmed[still_correct] = ~batch.take(still_correct).judged(
            batch.fast_model, images[still_correct]
        )
        totals["forward"] += float(still_correct.sum())
    totals["unconfirmed"] = totals.get("unconfirmed", 0.0) + float(unconfirmed.sum())
    if unconfirmed.any():
        again = _attempt(batch.take(unconfirmed), method, batch.model, totals, True)
        images[unconfirmed], logits[unconfirmed] = again


def _attempt(
    batch: Batch, method: Attack, model: nn.Module, totals: dict[str, float], again: bool = False
) -> tuple[Tensor, Tensor]:
    """Run the attack on a model: images inside the budget, and the logits of the model that decides."""
    # AutoAttack's own code draws random numbers for the whole batch: it gets the fixed batch undivided.
    whole = method.batch_dependent
    decides = batch.model if model is batch.fast_model is not batch.model else None
    from rbtools.evaluation.fast_model import CountingModel

    counting = CountingModel(model, None if whole else batch.chunk_size, decides)
    counting.begin(len(batch.ids) * method.draws_each)
    counting.watch = batch.watch
    draws = batch.draws(f"attack.{method.name}")
    perturbed, findings = lattice.run(method, counting, batch.images, batch.labels, draws)
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
    perturbed = lattice.project(perturbed, batch.images, method)
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
    """The images of an attack on a model, all of them attacked, and sums over the examples."""
    totals: dict[str, float] = {}
    if method.eps == 0:
        return batch.images, totals
    return _attempt(batch, method, model, totals)[0], totals


@dataclass(frozen=True)
class AttackOutput(Output):
    """Which examples stay correctly classified under an attack at one eps.

    ladder: smaller eps at which it ran before; an example broken there counts as broken here. detail: the row
    of an example is its label and its logits under the attack, in place of a bit.
    """

    method: Any
    ladder: tuple[float, ...] = ()
    detail: bool = False

    @property
    def random(self) -> bool:
        return bool(self.method.random)

    @property
    def batch_dependent(self) -> bool:
        return bool(self.method.batch_dependent)

    @property
    def needs_other_outputs(self) -> bool:
        return bool(self.ladder)

    @property
    def allow_fast_model(self) -> bool:
        """AutoAttack's own code gets the float32 model."""
        return not self.batch_dependent

    def key_fields(self) -> dict[str, Any]:
        ladder = {"ladder": list(self.ladder)} if self.ladder else {}
        # Means over draws were of one draw after the other, and broke an example by the mean.
        mean = {"eot_version": 2} if self.method.draws_each > 1 else {}
        return {**method_key("attack", "attack", self.method), **ladder, **rows_key(self.detail), **mean}

    def postprocess_key(self) -> dict[str, Any]:
        # Earlier versions called ensembles of other attacks aa, like AutoAttack: their entries are computed
        # again.
        return {"metric": self.metric} if getattr(self.method, "attacks", "") else {}

    @property
    def metric(self) -> str:
        """The name of its result."""
        return metric_name.attack_name(self.method.stem, self.method.eps, self.method.norm)

    def still_correct(self, outcomes: Tensor) -> Tensor:
        """Which examples survived (N,), from their outcomes or rows."""
        still_correct: Tensor = right(outcomes, self.detail).bool()
        return still_correct

    def entry_template(self) -> list[dict[str, Any]]:
        loss = self.method.loss
        ladder = {"ladder": list(self.ladder)} if self.ladder else {}
        mean = {"eot_mean": self.method.mean_of} if self.method.draws_each > 1 else {}
        return [{"metric": self.metric, **attack_settings(self.method, loss=loss), **ladder, **mean}]

    def judged_images(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        return attempted(batch, self.method, batch.model)

    def about(self, totals: Mapping[str, float], n: int) -> dict[str, Any]:
        return diagnostics.of_attack(self.method, totals, n)

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        fields = self.about(totals, len(outcomes))
        return [entry | fields for entry in accuracy_entries(self, outcomes)]


@dataclass(frozen=True)
class AttackTask(EvalTask):
    """Accuracy under one attack, for any number of eps.

    `ladder`: smaller eps come first, and examples broken there are not attacked at larger ones. `detail`
    keeps the logits of each example; `save` names a folder for the adversarial images, `png` adds PNGs.
    """

    method: Any
    eps: tuple[float, ...]
    ladder: bool = False
    detail: bool = False
    save: str | None = None
    png: bool = False

    @property
    def title(self) -> str:
        return str(self.method.stem)

    def outputs(self) -> Sequence[Output]:
        def smaller(eps: float) -> tuple[float, ...]:
            return tuple(other for other in sorted(self.eps) if other < eps) if self.ladder else ()

        attacked = [AttackOutput(replace(self.method, eps=e), smaller(e), self.detail) for e in self.eps]
        return [CleanOutput(detail=self.detail), *attacked]

    def run(self, batch: Batch, wanted: Sequence[Output]) -> list[Tensor | Outcome]:
        outcomes: dict[Any, Any] = {}
        previous: dict[float, Any] = {}
        for output in sorted(wanted, key=_distance):
            if isinstance(output, AttackOutput):
                last, still_correct = self._smaller(batch, output, previous)
                result = run_attack(batch, output.method, last, still_correct)
                previous[output.method.eps] = result
                values = result.survived.int()
                if self.detail:
                    values = rows_of(batch, result.logits, self.detail)
                outcomes[output] = Outcome(values, result.totals, result.images)
            elif isinstance(output, CleanOutput):
                outcomes[output] = output.measure(batch)
        return [outcomes[output] for output in wanted]

    def _smaller(
        self, batch: Batch, output: AttackOutput, previous: Mapping[float, Any]
    ) -> tuple[Any, Tensor | None]:
        """The result at the next smaller eps, if it was computed, and which examples survived there (N,)."""
        last = previous.get(output.ladder[-1]) if output.ladder else None
        if last is not None or not output.ladder:
            return last, None if last is None else last.survived
        # its outcomes are stored
        smaller = replace(output, method=replace(output.method, eps=output.ladder[-1]))
        smaller = replace(smaller, ladder=output.ladder[:-1])
        return None, smaller.still_correct(batch.precomputed[smaller])


def _distance(output: Output) -> float:
    """Sorting key: clean accuracy first, then by eps."""
    return float(output.method.eps) if isinstance(output, AttackOutput) else -1.0


@dataclass(frozen=True)
class CorruptionOutput(Output):
    """Which examples are classified correctly under one corruption at one severity."""

    corruption: Any
    severity: int
    detail: bool = False

    @property
    def random(self) -> bool:
        return bool(self.corruption.random)

    @property
    def fixed_batches(self) -> bool:
        return self.detail  # logits are kept to the bit

    def key_fields(self) -> dict[str, Any]:
        key = method_key("corruption", "corruption", self.corruption)
        return {**key, "severity": self.severity, **rows_key(self.detail)}

    def measure(self, batch: Batch) -> Tensor:
        return rows_of(batch, batch.logits(self.judged_images(batch)[0]), self.detail)

    def judged_images(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        draws = batch.draws(f"corruption.{self.corruption.name}")
        return self.corruption(batch.images, self.severity, draws), {}

    def entry_template(self) -> list[dict[str, Any]]:
        name, severity = self.corruption.name, self.severity
        named = {"metric": metric_name.corrupt_name(name, severity), "corruption": name, "severity": severity}
        return [named | registry.config(self.corruption)]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        return accuracy_entries(self, outcomes)


def mean_over(correct: Correct, parts: Sequence[Mapping[str, Any]]) -> intervals.Interval | None:
    """The interval of the mean of accuracies under corruptions; None if `correct` lacks one of them. The
    images are the sampling unit: the share of corruptions under which an image is correct is one observation,
    so that correlation between corruptions does not matter.
    """
    known = [correct.get((part["corruption"], part["severity"])) for part in parts]
    rows = [row for row in known if row is not None]
    if len(rows) < len(known) or any(len(row) != part["n"] for row, part in zip(rows, parts, strict=True)):
        return None
    counts = [sum(image) for image in zip(*(row.tolist() for row in rows), strict=True)]
    return estimate.pr_d(counts, len(rows)).interval


@dataclass(frozen=True)
class CorruptionTask(EvalTask):
    """Accuracy under corruptions, each at each severity, and the means of these.

    One corrupted batch is in memory at a time. `detail` keeps the logits of each example.
    """

    corruptions: tuple[Any, ...]
    severities: tuple[int, ...]
    reference: sums.Reference | None = None
    detail: bool = False
    title = "corruptions"

    def __post_init__(self) -> None:
        resolved = tuple(corruption.resolved() for corruption in self.corruptions)
        object.__setattr__(self, "corruptions", resolved)

    def outputs(self) -> Sequence[Output]:
        pairs = [
            CorruptionOutput(corruption, severity, self.detail)
            for corruption in self.corruptions
            for severity in self.severities
        ]
        return [CleanOutput(detail=self.detail), *pairs]

    def summarize(
        self, entries: Entries, implicit_entries: Entries, correct_images: Callable[[], Correct]
    ) -> Entries:
        """Means over severities and corruptions, and mCE if there is a reference."""
        clean = next((entry for entry in implicit_entries if entry["metric"] == "acc"), None)
        interval = partial(mean_over, correct_images())
        return sums.summary(entries, clean, CORRUPTIONS.all, self.reference, interval)
