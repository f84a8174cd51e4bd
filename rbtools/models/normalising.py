"""Choose the normalisation that a checkpoint's network was trained with, and record its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rbtools.errors import RbError, optional
from rbtools.models import Shape, statistics
from rbtools.models.normalize import PER_IMAGE, Normalized, PerImageStandardization
from rbtools.models.read_checkpoint import Checkpoint
from rbtools.models.statistics import Known, Pair
from rbtools.models.unpack import MEANS, MOST_CHANNELS, STDS, take_normalisation
from rbtools.registry import hooks

RAW = "none"  # an architecture's `normalize` where the network takes pixels as they are
OPEN = "open"  # an unknown normalisation
DATASET = "dataset"  # the known normalisation of the evaluated data set
PUBLISHED = "published"  # the known normalisation of the network's published configuration
SMALL_IMAGENET = "imagenet16-120"
STATISTICS = "BatchNorm statistics"
ASKED = (DATASET, "none", "imagenet")  # proposed if no normalisation is published
WITH_OWN_INPUTS = ("python", "fcnn", "rescnn")  # spaces whose networks state their inputs
ACCURACY = 256  # images for the clean accuracy that is reported for normalisations that fit alike
GUESS = "guess: "  # `normalize_from` begins so if neither file, user nor statistics decide


@dataclass(frozen=True)
class NormalizationHints:
    """Inputs of the choice: images of the data set (N, C, H, W) in [0, 1], the `known` normalisations by
    name, and the number of `classes` of the data set that a normalisation belongs to. `more`: batches of up
    to statistics.MOST images with their labels, for normalisations that the `images` do not distinguish.
    """

    images: Callable[[], Tensor] | None = None
    known: Mapping[str, Known] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)
    more: statistics.Batches | None = None


@dataclass(frozen=True)
class ChosenNormalization:
    """`arch`: fields for the architecture record; `facts`: the source of the choice; `others`:
    normalisations of another kind that fit the first BatchNorm layer as well; `guess`: the fallback where
    the statistics of the other layers do not decide either.
    """

    arch: dict[str, Any]
    facts: dict[str, Any]
    others: tuple[ChosenNormalization, ...] = ()
    guess: ChosenNormalization | None = None


def choose_normalization(
    checkpoint: Checkpoint,
    arch: Mapping[str, Any],
    network: nn.Module,
    classes: int,
    shape: Shape,
    hints: NormalizationHints,
    named: bool = False,
) -> ChosenNormalization:
    """The normalisation of a checkpoint's `network`, which holds its weights.

    The sources, in this order: the file itself (a file written by rbtools without one has none); the user;
    the data set that a published run was trained on; BatchNorm's statistics; else a guess: none for a network
    of the user's own code, the published configuration, the data set that is evaluated. `named`: the user
    said which network it is.

    Raises RbError for a network without BatchNorm, when there are images, unless all publishers of its
    tensors use the same normalisation.
    """
    noted = checkpoint.metadata.get("arch")
    own = checkpoint.mean is not None or "normalisation" in checkpoint.origin
    if own or noted_per_image(checkpoint) or (isinstance(noted, Mapping) and "space" in noted):
        return ChosenNormalization({}, {"normalize_from": "checkpoint"} | _warned(network, arch))
    if "normalize" in arch:
        return ChosenNormalization({}, {"normalize_from": "given"} | _warned(network, arch))
    known = _fitting(hints.known, shape[0])
    if classes != hints.classes.get(SMALL_IMAGENET, classes):
        known.pop(SMALL_IMAGENET, None)  # it is nearly ImageNet's, and nobody uses it for other classes
    trained_on = str(checkpoint.origin.get("run", "")).partition("/")[0].lower().removesuffix("-valid")
    if trained_on in known:
        facts: dict[str, Any] = {"normalize_from": "published training", "normalize_name": trained_on}
        return ChosenNormalization(chosen(known[trained_on]), facts)
    if arch.get("space") == "python" and normaliser(network) is not None:
        return ChosenNormalization(
            chosen(None), {"normalize_from": f"{GUESS}the network normalises by itself"}
        )
    if known:
        published = [pair for of_network in hooks("normalizations") for pair in of_network(network, classes)]
        known = {**_fitting({PUBLISHED: published[0]} if published else {}, shape[0]), **known}
    if not known:
        return ChosenNormalization({}, {"normalize_from": OPEN})
    of_classes = [name for name in known if hints.classes.get(name) == classes]
    guess = guessed(arch, known, of_classes)
    public = arch.get("space") != "nasbench201"  # its published weights have the exact digits
    remembered = _remembered(network, shape, hints, known, of_classes, guess, public)
    if remembered is not None or arch.get("space") in WITH_OWN_INPUTS or statistics.has_statistics(network):
        return remembered or guess
    return _agreed(checkpoint, arch, network, classes, shape[0], known, hints, named)


def _agreed(
    checkpoint: Checkpoint,
    arch: Mapping[str, Any],
    network: nn.Module,
    classes: int,
    channels: int,
    known: Mapping[str, Known],
    hints: NormalizationHints,
    named: bool,
) -> ChosenNormalization:
    """The normalisation that all publish for a network without BatchNorm. If they differ, it stays open
    without images; with images this raises RbError.
    """
    published = [
        pair
        for in_use in hooks("normalizations-in-use")
        for pair in in_use(arch, network, classes, checkpoint.saved, known, named, checkpoint.metadata)
    ]
    pairs = [pair for pair in published if _fitting({"": pair}, channels)]
    if len(pairs) == 1:
        return ChosenNormalization(
            chosen(pairs[0]), {"normalize_from": f"{GUESS}the published configuration"}
        )
    if hints.images is None:
        return ChosenNormalization({}, {"normalize_from": OPEN})
    words = [_option(pair, known) for pair in pairs or [known[name] for name in ASKED if name in known]]
    listed = " or ".join(f"--normalize {word}" for word in words)
    raise RbError(
        f"The checkpoint {checkpoint.path} has no BatchNorm, whose statistics would tell its normalisation,"
        f" and networks of these names and shapes are trained with several. Say which it is: {listed}, or"
        " another that --normalize takes."
    )


def of_program(program: nn.Module, path: Path, hints: NormalizationHints) -> ChosenNormalization:
    """None for a program with a normaliser's buffers. For others it stays open without images; with images
    this raises RbError, which requests it.
    """
    mean, _ = take_normalisation(dict(program.named_buffers()), path, {})
    if mean is not None:
        return ChosenNormalization(
            chosen(None), {"normalize_from": f"{GUESS}the program normalises by itself"}
        )
    if hints.images is None:
        return ChosenNormalization({}, {"normalize_from": OPEN})
    words = [_option(hints.known[name], hints.known) for name in (DATASET, "imagenet") if name in hints.known]
    others = "".join(f", --normalize {word}" for word in dict.fromkeys(words) if word != RAW)
    raise RbError(
        f"The program {path} does not show the normalisation of its images. Add --normalize none if it"
        f" normalises by itself or takes pixels as they are; else name it{others or ', --normalize MEAN STD'}"
        " or another that --normalize takes."
    )


def _option(pair: Known, known: Mapping[str, Known]) -> str:
    """What --normalize takes for a normalisation: its name if it has one."""
    if pair is None or isinstance(pair, str):
        return pair or RAW
    others = {name: other for name, other in known.items() if isinstance(other, tuple)}
    of_names = (name for name in others if name not in (DATASET, PUBLISHED))
    name = next((name for name in of_names if _equal(pair, others[name])), None)
    return name or "'{}'".format(" ".join(",".join(f"{value:.5g}" for value in values) for values in pair))


def _equal(pair: Pair, other: Pair) -> bool:
    """Whether two normalisations are the same; the `other` may have one number for all channels."""
    return all(
        values in (of_other, of_other * len(values)) for values, of_other in zip(pair, other, strict=True)
    )


def guessed(
    arch: Mapping[str, Any], known: Mapping[str, Known], of_classes: Sequence[str] = ()
) -> ChosenNormalization:
    """The guessed normalisation; `of_classes` are those of data sets with as many classes."""
    if arch.get("space") == "python":
        return ChosenNormalization(chosen(None), {"normalize_from": f"{GUESS}none for python:"})
    guesses = {PUBLISHED: "the published configuration", DATASET: "the data set's"}
    if list(of_classes) == ["imagenet"]:
        guesses["imagenet"] = "ImageNet's 1000 classes"
    for name, words in guesses.items():
        if name in known:
            return ChosenNormalization(chosen(known[name]), {"normalize_from": GUESS + words})
    return ChosenNormalization({}, {"normalize_from": OPEN})


def _remembered(
    network: nn.Module,
    shape: Shape,
    hints: NormalizationHints,
    known: Mapping[str, Known],
    of_classes: list[str],
    guess: ChosenNormalization,
    public: bool,
) -> ChosenNormalization | None:
    """The normalisation that fits the first BatchNorm layer; None where none or no single one fits."""
    images = hints.images
    seen = statistics.synthetic(shape) if images is None else images()[: statistics.MANY]
    preferred = [PUBLISHED] if PUBLISHED in known else [DATASET, *of_classes]
    fitting = statistics.normalisation(network, seen, known, preferred, hints.more)
    if fitting is None or (images is None and len(fitting.names) > 1):
        return None

    def told(name: str) -> str:
        # CIFAR-10's in the digits that nearly all public code prints, where the exact ones fit: they differ
        # in the fourth digit, which BatchNorm's statistics do not tell.
        usual = public and "rice" in known and known[name] == known.get("cifar10")
        return "rice" if usual else name

    names = [told(name) for name in fitting.names]
    divergences: dict[str, Any] = {"normalize_divergences": fitting.divergences}
    if fitting.tie is not None:
        of_names = {told(name): value for name, value in fitting.tie.divergences.items()}
        divergences["normalize_tie"] = {"images": fitting.tie.images, "divergences": of_names}
    first, *others = [
        ChosenNormalization(
            chosen(known[name]), {"normalize_from": STATISTICS, "normalize_name": name, **divergences}
        )
        for name in names
    ]
    return ChosenNormalization(first.arch, first.facts, tuple(others), guess)


def with_accuracies(
    facts: Mapping[str, Any], network: nn.Module, hints: NormalizationHints
) -> dict[str, Any]:
    """The facts; normalisations that fit alike get the clean accuracy of each (`acc`) on the first images
    (`acc_images`): at most ACCURACY, because they go through the whole network.
    """
    tie = facts.get("normalize_tie")
    if tie is None or hints.more is None:
        return dict(facts)
    most = min(ACCURACY, statistics.affordable(network) * ACCURACY // statistics.MANY)
    right, count = dict.fromkeys(tie["divergences"], 0), 0
    for images, labels in hints.more():
        images, labels = images[: most - count], labels[: most - count]
        if not len(images):
            break
        count += len(images)
        for name in right:
            logits = None
            with optional(), torch.no_grad():
                logits = network.eval()(statistics.normalised(images, hints.known[name]))
            if not isinstance(logits, Tensor) or logits.ndim != 2:  # the evaluation reports it
                return {key: value for key, value in facts.items() if key != "normalize_tie"}
            right[name] += int(logits.argmax(1).eq(labels).sum())
    shares = {name: round(correct / count, 4) for name, correct in right.items()}
    return {**facts, "normalize_tie": {**tie, "acc": shares, "acc_images": count}}


def chosen(pair: Known) -> dict[str, Any]:
    """The field of an architecture record for this normalisation."""
    return {"normalize": RAW if pair is None else pair if isinstance(pair, str) else list(map(list, pair))}


def behind(network: nn.Module, normalize: str | Sequence[Sequence[float] | Tensor] | None) -> nn.Module:
    """The network after a normalisation: [mean, std], PER_IMAGE, or None for unchanged pixels."""
    if normalize is None:
        return network
    return PerImageStandardization(network) if normalize == PER_IMAGE else Normalized(network, *normalize)


def noted_per_image(checkpoint: Checkpoint) -> bool:
    """Whether the metadata says that each image is standardised by itself."""
    return checkpoint.metadata.get("normalize") == PER_IMAGE


def _fitting(known: Mapping[str, Known], channels: int) -> dict[str, Known]:
    """The normalisations for images with that many channels."""
    return {
        name: pair
        for name, pair in known.items()
        if pair is None or isinstance(pair, str) or len(pair[0]) in (1, channels)
    }


def preprocessing(cfg: object) -> str | None:
    """The input that a configuration of timm requires, as an option of the data set imagenet; None if it has
    none."""
    keys = ("interpolation", "crop_pct", "input_size")
    if not isinstance(cfg, Mapping) or not all(cfg.get(key) for key in keys):
        return None
    interpolation, share, (_, side, _) = (cfg[key] for key in keys)
    named = interpolation in ("bilinear", "bicubic") and cfg.get("crop_mode") in (None, "", "center")
    return f"{interpolation}-{int(side / share)}-{side}" if named else None


def normaliser(network: nn.Module) -> str | None:
    """The name of the module inside a network that holds a mean and a standard deviation a channel, as
    buffers or as plain attributes; None where there is none, "" for the network itself.
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
    return all(isinstance(one, (int, float, torch.Tensor)) for one in value)


def _warned(network: nn.Module, arch: Mapping[str, Any]) -> dict[str, Any]:
    """A warning if the network normalises by itself and a normalisation was also given."""
    place = normaliser(network) if arch.get("space") == "python" else None
    if place is None or arch.get("normalize") in (None, RAW):
        return {}
    where = f"its module {place}" if place else "the network itself"
    return {
        "warnings": [
            f"images are normalised twice: by --normalize, and by {where}, which holds a mean and a standard"
            " deviation. Add --normalize none where the second is meant"
        ]
    }
