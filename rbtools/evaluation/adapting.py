"""Verdicts of a model that adapts: what it gives for an image depends on the others of its batch, or on the
batches before.

The size of a batch is part of the question then. Either every batch starts from the state of the checkpoint,
or the batches are a stream: the state goes on from one to the next, in the fixed order of the examples. Each
output has a stream of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError
from rbtools.evaluation import tasks
from rbtools.evaluation.base import Batch, EvalTask, Outcome, Output, OutputOf

if TYPE_CHECKING:
    import numpy as np

    from rbtools.evaluation.base import Correct, Entries


@dataclass(frozen=True)
class AdaptingOutput(OutputOf):
    """An output whose batches go through the model undivided. An attack searches on the whole batch, and the
    verdict is one pass of all of its points. `adapts`: to the "batch" or to the "stream"; size: of a batch.
    """

    inner: Any
    adapts: str
    size: int

    batch_dependent = True

    @property
    def whole_batch(self) -> int:
        return self.size

    @property
    def undivided(self) -> str | None:
        return "is of a stream of batches" if self.adapts == "stream" else None

    @property
    def in_one_run(self) -> bool:
        return self.adapts == "stream"

    @property
    def detail(self) -> bool:  # type: ignore[override]
        return bool(self.inner.detail)

    @property
    def random(self) -> bool:
        return bool(self.inner.random)

    @property
    def _fields(self) -> dict[str, Any]:
        return {"adapts": {"to": self.adapts, "batch": self.size}}

    def key_fields(self) -> dict[str, Any]:
        return {**self.inner.key_fields(), **self._fields}

    def postprocess_key(self) -> dict[str, Any]:
        fields: dict[str, Any] = self.inner.postprocess_key()
        return fields

    def entry_template(self) -> list[dict[str, Any]]:
        return [{**entry, **self._fields} for entry in self.inner.entry_template()]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        return [{**entry, **self._fields} for entry in self.inner.entries(outcomes, totals)]

    def measure(self, batch: Batch) -> Outcome:
        model: Any = batch.model
        batch = batch.take(slice(None))
        if self.adapts == "stream":
            model = batch.model = batch.fast_model = model.stream(self)
        images, totals = self.inner.judged_images(batch)
        rows = tasks.rows_of(batch, batch.logits(images), self.detail)
        if self.adapts == "stream":
            model.go_on()
        return Outcome(rows, totals, None if images is batch.images else images)


@dataclass(frozen=True)
class AdaptingTask(EvalTask):
    """A task on a model that adapts."""

    inner: Any
    adapts: str
    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "gaps", self.inner.gaps)

    @property
    def title(self) -> str:
        kind = "a stream of batches" if self.adapts == "stream" else "batches"
        return f"{self.inner.title}, {kind} of {self.size}"

    def outputs(self) -> Sequence[Output]:
        return [AdaptingOutput(output, self.adapts, self.size) for output in self.inner.outputs()]

    def summarize(
        self, entries: Entries, implicit_entries: Entries, correct_images: Callable[[], Correct]
    ) -> Entries:
        return list(self.inner.summarize(entries, implicit_entries, correct_images))


def adapting(task: EvalTask, adapts: str, size: int | None) -> AdaptingTask:
    """The task on a model that adapts to each batch of `size` examples, or to the stream of these. Raises
    RbError for a task that has no verdict of whole batches."""
    if size is None:
        raise RbError(
            "How a model adapts depends on the size of its batches. Add --batch, such as --batch 64."
        )
    if isinstance(task, tasks.AttackTask):
        if task.ladder or task.save:
            raise RbError(
                f"{'--save-adv' if task.save else '--ladder'} is of images that are judged one by one,"
                " and this model adapts to its batch: leave it out."
            )
        if task.method.batch_dependent:
            raise RbError(
                "AutoAttack's own code attacks a part of a batch, and this model adapts to all of it. Use"
                " --backend rbtools."
            )
        if task.method.draws_each > 1:
            raise RbError(
                f"{task.method.name} takes means over draws (--eot, --variant rand), and this model adapts to"
                " its batch: give --eot 1, or another variant."
            )
    elif not isinstance(task, tasks.AccuracyTask | tasks.CorruptionTask):
        raise image_by_image(task)
    return AdaptingTask(task, adapts, size)


def image_by_image(task: EvalTask) -> RbError:
    """The error for a task that has no verdict of whole batches."""
    return RbError(
        f"{task.title} judges every image by itself, and --batch says that the model adapts to its batch."
        " Measure the accuracy of such a model with an attack of rb-attack, or with rb-corrupt."
    )
