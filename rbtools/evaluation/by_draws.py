"""Verdicts of a randomised model: rates over draws in place of one pass.

An image has three verdicts: the share of draws that are right, whether most draws are, and whether every one
of the first draws is. The first is unbiased from a fixed number of draws. The second needs more of them where
the rate is near one half: the sequential test of rb-pr says when it is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.errors import RbError
from rbtools.evaluation import tasks
from rbtools.evaluation.base import (
    Batch,
    EvalTask,
    Outcome,
    Output,
    OutputOf,
    batch_size,
    default_chunk_size,
)
from rbtools.evaluation.probabilistic import NoiseTask
from rbtools.lazy import np, torch
from rbtools.probabilistic import estimate, sequential
from rbtools.probabilistic.intervals import wilson
from rbtools.records.metric_name import FORMS, of_other_network

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.evaluation.base import Correct, Entries

MORE = 25  # times as many at most, for the majority
LOOKED = 3  # version of what passes find of a model, for the keys of both
IMAGES = 8  # of the passes that look for randomness, and of the pilot
PIXELS = 64 * 32 * 32  # of the images of the passes that permute, shift and cut a whole batch
AGREED = 0.95  # the share of pixels whose sign of the gradient has to agree
_WORDS = {"dropout": "dropout is on in its forward pass", "noise": "its forward pass draws random numbers"}


class Randomness(NamedTuple):
    """What is random in a model.

    kind: "none", "dropout" or "noise". numbers: "example", they can be those of each example in a batch of
    any size; "one by one", only if every image goes through the model alone; "uncontrolled", not even then:
    a generator of the model's own, say. batch: whether what it gives for an image depends on the others of
    its batch, or on its place among them. changes: whether a pass changes its parameters or buffers.
    """

    kind: str = "none"
    numbers: str = "example"
    batch: bool = False
    changes: bool = False

    @property
    def randomised(self) -> bool:
        """Whether the same image gives other logits the second time."""
        return self.kind != "none"

    @property
    def adapts(self) -> bool:
        """Whether the result of an image depends on other images: those of its batch, or earlier ones."""
        return self.batch or self.changes

    def sentence(self, draws: int, eot: int | None) -> str:
        """What a randomised model is judged by, without its name. eot: the draws of an attack's gradients."""
        means = f", and attacks use means over {eot} draws (--draws, --eot)" if eot else " (--draws)"
        single = {
            "example": "",
            "one by one": " Some of its numbers belong to the batch: every image goes through it alone.",
            "uncontrolled": " Its numbers come from a generator of its own: results do not repeat.",
        }[self.numbers]
        return f"is randomised: {_WORDS[self.kind]}. Verdicts are rates over {draws} draws{means}.{single}"

    def checked(self, adapts: str | None) -> Randomness:
        """The same, of a model that is declared to adapt or not (--adapts).

        Raises RbError for one that depends on other images without it, and with it for one that does not, or
        that is randomised.
        """
        if adapts is None and self.adapts:
            raise RbError(self._refusal())
        if adapts is not None and self.randomised:
            raise RbError(
                f"The model is randomised: {_WORDS[self.kind]}. With adapts={adapts} it adapts, too, and only"
                " one of the two can be evaluated. Let it draw the same random numbers in every pass."
            )
        if adapts is not None and not self.adapts:
            raise RbError(
                "The model does not adapt: it gives the same for an image in any batch and after any other."
                f" Leave adapts={adapts} out: with it the result would only be of another protocol."
            )
        return self

    def _refusal(self) -> str:
        """Why a model that depends on other images is refused."""
        declare = (
            "If it adapts to its test images, say so: --batch 64 --adapts batch, where every batch of 64"
            " starts from the checkpoint, or --batch 64 --adapts stream, where the state goes on from batch"
            " to batch."
        )
        if self.batch:
            return (
                "The model is in train mode, takes statistics over the batch, or adds noise of a fixed seed:"
                " what it gives for an image depends on the others of its batch."
                f" {declare} If that is not meant, call model.eval() before it is saved and leave the choice"
                " to module.training, or draw noise from torch's own generator without a seed."
            )
        return (
            "The model changes its parameters or buffers while it is tested, so a result depends on the"
            f" images before it. {declare} If that is not meant, call model.eval() before it is saved."
        )


