"""The worst saved adversarial images of a model, and whether its verdicts repeat."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.errors import RbError
from rbtools.execution import device
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.jobs import adv_file
from rbtools.jobs.evidence import Scale, logits_of
from rbtools.lazy import torch
from rbtools.trainer.augment import pixels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from rbtools.inputs.resolve import Inputs

TIMES = 5
"""How often the network judges the same images."""
_JUDGED = 256  # images that it judges more than once


class WorstExample(NamedTuple):
    """An adversarial image. clean, adversarial: float32 (H, W, C) in [0, 1]; the classes by their names.

    confidence: the softmax output of the predicted class.
    """

    place: int
    label: str
    prediction: str
    confidence: float
    clean: NDArray[Any]
    adversarial: NDArray[Any]


class RepeatedVerdicts(NamedTuple):
    """On how many of `n` images some of `times` verdicts differ, and the accuracies of a single verdict and
    of the majority of all.
    """

    n: int
    times: int
    changed: int
    single: float
    majority: float


class AdvSummary(NamedTuple):
    """The worst images of a file, its header, and what the network's verdicts on its images are."""

    header: dict[str, Any]
    worst: list[WorstExample]
    verdicts: RepeatedVerdicts


def summarize_adv(record: dict[str, Any], path: str, count: int, run: Run) -> AdvSummary:
    """The `count` images of FILE.adv that the record's model misclassifies with the largest confidence.

    Clean images that the attack left are not among them. Raises RbError for a file that is none or of another
    checkpoint, and for a record whose model or data are missing.
    """
    header = adv_file.header_of(path)
    inputs = resolve_inputs(record, run, str(header.get("split", "test")))
    for name, own in (("checkpoint", inputs.checkpoint), ("data", inputs.data.fingerprint)):
        if header.get(name) != own:
            raise RbError(
                f"{path} is of another {name} ({header.get(name)}) than the record ({own}). Name the file"
                " that rb-attack --save-adv wrote for this model."
            )
    dataset = inputs.data.load()
    heap: list[tuple[float, int, WorstExample]] = []
    rows: list[Any] = []  # verdicts (times, n) of the first images
    with device.taken(run, inputs.threads()) as place:
        logits = logits_of(inputs.load_model(place), place)
        for block in adv_file.blocks(path, inputs.data.about.shape, len(dataset.labels)):
            run.report.check_cancelled()
            ids = torch.from_numpy(block.ids)
            if int(ids.min()) < 0 or int(ids.max()) >= len(dataset.labels):
                raise RbError(f"{path} names images that the split does not have. Write it again.")
            clean, labels = pixels(dataset.images[ids]), dataset.labels[ids]
            images = Scale.moved(clean, torch.from_numpy(block.differences))
            outputs = logits(images).cpu()
            left = _JUDGED - sum(len(row[0]) for row in rows)
            if left > 0:
                again = [logits(images[:left]).cpu() for _ in range(TIMES - 1)]
                rows.append(torch.stack([o[:left].argmax(1).eq(labels[:left]) for o in (outputs, *again)]))
            changed = torch.from_numpy(block.forms != adv_file.CLEAN)
            for example in _misclassified(inputs, ids, labels, clean, images, outputs, changed):
                heap.append((example.confidence, -example.place, example))
            heap = heapq.nlargest(count, heap, key=lambda item: item[:2])
    return AdvSummary(header, [example for *_, example in heap], _verdicts(torch.cat(rows, 1)))


def _misclassified(
    inputs: Inputs,
    ids: Tensor,
    labels: Tensor,
    clean: Tensor,
    images: Tensor,
    outputs: Tensor,
    changed: Tensor,
) -> Iterator[WorstExample]:
    """The misclassified images of a block, of those that the attack changed."""
    classes = inputs.data.about.class_names
    chances, predicted = outputs.softmax(1).max(1)
    for row in (changed & predicted.ne(labels)).nonzero()[:, 0].tolist():
        yield WorstExample(
            int(ids[row]),
            str(classes[int(labels[row])]),
            str(classes[int(predicted[row])]),
            float(chances[row]),
            clean[row].permute(1, 2, 0).numpy(),
            images[row].permute(1, 2, 0).numpy(),
        )


def _verdicts(right: Any) -> RepeatedVerdicts:
    """The summary of verdicts, bool (times, n)."""
    times, n = right.shape
    votes = right.sum(0)
    changed = int(((votes > 0) & (votes < times)).sum())
    majority = int((2 * votes > times).sum()) / n
    return RepeatedVerdicts(n, times, changed, int(right[0].sum()) / n, majority)
