"""The normalisations that a checkpoint's network may need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from rbtools.models.normalize import PER_IMAGE, Known, Pair, kinds
from rbtools.models.read_checkpoint import Checkpoint
from rbtools.models.trial import Batches
from rbtools.models.unpack import MEANS, MOST_CHANNELS, STDS, take_normalisation
from rbtools.registry import hooks

RAW = "none"  # an architecture's `normalize` if the network takes unchanged pixels
OPEN = "open"  # not known yet: the accuracy on images decides
ACCURACY = "accuracy"  # the accuracy on images decided
DATASET = "dataset"  # the known normalisation of the evaluated data set
TRANSFORM = "--transform"  # the normalisation of the preset that this option names
PUBLISHED = "published"  # the known normalisation of the network's published configuration
SMALL_IMAGENET = "imagenet16-120"
GUESS = "guess: "  # beginning of `normalize_from` if neither file, user nor images decide


@dataclass(frozen=True)
class NormalizationHints:
    """`known` maps names to normalisations, and `classes` maps names to numbers of classes.

    `batches` returns labelled images on which several possible normalisations are compared. `preset` is the
    normalisation of `--transform`, which is chosen unless the file or the user names another one.
    """

    known: Mapping[str, Known] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)
    batches: Batches | None = None
    preset: Pair | None = None


class Choices(NamedTuple):
    """`fields` maps each possible value of --normalize to fields of an architecture record.

    `source` describes the origin of the fields. If several values are equally accurate, one in `preferred` is
    chosen.
    """

    fields: dict[str, dict[str, Any]]
    source: str
    preferred: tuple[str, ...] = ()


def choices(
    checkpoint: Checkpoint,
    arch: Mapping[str, Any],
    network: nn.Module,
    classes: int,
    channels: int,
    hints: NormalizationHints,
    named: bool,
) -> Choices:
    """Returns the normalisations that are possible for a checkpoint's `network`.

    There is exactly one if the file contains it, if the user names it, or if the training data of a published
    run determine it. Files that rbtools wrote without a normalisation, and networks of the user's own code,
    have none. Otherwise, the first known normalisation of each kind is possible. The published normalisation
    of the network is preferred if all publishers use the same one. `named` is true if the user named the
    network.
    """
    noted = checkpoint.metadata.get("arch")
    own = checkpoint.mean is not None or "normalisation" in checkpoint.origin
    if own or noted_per_image(checkpoint) or (isinstance(noted, Mapping) and "space" in noted):
        return Choices({RAW: {}}, "checkpoint")
    if "normalize" in arch:
        return Choices({RAW: {}}, "given")
    if hints.preset is not None and _fitting({PUBLISHED: hints.preset}, channels):
        return Choices({PUBLISHED: chosen(hints.preset)}, TRANSFORM)
    known = _fitting(hints.known, channels)
    trained_on = str(checkpoint.origin.get("run", "")).partition("/")[0].lower().removesuffix("-valid")
    if trained_on in known:
        return Choices({trained_on: chosen(known[trained_on])}, "published training")
    if arch.get("space") == "python":
        by_itself = normaliser(network) is not None
        why = "the network normalises by itself" if by_itself else "none for python:"
        return Choices({RAW: chosen(None)}, GUESS + why)
    if classes != hints.classes.get(SMALL_IMAGENET, classes):
        known.pop(SMALL_IMAGENET, None)  # similar to ImageNet's, and only used with its own number of classes
    published = [pair for hook in hooks("normalizations") for pair in hook(arch, network, classes, named)]
    if len(published) == 1 and known and _fitting({PUBLISHED: published[0]}, channels):
        known[PUBLISHED] = published[0]
    likely = [PUBLISHED, DATASET, *(name for name in known if hints.classes.get(name) == classes)]
    return _of_kinds({name: known[name] for name in (*likely, *known) if name in known})


def of_program(program: nn.Module, path: Path, hints: NormalizationHints, channels: int) -> Choices:
    """Returns the possible normalisations of a program. A program with a normaliser's buffers needs none."""
    mean, _ = take_normalisation(dict(program.named_buffers()), path, {})
    if mean is not None:
        return Choices({RAW: chosen(None)}, f"{GUESS}the program normalises by itself")
    if hints.preset is not None and _fitting({PUBLISHED: hints.preset}, channels):
        return Choices({PUBLISHED: chosen(hints.preset)}, TRANSFORM)
    return _of_kinds(_fitting(hints.known, channels))


