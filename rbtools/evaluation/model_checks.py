"""Checks a user's model on the first images before long computations begin.

The checks find a wrong normalisation, a different order of the classes, and a softmax at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rbtools import check_input, datasets
from rbtools.errors import optional
from rbtools.execution.report import discard
from rbtools.execution.run import Run
from rbtools.inputs import queried
from rbtools.inputs.checkpoints import normalizations
from rbtools.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rbtools.inputs.data import Data

FIRST = 128  # images
# A normalisation is tried on a few misclassified images and has to correct some of them: a right one corrects
# about half, another wrong one at most a quarter. It then has to be better on a few images of any kind.
_WRONG, _CORRECTED, _FEW = 12, 3, 32
PER_CLASS = 5  # images per class needed to propose another order of the classes
MUCH = 0.2  # the gain in accuracy needed to propose another order
SURE = ("checkpoint", "published training", "accuracy", "model")  # sources of a normalisation that is certain
NAMED = ("given", "--normalize")  # sources of a normalisation that the user names


def check_outputs(
    model: nn.Module, record: Mapping[str, Any], data: Data, n: int, device: torch.device, run: Run
) -> tuple[dict[str, Any], Tensor] | None:
    """Check the model on the first images, print the accuracy, and return the result for the record, with the
    logits (M, K) for these images.

    Returns None for a network trained by rb-train. The inputs of the model are images (N, C, H, W) in [0, 1].
    Raises RbError if the model does not return logits (N, classes).
    """
    if "checkpoint_file" not in record and not queried.only_answers(record):
        return None
    dataset = data.load()
    ids = data.order(dataset.labels)[: min(n, FIRST)]
    images = dataset.images[ids].to(device).float().div(255)
    labels = dataset.labels[ids].to(device)
    logits = _logits(model, images, data.about.classes)
    with optional():  # the network may accept only batches of one size
        _logits(model, images[:1], data.about.classes)
    accuracy, chance = _share(logits, labels), 1 / data.about.classes
    summary = {"n": len(ids), "acc": accuracy, "chance": chance}
    run.report.notify(_line(record, summary))
    warnings = _of_outputs(model, images, logits)
    deviation = math.sqrt(chance * (1 - chance) / len(ids))
    now = logits.argmax(1).eq(labels)
    other = _other_normalisation(model, record, data, images, labels, now, run.report.check_cancelled)
    order = _other_order(logits, labels, data)
    if order and other and other.right >= order.right:
        order = None
    if chance < 1 and accuracy <= chance + 2 * deviation:
        warnings.append(
            f"clean accuracy {accuracy:.4f} on {len(ids)} images is close to chance ({chance:.4g}). The"
            f" normalisation or the class order may be wrong: {order or other or _what_to_try(record)}"
        )
    elif order:
        warnings.append(f"clean accuracy is {accuracy:.4f}, but higher with another class order: {order}")
    elif other:
        source = "was given by you" if _source(record) in NAMED else "is not in the file"
        warnings.append(
            f"its normalisation {source}, but clean accuracy is {accuracy:.4f}, and higher with another one:"
            f" {other}"
        )
    return {**summary, "warnings": warnings}, logits


def in_memory(model: nn.Module, images: Tensor, labels: Tensor, logits: Tensor | None = None) -> list[str]:
    """A sentence for each problem in the outputs and the normalisation of a network in memory.

    The images (N, C, H, W) are in [0, 1], the labels have the shape (N,), and the network is in eval mode.
    Its `logits` (N, K) can be passed if known. Errors that the network raises are not caught.
    """
    if logits is None:
        _, classes = check_input.look(model, images[: check_input.PROBED], probabilities=True)
        logits = _logits(model, images, classes)
    shape: Any = tuple(images.shape[1:])
    about = datasets.Description(name="", shape=shape, classes=logits.shape[1], class_names=[], sizes={})
    texts = [f"The model looks wrong: {text}." for text in _of_outputs(model, images, logits)]
    now, data = logits.argmax(1).eq(labels), SimpleNamespace(about=about)
    other = _other_normalisation(model, {}, data, images, labels, now)  # type: ignore[arg-type]
    if other is not None:
        texts.append(
            f"Its normalisation looks wrong: clean accuracy is {_share(logits, labels):.4f} on {len(labels)}"
            f" images, and {other.right / other.n:.4f} with the normalisation '{other.shown}' as the first"
            " layer of the model."
        )
    return texts


def _share(logits: Tensor, labels: Tensor) -> float:
    return int(logits.argmax(1).eq(labels).sum()) / len(labels)


def report_checks(record: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], run: Run) -> None:
    """Print the results of the checks that entries contain."""
    for entry in entries:
        if "sanity" in entry:
            run.report.notify(_line(record, entry["sanity"]))
            for text in entry["sanity"]["warnings"]:
                run.report.notify(f"warning: {_name(record)}: {text}")


def _line(record: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    return f"{_name(record)}: clean accuracy {summary['acc']:.4f} on the first {summary['n']} images."


def _name(record: Mapping[str, Any]) -> str:
    arch = record["arch"]
    return str(arch.get("name") or arch.get("str"))


def _logits(model: nn.Module, images: Tensor, classes: int) -> Tensor:
    from rbtools.rng.foreign import ExampleNumbers

    # a randomised model gets the same random numbers each time
    with torch.no_grad(), ExampleNumbers(0, "check", torch.arange(len(images), device=images.device), 0):
        logits: Tensor = model(images)
    check_input.check_shape(logits, len(images), classes)
    return logits.float()


def _of_outputs(model: nn.Module, images: Tensor, logits: Tensor) -> list[str]:
    sums = logits.sum(1)
    if logits.shape[1] > 1 and float(logits.min()) >= 0 and float((sums - 1).abs().max()) < 1e-3:
        return [
            "it ends in a softmax, which hides the gradient from attacks, so that robust accuracies come out"
            " too high. Leave the last layer out, because attacks need logits"
        ]
    return []


@dataclass(frozen=True)
class _Other:
    """A different normalisation or class order, and how many of `n` images are correct with it."""

    shown: str
    right: int
    n: int

    def __str__(self) -> str:
        return f"try {self.shown}, with which it is {self.right / self.n:.4f} on {self.n} images"


def _other_normalisation(
    model: nn.Module,
    record: Mapping[str, Any],
    data: Data,
    images: Tensor,
    labels: Tensor,
    now: Tensor,
    check_cancelled: Callable[[], None] = discard,
) -> _Other | None:
    """A normalisation with which significantly more images are correct than in `now` (N,), or None."""
    from rbtools.defences.defended import bare as without_stages
    from rbtools.models.normalize import Known, Preprocessed, behind, kinds
    from rbtools.models.trial import beats

    if _source(record) in SURE:
        return None
    randomised = bool(getattr(model, "randomised", False))
    inner: Any = model.network if randomised else model
    model = without_stages(inner)
    bare = model.network if isinstance(model, Preprocessed) else model
    deviations = 4 if randomised else 2  # the accuracy of a randomised model varies
    pairs = normalizations(data)

    def right(pair: Known, rows: Tensor | slice) -> Tensor:
        logits = _logits(behind(bare, pair).to(labels.device), images[rows], data.about.classes)
        return logits.argmax(1).eq(labels[rows])

    wrong = (~now).nonzero()[:, 0]
    if len(wrong) <= deviations**2:  # no gain is significant
        return None
    better: dict[str, Tensor] = {}
    for name in kinds(pairs):
        if pairs[name] is None and bare is model:  # the model as it is
            continue
        check_cancelled()
        with optional():  # a network may refuse values outside the range that it expects
            if int(right(pairs[name], wrong[:_WRONG]).sum()) < _CORRECTED:
                continue
            if int(right(pairs[name], slice(_FEW)).sum()) > int(now[:_FEW].sum()):
                on_all = right(pairs[name], slice(None))
                if beats(on_all, now, deviations):
                    better[name] = on_all
    if not better:
        return None
    best = max(better, key=lambda name: int(better[name].sum()))
    shown = best
    if best == "dataset":
        shown = " ".join(",".join(f"{value:.4g}" for value in values) for values in pairs[best] or ())
    return _Other(f"--normalize {shown}", int(better[best].sum()), len(images))


def _other_order(logits: Tensor, labels: Tensor, data: Data) -> _Other | None:
    """A class map that permutes the classes, with which many more images are correct, or None."""
    classes = data.about.classes
    if len(labels) < PER_CLASS * classes:
        return None
    counts = torch.zeros(classes, classes, dtype=torch.long)
    predictions = logits.argmax(1).cpu()
    counts.index_put_((labels.cpu(), predictions), torch.ones(len(labels), dtype=torch.long), accumulate=True)
    order = counts.argmax(1).tolist()
    now, mapped = int(counts.diagonal().sum()), int(counts.max(1).values.sum())
    moved = [place for place, index in enumerate(order) if place != index]
    changed = int(counts[moved, moved].sum()) + int(counts[moved].max(1).values.sum()) if moved else 0
    much = max(MUCH * len(labels), 2 * math.sqrt(changed))  # the second number is for chance
    if sorted(order) != list(range(classes)) or mapped - now < much:
        return None
    pairs = ", ".join(f'"{name}": {index}' for name, index in zip(data.about.class_names, order, strict=True))
    return _Other(f"--class-map FILE with a file that contains {{{pairs}}}", mapped, len(labels))


def _source(record: Mapping[str, Any]) -> Any:
    recognised = record.get("recognised")
    return recognised.get("normalize_from") if isinstance(recognised, dict) else "given"


def _what_to_try(record: Mapping[str, Any]) -> str:
    if queried.only_answers(record):
        return "check the data set, and give --class-map FILE if the model numbers its classes differently."
    if _source(record) == "checkpoint":
        return "the normalisation was read from the file, so try --class-map FILE and check the data set."
    return (
        "no known normalisation does better, so try --normalize MEAN STD or --class-map FILE, and check the"
        " data set and how long the model was trained."
    )
