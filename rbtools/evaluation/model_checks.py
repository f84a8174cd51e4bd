"""A look at a user's model on its first images, before hours are spent on it.

What usually goes wrong with a checkpoint shows there: another normalisation, another order of classes, a
softmax at the end, the mode for training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError
from rbtools.execution.context import RunContext

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rbtools.inputs.resolve import Data

FIRST = 128  # images
FEW = 32  # of them, for what is tried again and again
SAME = 1e-3  # of the range of the logits: what counts as the same output
PER_CLASS = 5  # images that another order of the classes is told by
MUCH = 0.2  # by how much another order has to be better, to be proposed
SURE = ("checkpoint", "published training")  # who says a normalisation that cannot be another
NAMED = (*SURE, "given", "--normalize")  # and who says one that is only doubted near chance


def check_outputs(
    model: nn.Module, record: Mapping[str, Any], data: Data, n: int, device: torch.device, run: RunContext
) -> dict[str, Any] | None:
    """What the first images show, for the record; people are told. None for a network trained here.

    The model takes images (N, C, H, W) in [0, 1]. Raises RbError where it gives no logits (N, classes).
    """
    if "checkpoint_file" not in record:
        return None
    dataset = data.load()
    ids = data.order(dataset.labels)[: min(n, FIRST)]
    images = dataset.images[ids].to(device).float().div(255)
    labels = dataset.labels[ids].to(device)
    logits = _logits(model, images, data.about.classes)
    accuracy, chance = _accuracy(logits, labels), 1 / data.about.classes
    found = {"n": len(ids), "acc": accuracy, "chance": chance}
    run.notify(_line(record, found))
    warnings = _of_outputs(model, images, logits)
    near_chance = _near_chance(accuracy, chance, len(ids))
    other = None
    if near_chance or _source(record) not in NAMED:
        other = _other_normalisation(model, record, data, images, labels)
    if near_chance:
        order = None if other else _other_order(logits, labels, data, accuracy)
        warnings.append(
            f"clean accuracy {accuracy:.4f} on {len(ids)} images is near chance ({chance:.4g}): perhaps the"
            f" normalisation or the class order is wrong; {other or order or _what_to_try(record)}"
        )
    elif other:
        warnings.append(
            f"its normalisation is not in the file, and another is better than clean accuracy {accuracy:.4f}:"
            f" {other}"
        )
    return {**found, "warnings": warnings}


def report_checks(record: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], run: RunContext) -> None:
    """Tell people what was seen when these entries were made, now or earlier."""
    for entry in entries:
        if "sanity" in entry:
            run.notify(_line(record, entry["sanity"]))
            for text in entry["sanity"]["warnings"]:
                run.notify(f"warning: {_name(record)}: {text}")


def _line(record: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    return f"{_name(record)}: clean accuracy {found['acc']:.4f} on the first {found['n']} images."


def _name(record: Mapping[str, Any]) -> str:
    arch = record["arch"]
    return str(arch.get("name") or arch.get("str"))


def _logits(model: nn.Module, images: Tensor, classes: int) -> Tensor:
    import torch

    with torch.no_grad():
        logits = model(images)
    if not isinstance(logits, torch.Tensor) or tuple(logits.shape) != (len(images), classes):
        what = f"shape {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise RbError(
            f"The model gives {what} for {len(images)} images of {classes} classes. Expected logits of shape"
            f" ({len(images)}, {classes}): return those alone."
        )
    return logits.float()


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    return int(logits.argmax(1).eq(labels).sum()) / len(labels)


def _near_chance(accuracy: float, chance: float, n: int) -> bool:
    """Whether guessing would do as well, by two standard deviations."""
    return chance < 1 and accuracy <= chance + 2 * math.sqrt(chance * (1 - chance) / n)


def _of_outputs(model: nn.Module, images: Tensor, logits: Tensor) -> list[str]:
    found = []
    sums = logits.sum(1)
    if logits.shape[1] > 1 and float(logits.min()) >= 0 and float((sums - 1).abs().max()) < 1e-3:
        found.append(
            "it ends in a softmax: attacks need logits, and a softmax hides the gradient from them, so robust"
            " accuracies come out too high. Leave the last layer out"
        )
    near = SAME * float(logits.max() - logits.min()) + 1e-6

    def differs(part: Tensor) -> bool:
        return float((_logits(model, part, logits.shape[1]) - logits[: len(part)]).abs().max()) > near

    # Few of them again: another batch and another time at once. Only where that differs, which of the two.
    if not differs(images[: min(FEW, (len(images) + 1) // 2)]):
        return found
    if len(images) == 1 or differs(images):
        found.append(
            "it is not deterministic: the same images give other outputs the second time. Results do not"
            " repeat, and attacks need an average over its outputs (dropout or noise in the forward pass?)"
        )
    else:
        found.append(
            "it is in train mode: what it gives for an image depends on the others of the batch. Call"
            " model.eval() before it is saved, and leave the choice to module.training"
        )
    return found


@dataclass(frozen=True)
class _Other:
    """Another normalisation, and how many of `n` images are right with it."""

    shown: str
    right: int
    n: int

    def __str__(self) -> str:
        return f"try --normalize {self.shown}, with which it is {self.right / self.n:.4f} on {self.n} images"


def _other_normalisation(
    model: nn.Module, record: Mapping[str, Any], data: Data, images: Tensor, labels: Tensor
) -> _Other | None:
    """The normalisation with which clearly more of the images are right; none where the file has its own.

    Each kind is tried on a few images, and what is better there on all of them.
    """
    from rbtools.inputs.checkpoints import normalizations
    from rbtools.models.normalize import Preprocessed
    from rbtools.models.statistics import kinds, normalised

    if _source(record) in SURE:
        return None
    bare = model.network if isinstance(model, Preprocessed) else model
    known = normalizations(data)
    inputs = images.cpu()

    def right(pair: Any, n: int) -> Tensor:
        logits = _logits(bare, normalised(inputs[:n], pair).to(labels.device), data.about.classes)
        return logits.argmax(1).eq(labels[:n])

    now = _logits(model, images, data.about.classes).argmax(1).eq(labels)
    better: dict[str, Tensor] = {}
    for name in kinds(known):
        if _gain(now[:FEW], right(known[name], FEW)) > 0:
            whole = right(known[name], len(images))
            if _gain(now, whole) > _noise(now, whole):
                better[name] = whole
    if not better:
        return None
    best = max(better, key=lambda name: int(better[name].sum()))
    shown = best
    if best == "dataset":
        shown = " ".join(",".join(f"{value:.4g}" for value in values) for values in known[best] or ())
    return _Other(shown, int(better[best].sum()), len(images))


def _gain(now: Tensor, other: Tensor) -> int:
    """How many images more are right."""
    return int(other.sum()) - int(now.sum())


def _noise(now: Tensor, other: Tensor) -> float:
    """Two standard deviations of that, were it chance which of two outcomes is right where they differ."""
    return 2 * math.sqrt(int(now.ne(other).sum()))


def _other_order(logits: Tensor, labels: Tensor, data: Data, accuracy: float) -> str | None:
    """Whether the classes only have other numbers, as advice."""
    import torch

    classes = data.about.classes
    if len(labels) < PER_CLASS * classes:
        return None
    counts = torch.zeros(classes, classes, dtype=torch.long)
    predictions = logits.argmax(1).cpu()
    counts.index_put_((labels.cpu(), predictions), torch.ones(len(labels), dtype=torch.long), accumulate=True)
    order = counts.argmax(1).tolist()
    mapped = counts.max(1).values.sum().item() / len(labels)
    if sorted(order) != list(range(classes)) or mapped < accuracy + MUCH:
        return None
    pairs = ", ".join(f'"{name}": {place}' for name, place in zip(data.about.class_names, order, strict=True))
    return f"try --class-map with a file of {{{pairs}}}, with which it is {mapped:.4f}."


def _source(record: Mapping[str, Any]) -> Any:
    """Who said the normalisation of a user's file."""
    told = record.get("recognised")
    return told.get("normalize_from") if isinstance(told, dict) else "given"


def _what_to_try(record: Mapping[str, Any]) -> str:
    if _source(record) == "checkpoint":
        return "the normalisation is the file's own: try --class-map, and check the data set."
    return (
        "no normalisation with a name does better: try --normalize MEAN STD or --class-map, and check the"
        " data set and how long the model was trained."
    )