def _of_kinds(known: Mapping[str, Known]) -> Choices:
    fields = {_option(known[name], known): chosen(known[name]) for name in kinds(known)}
    preferred = (_option(known[PUBLISHED], known),) if PUBLISHED in known else ()
    return Choices(fields, ACCURACY, preferred) if fields else Choices({RAW: {}}, OPEN)


def _option(pair: Known, known: Mapping[str, Known]) -> str:
    """Returns the value of --normalize for a normalisation: its name, or its numbers without a name."""
    if pair is None or isinstance(pair, str):
        return pair or RAW
    others = {name: other for name, other in known.items() if isinstance(other, tuple)}
    of_names = (name for name in others if name not in (DATASET, PUBLISHED))
    name = next((name for name in of_names if _equal(pair, others[name])), None)
    return name or "'{}'".format(" ".join(",".join(f"{value:.5g}" for value in values) for values in pair))


def _equal(pair: Pair, other: Pair) -> bool:
    """True if two normalisations are equal. `other` may have one number for all channels."""
    return all(
        values in (of_other, of_other * len(values)) for values, of_other in zip(pair, other, strict=True)
    )


def chosen(pair: Known) -> dict[str, Any]:
    """Returns this normalisation as fields of an architecture record."""
    return {"normalize": RAW if pair is None else pair if isinstance(pair, str) else list(map(list, pair))}


def noted_per_image(checkpoint: Checkpoint) -> bool:
    return checkpoint.metadata.get("normalize") == PER_IMAGE


def _fitting(known: Mapping[str, Known], channels: int) -> dict[str, Known]:
    return {
        name: pair
        for name, pair in known.items()
        if pair is None or isinstance(pair, str) or len(pair[0]) in (1, channels)
    }


def preprocessing(cfg: object) -> str | None:
    """Returns the preprocessing in a timm configuration as a string (see `datasets.preprocessing`), or None
    if it cannot be described."""
    keys = ("interpolation", "crop_pct", "input_size")
    if not isinstance(cfg, Mapping) or not all(cfg.get(key) for key in keys):
        return None
    interpolation, share, (_, side, width) = (cfg[key] for key in keys)
    squash = {None: "", "": "", "center": "", "squash": "squash-"}.get(cfg.get("crop_mode"))
    if interpolation not in ("bilinear", "bicubic") or squash is None or side != width:
        return None
    return f"{squash}{interpolation}-{int(side / share)}-{side}"


def normaliser(network: nn.Module) -> str | None:
    """Returns the name of a module with a mean and a standard deviation per channel, or None.

    The numbers may be buffers or plain attributes. The name is "" for the network itself.
    """
    for name, module in network.named_modules():
        own = {**vars(module), **module._buffers}
        if all(any(_a_number_a_channel(own.get(word)) for word in words) for words in (MEANS, STDS)):
            return str(name)
    return None


def _a_number_a_channel(value: object) -> bool:
    if isinstance(value, Tensor):
        return bool(value.is_floating_point()) and 0 < value.numel() <= MOST_CHANNELS
    if not isinstance(value, (list, tuple)) or not 0 < len(value) <= MOST_CHANNELS:
        return False
    return all(isinstance(one, (int, float, Tensor)) for one in value)


def warnings_of(network: nn.Module, arch: Mapping[str, Any]) -> list[str]:
    """Returns a warning if --normalize is given for a network that already normalises its input."""
    place = normaliser(network) if arch.get("space") == "python" else None
    if place is None or arch.get("normalize") in (None, RAW):
        return []
    where = f"its module {place}" if place else "the network itself"
    return [
        f"images are normalised twice: by --normalize, and by {where}, which has a mean and a standard"
        " deviation. Use --normalize none to keep only the second normalisation"
    ]