def batch_of_look(images: Any, most: int) -> int:
    """How many of `most` images (N, C, H, W) the look for randomness takes: a batch, or fewer large ones."""
    small = max(2 * IMAGES, PIXELS // (images.shape[2] * images.shape[3]))
    return int(min(most, small, default_chunk_size(torch.device("cpu"), images.shape[1:])))


class Pilot(NamedTuple):
    """The draws that a gradient needs, and the share of pixels by which that was decided."""

    eot: int
    agreed: float

    def remark(self) -> str | None:
        """A warning where the pilot met its bound."""
        if self.agreed >= AGREED:
            return None
        return (
            f"The pilot stopped at {self.eot} draws: the sign of their mean gradient agrees with that of"
            f" {8 * self.eot} draws on {self.agreed:.0%} of the pixels (wanted: {AGREED:.0%}). A larger"
            " --eot-max M may find more."
        )


@dataclass(frozen=True)
class OutputByDraws(OutputOf):
    """An output whose outcome is a bit, as rates over draws of a randomised model.

    A row has the right ones of the first `draws`, all right ones, all draws, and the verdict of the majority:
    1, 0, or -1 where the sequential test did not decide.
    """

    inner: Any
    draws: int
    remark: str | None = None

    @property
    def fixed_batches(self) -> bool:
        return bool(self.inner.fixed_batches)

    @property
    def rule(self) -> sequential.Rule:
        """The stopping rule of the majority; it is wrong for an image with probability .01 at most."""
        return sequential.anytime(MORE * self.draws, 0.5, 0.99)

    def key_fields(self) -> dict[str, Any]:
        return {**self.inner.key_fields(), "verdict_draws": self.draws}

    def correct(self, outcomes: np.ndarray) -> np.ndarray:
        """Which examples (n,) most draws classify correctly."""
        total, drawn, decision = outcomes[:, 1:4].T
        correct: np.ndarray = np.where(decision < 0, 2 * total > drawn, decision == 1)
        return correct

    def counted(self, outcomes: np.ndarray, entry: Mapping[str, Any]) -> np.ndarray | None:
        if entry["metric"].endswith(".every"):
            every: np.ndarray = outcomes[:, 0] == self.draws
            return every
        return self.correct(outcomes) if entry["metric"].endswith(".majority") else None

    def entry_template(self) -> list[dict[str, Any]]:
        fields = {"verdict_draws": self.draws}
        return [
            {**entry, "metric": entry["metric"] + form, **fields}
            for entry in self.inner.entry_template()
            for form in ("", *FORMS)
        ]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        mean, majority, every = self.entry_template()
        more, n = self.inner.about(totals, len(outcomes)), len(outcomes)
        if self.remark is not None:
            more = {**more, "warnings": [*more.get("warnings", ()), self.remark]}
        first, decisions = outcomes[:, 0].astype(int), outcomes[:, 3]
        shares = first / self.draws
        # the standard error by the draws alone, for these images
        error = float(np.sqrt((shares * (1 - shares)).sum() / max(self.draws - 1, 1)) / n)
        most, every_one = int(self.correct(outcomes).sum()), int((first == self.draws).sum())
        undecided = {"undecided": int((decisions < 0).sum()), "draws_spent": int(outcomes[:, 2].sum())}
        mean |= estimate.pr_d(first.tolist(), self.draws).entry() | {"draws_error": round(error, 6)}
        majority |= {"n": n, "value": most / n, "ci95": list(wilson(most, n)), **undecided}
        every |= {"n": n, "value": every_one / n, "ci95": list(wilson(every_one, n))}
        return [mean | more, majority | more, every | more]

    def measure(self, batch: Batch) -> Outcome:
        images, totals = self.inner.judged_images(batch)
        batch = batch.with_images(images)
        everyone = torch.arange(len(batch.ids), device=batch.ids.device)
        first = torch.zeros_like(batch.labels)
        for right in _drawn(batch, everyone, 0, self.draws):
            first += right.sum(0)
        total, drawn = first.clone(), torch.full_like(first, self.draws)
        tables = [torch.as_tensor(table, device=first.device) for table in self.rule]
        decision = _decision(tables, total, drawn)
        number = self.draws
        while len(rows := (decision < 0).nonzero()[:, 0]) and number < MORE * self.draws:
            right = next(_drawn(batch, rows, number, MORE * self.draws))
            totals_then = total[rows] + right.cumsum(0)
            drawn_then = number + 1 + torch.arange(len(right), device=rows.device)[:, None]
            decisions = _decision(tables, totals_then, drawn_then.expand_as(totals_then))
            # at the draw that decided, or at the last one: no result depends on how many are drawn together
            decided = decisions >= 0
            at = torch.where(decided.any(0), decided.long().argmax(0), len(right) - 1)[None]
            total[rows], decision[rows] = totals_then.gather(0, at)[0], decisions.gather(0, at)[0]
            drawn[rows] = number + 1 + at[0]
            number += len(right)
        outcomes = torch.stack([first, total, drawn, decision], dim=1).float()
        totals = {"backward": 0.0, **totals, "forward": totals.get("forward", 0.0) + float(drawn.sum())}
        return Outcome(outcomes, totals, None if images is batch.images else images)


def _drawn(batch: Batch, rows: Tensor, first: int, stop: int) -> Iterator[Tensor]:
    """Which draws from `first` to `stop` are right, 1 or 0, for some of the examples: int64 (D, M), as many
    draws at a time as fill a batch; one where every image goes through the model alone, and a batch saves
    nothing."""
    size = 1 if batch.one_by_one else batch_size(rows.device, batch.images.shape[1:])
    together = max(size // max(len(rows), 1), 1)
    for start in range(first, stop, together):
        numbers = torch.arange(start, min(start + together, stop), device=rows.device)
        copies = batch.take(rows.repeat(len(numbers))).at_draw(numbers.repeat_interleave(len(rows)))
        yield copies.right().view(len(numbers), len(rows))


def _decision(tables: Sequence[Tensor], right: Tensor, drawn: Tensor) -> Tensor:
    """1 where most draws are right, 0 where they are not, -1 where the test has not decided: int64 (N,)."""
    passes, fails = (table[(drawn - right).clamp_max(len(table) - 1)] for table in tables)
    return torch.where(drawn >= passes, 1, torch.where(drawn <= fails, 0, -1))


@dataclass(frozen=True)
class TaskByDraws(EvalTask):
    """A task on a randomised model."""

    inner: Any
    draws: int
    remark: str | None = None

    def __post_init__(self) -> None:
        for name in ("save", "png", "gaps"):
            object.__setattr__(self, name, getattr(self.inner, name))

    @property
    def title(self) -> str:
        return f"{self.inner.title}, {self.draws} draws"

    @property
    def eot(self) -> int | None:
        """The draws of an attack's gradients; None for a task without an attack."""
        return self.inner.method.draws_each if isinstance(self.inner, tasks.AttackTask) else None

    def outputs(self) -> Sequence[Output]:
        def through_draws(output: Output) -> bool:
            return isinstance(output, tasks.AttackOutput) and not of_other_network(output.metric)

        return [
            OutputByDraws(output, self.draws, self.remark if through_draws(output) else None)
            for output in self.inner.outputs()
        ]

    def summarize(
        self, entries: Entries, implicit_entries: Entries, correct_images: Callable[[], Correct]
    ) -> Entries:
        """Those of the mean accuracies, without intervals over corruptions."""

        def means(every: Entries) -> Entries:
            return [entry for entry in every if not entry["metric"].endswith(FORMS)]

        return list(self.inner.summarize(means(entries), means(implicit_entries), dict))


def by_draws(task: EvalTask, draws: int, pilot: Callable[[], Pilot]) -> EvalTask:
    """The task with verdicts by rates over draws, and attacks whose gradients are means over draws: as many
    as the attack says, else as `pilot` finds.

    AutoAttack runs its variant for randomised models. Raises RbError for a task that has no such verdict.
    """
    if isinstance(task, NoiseTask):
        return task  # each copy has a draw of the model
    if not isinstance(task, tasks.AttackTask | tasks.AccuracyTask | tasks.CorruptionTask):
        raise RbError(
            f"The model is randomised, and {task.title} has no verdict by rates. Measure its accuracy with"
            " rb-attack or rb-corrupt, or give --draws 1 to judge it by one draw."
        )
    if getattr(task, "detail", False):
        raise RbError("--detail keeps the logits of one pass, and this model is randomised: leave it out.")
    if not isinstance(task, tasks.AttackTask):
        return TaskByDraws(task, draws)
    if task.ladder:
        raise RbError("--ladder is of verdicts, and this model is randomised: leave it out.")
    found = pilot() if needs_pilot(task.method) else None
    plain = {"plain": task.method} if hasattr(task, "plain") else {}
    task = replace(task, method=of_means(task.method, 1 if found is None else found.eot), **plain)
    return TaskByDraws(task, draws, None if found is None else found.remark())


def needs_pilot(method: Any) -> bool:
    """Whether a pilot says of how many draws the attack takes means. AutoAttack's own code has its own."""
    return method.eot == 1 and not method.batch_dependent


def of_means(method: Any, eot: int) -> Any:
    """The attack with means over `eot` draws, unless it has a number of its own; `aa` as its variant for
    randomised models, which has 20 draws or more."""
    if method.name == "aa" and method.variant == "standard" and not method.attacks:
        method = replace(method, variant="rand")
    return replace(method, eot=max(eot, method.draws_each)) if needs_pilot(method) else method
