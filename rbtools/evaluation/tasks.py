"""What an evaluation asks: outputs of whole numbers per example, and what they add up to.

Nothing here imports torch before a batch is measured, so that a task whose outcomes are all in
the store costs no more than reading them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rbtools import registry
from rbtools.corruptions import CORRUPTIONS
from rbtools.evaluation import diagnostics, textures
from rbtools.probabilistic import estimate, intervals
from rbtools.records import metric_name
from rbtools.scoring import corruptions as sums

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from rbtools.evaluation.batches import Batch, Outcome

    Entries = Sequence[dict[str, Any]]
    # Which images (N,) are right under a corruption at a severity: 1 or 0.
    Correct = Mapping[tuple[str, int], np.ndarray]


class Output:
    """One outcome per example: a whole number, and the entries that follow from all of them."""

    @property
    def random(self) -> bool:
        """Whether the outcomes depend on the seed."""
        return True

    @property
    def implicit(self) -> bool:
        """Whether this is found on the way to what was asked."""
        return False

    @property
    def allow_fast_model(self) -> bool:
        """Whether it may run on a prepared model, since float32 has the last word."""
        return False

    @property
    def batch_dependent(self) -> bool:
        """Whether the outcome of an example depends on which examples are worked on with it."""
        return False

    @property
    def needs_other_outputs(self) -> bool:
        """Whether outcomes of other outputs are needed to measure it."""
        return False

    def key_fields(self) -> dict[str, Any]:
        """Everything that determines the outcomes, apart from model, data and seed."""
        raise NotImplementedError

    def postprocess_key(self) -> dict[str, Any]:
        """What the entries depend on besides the outcomes."""
        return {}

    def entry_template(self) -> list[dict[str, Any]]:
        """What each entry says before there is any outcome: its metric and its own settings."""
        raise NotImplementedError

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        """Those entries with value and interval: of these outcomes, and the sums over them."""
        raise NotImplementedError


class EvalTask:
    """What an evaluation computes: outputs that share work.

    `save`: a folder for the adversarial images. `gaps`: outputs whose train-test difference is test minus
    train, and named so.
    """

    save: str | None = None
    gaps: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        """A few words for the progress line."""
        raise NotImplementedError

    def outputs(self) -> Sequence[Output]:
        """All outputs, in the order of their entries."""
        raise NotImplementedError

    def run(self, batch: Batch, wanted: Sequence[Output]) -> Sequence[Tensor | Outcome]:
        """Outcomes (N,) of the wanted outputs for the examples of the batch, or an `Outcome`."""
        raise NotImplementedError

    def summarize(
        self, entries: Entries, implicit_entries: Entries, correct_images: Callable[[], Correct]
    ) -> Entries:
        """Entries that follow from the others; `correct_images` says which images they counted."""
        return []


def accuracy_entry(asked: dict[str, Any], outcomes: np.ndarray) -> dict[str, Any]:
    """The entry of an accuracy: outcomes are 1 where the example is still classified right."""
    n, right = len(outcomes), int(outcomes.sum())
    return {**asked, "n": n, "value": right / n, "ci95": list(intervals.wilson(right, n))}


@dataclass(frozen=True)
class CleanOutput(Output):
    """Accuracy on the unchanged images."""

    random = False
    implicit: bool = True

    def key_fields(self) -> dict[str, Any]:
        return {"kind": "clean"}

    def entry_template(self) -> list[dict[str, Any]]:
        return [{"metric": "acc"}]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        return [accuracy_entry(asked, outcomes) for asked in self.entry_template()]


@dataclass(frozen=True)
class AccuracyTask(EvalTask):
    """The question `rb-ge acc` asks."""

    title = "clean accuracy"

    def outputs(self) -> Sequence[Output]:
        return [CleanOutput(implicit=False)]

    def run(self, batch: Batch, wanted: Sequence[Output]) -> list[Tensor]:
        return [batch.clean.int() for _ in wanted]


def attack_settings(method: Any, **more: Any) -> dict[str, Any]:
    """What an entry says of the attack: its name and configuration, with the norm and the step in use."""
    settings = registry.config(method)
    settings.setdefault("norm", method.norm)
    if "step_size" in settings:
        settings["step_size"] = method.effective_step_size
    return {"attack": method.name, **more, **settings}


@dataclass(frozen=True)
class AttackOutput(Output):
    """Which examples an attack leaves classified right, at one distance.

    ladder: smaller distances at which it ran before; what broke there counts as broken here. detail: a
    row of each example keeps its label and its logits under the attack, in place of a bit.
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
        """AutoAttack's own code gets the model as it is."""
        return not self.batch_dependent

    def key_fields(self) -> dict[str, Any]:
        return {
            "kind": "attack",
            "attack": self.method.name,
            "version": self.method.version,
            "config": registry.config(self.method),
            **({"ladder": list(self.ladder)} if self.ladder else {}),
            **({"rows": "label, logits"} if self.detail else {}),
        }

    @property
    def metric(self) -> str:
        """The name of its result."""
        return metric_name.attack_name(self.method.stem, self.method.eps, self.method.norm)

    def still_correct(self, outcomes: Tensor) -> Tensor:
        """Which examples survived (N,), from their outcomes or rows."""
        return outcomes[:, 1:].argmax(1) == outcomes[:, 0] if self.detail else outcomes.bool()

    def entry_template(self) -> list[dict[str, Any]]:
        loss = self.method.loss
        ladder = {"ladder": list(self.ladder)} if self.ladder else {}
        return [{"metric": self.metric, **attack_settings(self.method, loss=loss), **ladder}]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        found: dict[str, Any] = {}
        bits = outcomes
        if self.detail:
            bits = outcomes[:, 1:].argmax(1) == outcomes[:, 0]
            from rbtools.evaluation import confusion_matrix

            found["detail"] = confusion_matrix.of_rows(outcomes)
        found |= diagnostics.of_attack(self.method, totals, len(outcomes))
        return [accuracy_entry(asked, bits) | found for asked in self.entry_template()]


