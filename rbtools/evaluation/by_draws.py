"""Verdicts of a randomised model: the mean over draws in place of one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from rbtools.probabilistic import estimate

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.evaluation.base import Correct, Entries

LOOKED = 3  # version of what passes find of a model, for the keys of both
IMAGES = 8  # of the passes that look for randomness
PIXELS = 64 * 32 * 32  # of the images of the passes that permute, shift and cut a whole batch
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

    def sentence(self, draws: int, eot: int | None) -> str:
        """What a randomised model is judged by, without its name. eot: the draws of an attack's gradients."""
        of_attacks = {
            None: "",
            1: ", and attacks follow the gradient of one draw, which is a weak guide: give --eot 20"
            " (aa: --variant rand)",
        }
        means = of_attacks.get(eot, f", and attacks use means over {eot} draws (--eot)")
        single = {
            "example": "",
            "one by one": " Some of its numbers belong to the batch: every image goes through it alone.",
            "uncontrolled": " Its numbers come from a generator of its own: results do not repeat.",
        }[self.numbers]
        verdicts = f"Verdicts are means over {draws} draws (--draws)"
        return f"is randomised: {_WORDS[self.kind]}. {verdicts}{means}.{single}"

    def checked(self) -> Randomness:
        """The same. Raises RbError for a model whose result for an image depends on other images."""
        if self.batch:
            raise RbError(
                "The model is in train mode, takes statistics over the batch, or adds noise of a fixed seed:"
                " what it gives for an image depends on the others of its batch. Call model.eval() before it"
                " is saved and leave the choice to module.training, or draw noise from torch's own generator"
                " without a seed."
            )
        if self.changes:
            raise RbError(
                "The model changes its parameters or buffers while it is tested, so a result depends on the"
                " images before it. Call model.eval() before it is saved."
            )
        return self


def batch_of_look(images: Any, most: int) -> int:
    """How many of `most` images (N, C, H, W) the look for randomness takes: a batch, or fewer large ones."""
    small = max(2 * IMAGES, PIXELS // (images.shape[2] * images.shape[3]))
    return int(min(most, small, default_chunk_size(torch.device("cpu"), images.shape[1:])))


@dataclass(frozen=True)
class OutputByDraws(OutputOf):
    """An output whose outcome is a bit, as the mean over draws of a randomised model: of each example the
    number of draws that are right.
    """

    inner: Any
    draws: int

    @property
    def fixed_batches(self) -> bool:
        return bool(self.inner.fixed_batches)

    def key_fields(self) -> dict[str, Any]:
        return {**self.inner.key_fields(), "mean_of_draws": self.draws}

    def correct(self, outcomes: np.ndarray) -> np.ndarray:
        """Which examples (n,) most draws classify correctly."""
        correct: np.ndarray = 2 * outcomes > self.draws
        return correct

    def counted(self, outcomes: np.ndarray, entry: Mapping[str, Any]) -> np.ndarray | None:
        return None

    def entry_template(self) -> list[dict[str, Any]]:
        return [{**entry, "verdict_draws": self.draws} for entry in self.inner.entry_template()]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        (mean,) = self.entry_template()
        shares, n = outcomes / self.draws, len(outcomes)
        # the standard error by the draws alone, for these images
        error = float(np.sqrt((shares * (1 - shares)).sum() / max(self.draws - 1, 1)) / n)
        mean |= estimate.pr_d(outcomes.astype(int).tolist(), self.draws).entry()
        return [mean | {"draws_error": round(error, 6)} | self.inner.about(totals, n)]

    def measure(self, batch: Batch) -> Outcome:
        images, totals = self.inner.judged_images(batch)
        batch = batch.with_images(images)
        right = sum((part.sum(0) for part in _drawn(batch, self.draws)), torch.zeros_like(batch.labels))
        forward = totals.get("forward", 0.0) + float(self.draws * len(batch.ids))
        totals = {"backward": 0.0, **totals, "forward": forward}
        return Outcome(right.float(), totals)


def _drawn(batch: Batch, draws: int) -> Iterator[Tensor]:
    """Which draws are right, 1 or 0, for the examples: int64 (D, N), as many draws at a time as fill a batch;
    one where every image goes through the model alone, and a batch saves nothing."""
    count = len(batch.ids)
    size = 1 if batch.one_by_one else batch_size(batch.ids.device, batch.images.shape[1:])
    rows = torch.arange(count, device=batch.ids.device)
    together = max(size // max(count, 1), 1)
    for start in range(0, draws, together):
        numbers = torch.arange(start, min(start + together, draws), device=rows.device)
        copies = batch.take(rows.repeat(len(numbers))).at_draw(numbers.repeat_interleave(count))
        yield copies.right().view(len(numbers), count)


@dataclass(frozen=True)
class TaskByDraws(EvalTask):
    """A task on a randomised model."""

    inner: Any
    draws: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "gaps", self.inner.gaps)

    @property
    def title(self) -> str:
        return f"{self.inner.title}, {self.draws} draws"

    @property
    def eot(self) -> int | None:
        """The draws of an attack's gradients; None for a task without an attack."""
        return self.inner.method.draws_each if isinstance(self.inner, tasks.AttackTask) else None

    def outputs(self) -> Sequence[Output]:
        return [OutputByDraws(output, self.draws) for output in self.inner.outputs()]

    def summarize(
        self, entries: Entries, implicit_entries: Entries, correct_images: Callable[[], Correct]
    ) -> Entries:
        """Without intervals over corruptions."""
        return list(self.inner.summarize(entries, implicit_entries, dict))


def by_draws(task: EvalTask, draws: int) -> EvalTask:
    """The task with verdicts that are means over draws. Raises RbError for a task that has none."""
    if isinstance(task, NoiseTask):
        return task  # each copy has a draw of the model
    if not isinstance(task, tasks.AttackTask | tasks.AccuracyTask | tasks.CorruptionTask):
        raise RbError(
            f"The model is randomised, and {task.title} has no verdict over draws. Measure its accuracy with"
            " rb-attack or rb-corrupt, or give --draws 1 to judge it by one draw."
        )
    if getattr(task, "detail", False) or task.save is not None:
        raise RbError("--detail and --save-adv are of one pass, and this model is randomised: omit them.")
    if isinstance(task, tasks.AttackTask) and task.ladder:
        raise RbError("--ladder is of verdicts, and this model is randomised: leave it out.")
    return TaskByDraws(task, draws)
