"""The worst saved adversarial images of a model, and whether its verdicts repeat."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.errors import RbError
from rbtools.execution import device
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.jobs import evidence
from rbtools.lazy import torch
from rbtools.trainer.augment import pixels

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

TIMES = 5
"""How often the network judges the same images."""
_REPEATED = 256  # the most images that it judges repeatedly


class WorstExample(NamedTuple):
    """An adversarial image. clean, adversarial: float32 (H, W, C) in [0, 1]; the classes by their names.

    place: its number in the split. confidence: the softmax output of the predicted class.
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
    """The worst images of a file, its header, and the network's verdicts on its images."""

    header: dict[str, Any]
    worst: list[WorstExample]
    verdicts: RepeatedVerdicts


def summarize_adv(record: dict[str, Any], path: str, count: int, run: Run) -> AdvSummary:
    """The `count` images of FILE.adv that the record's model misclassifies with the largest confidence.

    Clean images that the attack left are not among them. Raises RbError for a file that is none or of another
    checkpoint, and for a record whose model or data are missing.
    """
    header = evidence.header_of(path)
    inputs = resolve_inputs(record, evidence.with_stages(run, header), str(header.get("split", "test")))
    for name, value in (("checkpoint", inputs.checkpoint), ("data", inputs.data.fingerprint)):
        if header.get(name) != value:
            raise RbError(
                f"{path} is of another {name} ({header.get(name)}) than the record ({value}). Name the file"
                " that rb-attack --save-adv wrote for this model."
            )
    dataset, names = inputs.data.load(), inputs.data.about.class_names
    worst: list[WorstExample] = []
    right: list[Tensor] = []  # verdicts, bool (times, n), on the first images
    with device.taken(run, inputs.threads()) as place:
        logits = evidence.logits_of(inputs.load_model(place), place)
        for block in evidence.blocks(path, inputs.data.about.shape, len(dataset.labels)):
            run.report.check_cancelled()
            ids = torch.from_numpy(block.ids)
            if int(ids.min()) < 0 or int(ids.max()) >= len(dataset.labels):
                raise RbError(f"{path} names images that the split does not have. Write it again.")
            clean, labels = pixels(dataset.images[ids]), dataset.labels[ids]
            images = evidence.moved(clean, torch.from_numpy(block.differences))
            outputs = logits(images)
            left = _REPEATED - sum(verdicts.shape[1] for verdicts in right)
            if left > 0:
                repeated = [outputs[:left], *(logits(images[:left]) for _ in range(TIMES - 1))]
                right.append(torch.stack([again.argmax(1).eq(labels[:left]) for again in repeated]))
            confidence, predicted = outputs.softmax(1).max(1)
            changed = torch.from_numpy(block.forms != evidence.CLEAN)
            for row in (changed & predicted.ne(labels)).nonzero()[:, 0].tolist():
                label, prediction = (str(names[int(classes[row])]) for classes in (labels, predicted))
                shown, moved = (image[row].permute(1, 2, 0).numpy() for image in (clean, images))
                worst.append(
                    WorstExample(int(ids[row]), label, prediction, float(confidence[row]), shown, moved)
                )
            worst = heapq.nlargest(count, worst, key=lambda example: (example.confidence, -example.place))
    return AdvSummary(header, worst, _repeated(torch.cat(right, 1)))


def _repeated(right: Tensor) -> RepeatedVerdicts:
    """The summary of verdicts, bool (times, n)."""
    times, n = right.shape
    votes = right.sum(0)
    changed = int(((votes > 0) & (votes < times)).sum())
    majority = int((2 * votes > times).sum()) / n
    return RepeatedVerdicts(n, times, changed, int(right[0].sum()) / n, majority)