@dataclass(frozen=True)
class AttackTask(EvalTask):
    """Accuracy under one attack, for any number of distances.

    `ladder`: smaller distances come first, and what breaks there is not attacked further out. `detail`
    keeps logits for each example; `save` names a folder for the adversarial images.
    """

    method: Any
    eps: tuple[float, ...]
    ladder: bool = False
    detail: bool = False
    save: str | None = None

    @property
    def title(self) -> str:
        return str(self.method.stem)

    def outputs(self) -> Sequence[Output]:
        smaller = {eps: tuple(one for one in sorted(self.eps) if one < eps) for eps in self.eps}
        found = [
            AttackOutput(replace(self.method, eps=eps), smaller[eps] if self.ladder else (), self.detail)
            for eps in self.eps
        ]
        return [CleanOutput(), *found]

    def run(self, batch: Batch, wanted: Sequence[Output]) -> list[Tensor | Outcome]:
        found: dict[Any, Any] = {}
        before: dict[float, Any] = {}
        for output in sorted(wanted, key=_distance):
            if isinstance(output, AttackOutput):
                found[output] = self._attacked(batch, output, before)
            else:
                found[output] = batch.clean.int()
        return [found[output] for output in wanted]

    def _attacked(self, batch: Batch, output: AttackOutput, before: dict[float, Any]) -> Outcome:
        """Attack at one distance; `before` has the verdicts at smaller ones, and gets this one."""
        import torch

        from rbtools.evaluation import adversarial
        from rbtools.evaluation.batches import Outcome

        last = before.get(output.ladder[-1]) if output.ladder else None
        standing = None if last is None else last.survived
        if output.ladder and last is None:  # the store knew it already
            smaller = replace(output, method=replace(output.method, eps=output.ladder[-1]))
            smaller = replace(smaller, ladder=output.ladder[:-1])
            standing = smaller.still_correct(batch.precomputed[smaller])
        seen = adversarial.run_attack(batch, output.method, last, standing)
        before[output.method.eps] = seen
        values = seen.survived.int()
        if self.detail:
            values = torch.cat([batch.labels[:, None].float(), seen.logits], dim=1)
        return Outcome(values, seen.totals, seen.images if self.save else None)


def _distance(output: Output) -> float:
    """Clean accuracy first, then distance by distance."""
    return float(output.method.eps) if isinstance(output, AttackOutput) else -1.0


@dataclass(frozen=True)
class CorruptionOutput(Output):
    """Which examples stay classified right under one corruption at one severity."""

    corruption: Any
    severity: int

    @property
    def random(self) -> bool:
        return bool(self.corruption.random)

    def key_fields(self) -> dict[str, Any]:
        return {
            "kind": "corruption",
            "corruption": self.corruption.name,
            "version": self.corruption.version,
            "config": registry.config(self.corruption),
            "severity": self.severity,
        }

    def entry_template(self) -> list[dict[str, Any]]:
        name, severity = self.corruption.name, self.severity
        named = {"metric": metric_name.corrupt_name(name, severity), "corruption": name, "severity": severity}
        return [named | registry.config(self.corruption)]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        return [accuracy_entry(asked, outcomes) for asked in self.entry_template()]


def mean_over(correct: Correct, parts: Sequence[Mapping[str, Any]]) -> intervals.Interval | None:
    """The interval of the mean of accuracies under corruptions; None where `correct` lacks one of them.

    The images are the sampling unit: each one's share of the corruptions that leave it right is one
    observation, so that it does not matter how alike the corruptions are.
    """
    known = [correct.get((part["corruption"], part["severity"])) for part in parts]
    rows = [row for row in known if row is not None]
    if len(rows) < len(known) or any(len(row) != part["n"] for row, part in zip(rows, parts, strict=True)):
        return None
    counts = [sum(image) for image in zip(*(row.tolist() for row in rows), strict=True)]
    return estimate.pr_d(counts, len(rows)).interval


@dataclass(frozen=True)
class CorruptionTask(EvalTask):
    """Accuracy under corruptions, each at each severity, and what these add up to.

    One corrupted batch is there at a time, whatever their number.
    """

    corruptions: tuple[Any, ...]
    severities: tuple[int, ...]
    reference: sums.Reference | None = None
    title = "corruptions"

    def __post_init__(self) -> None:
        object.__setattr__(self, "corruptions", tuple(map(textures.decided, self.corruptions)))

    def outputs(self) -> Sequence[Output]:
        pairs = [CorruptionOutput(one, severity) for one in self.corruptions for severity in self.severities]
        return [CleanOutput(), *pairs]

    def run(self, batch: Batch, wanted: Sequence[Output]) -> list[Tensor]:
        found = []
        for output in wanted:
            if isinstance(output, CorruptionOutput):
                corrupt = textures.given(output.corruption)
                draws = batch.draws(f"corruption.{output.corruption.name}")
                found.append(batch.correct(corrupt(batch.images, output.severity, draws)).int())
            else:
                found.append(batch.clean.int())
        return found

    def summarize(
        self, entries: Entries, implicit_entries: Entries, correct_images: Callable[[], Correct]
    ) -> Entries:
        """Means over severities and corruptions, and mCE where there is a reference."""
        clean = next((entry for entry in implicit_entries if entry["metric"] == "acc"), None)
        interval = partial(mean_over, correct_images())
        return sums.summary(entries, clean, CORRUPTIONS.all, self.reference, interval)
