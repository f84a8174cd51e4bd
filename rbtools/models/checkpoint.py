"""Identifies the network of a weights file and its normalisation, and loads the weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rbtools import check_input, models
from rbtools.errors import Misfit, RbError, optional
from rbtools.models import Shape, load_weights, normalising, programs, trial
from rbtools.models.families import (
    VARIANT_FIELDS,
    classes_of,
    different_cells,
    in_channels_of,
    infer,
    label,
    pooled_windows,
    skeleton,
    variants_of,
)
from rbtools.models.normalising import RAW, Choices, NormalizationHints, noted_per_image
from rbtools.models.normalize import PER_IMAGE, behind, per_channel
from rbtools.models.read_checkpoint import Checkpoint, read
from rbtools.spaces import nasbench201 as nb201
from rbtools.spaces import zoo
from rbtools.spaces.identity import identity

Candidate = tuple[dict[str, Any], nn.Module]  # (architecture, its network)
# Fields of an architecture record that describe the file and not the network.
NOT_OF_THE_NETWORK = ("member", "normalize", "preprocessing")


def load(
    path: str | Path,
    arch: Mapping[str, Any] | None = None,
    *,
    classes: int | None = None,
    shape: tuple[int, int, int] | None = None,
    hints: NormalizationHints | None = None,
    allow_code: bool = False,
) -> tuple[nn.Module, dict[str, Any], dict[str, Any]]:
    """Read a file, infer its architecture if `arch` has none, build the network, and load the weights.

    Returns (model, arch, facts). The model is in eval mode on the CPU, and its first layer is the
    normalisation, if there is one. `arch` is the complete architecture record. `facts` contains plain values
    for the record, such as the sources of the architecture and of the normalisation. Two fields of `arch`
    describe the file: `member` (see `read`) and, if the file does not contain its normalisation, `normalize`
    ([mean, std], "per-image" or "none").

    `classes` and `shape` (C, H, W) describe the data set and must agree with the file. If tensor names and
    shapes do not determine the normalisation, the variant of the network, or operations without weights, the
    accuracy on the images of `hints` decides, and `facts` contains the accuracies (`tried`). Without images,
    `facts` contains the undecided fields (`unchecked`). If `allow_code` is true, programs (TorchScript,
    torch.export) and the user's own functions may run. Raises RbError if not exactly one network and
    normalisation fit, or if the data set does not agree with the file. The global random state is unchanged.
    """
    path, hints = Path(path), hints or NormalizationHints()
    form = programs.format_of_file(path, allow_code) if path.is_file() else None
    if form is not None:
        return _program(path, form, arch or {}, classes, shape, hints)
    checkpoint = read(path, (arch or {}).get("member"))
    classes, channels = _classes_and_channels(checkpoint, classes, shape)
    archs, facts = _architectures(checkpoint, arch, hints)
    if shape is None:
        side = _usual_side(checkpoint, archs[0])
        shape = (channels, side, side)
    candidates: list[Candidate] = []
    for one in archs:
        network, checkpoint = load_weights.filled(checkpoint, one, classes, shape, allow_code)
        if one.get("space") == "timm" and "side" not in one:
            cropped = normalising.preprocessing(getattr(network, "pretrained_cfg", None))
            one = {"preprocessing": cropped, **one} if cropped else one
        candidates.append((one, network))
    arch, network = candidates[0]
    if arch.get("space") == "python":
        _check_own(path, network, classes, shape)
    named = facts["arch_from"] == "given"
    choices = normalising.choices(checkpoint, arch, network, classes, shape[0], hints, named)
    normalize_of = partial(_normalize_of, checkpoint)
    first = normalize_of({**arch, **next(iter(choices.fields.values()))})
    if isinstance(first, list) and len(first[0]) not in (1, shape[0]):
        raise RbError(
            f"The normalisation has {len(first[0])} means, but the images for the checkpoint {path} have"
            f" {shape[0]} channels. Give one mean and one standard deviation per channel, or one for all."
        )
    arch, model, more = _decided(path, candidates, choices, hints, normalize_of, named=named)
    facts |= {**more, "classes": classes, "shape": list(shape), "normalize": normalize_of(arch)}
    warnings = normalising.warnings_of(network, arch)
    if "left_out" in checkpoint.origin:
        warnings.append(f"{checkpoint.origin['left_out']} in the file are not part of the network: left out")
    facts |= {"warnings": warnings} if warnings else {}
    return model.eval(), arch, facts


def _usual_side(checkpoint: Checkpoint, arch: Mapping[str, Any]) -> int:
    """The side of the images in pixels if no data set is known."""
    if arch.get("pool") == "4x4":
        return 32 * pooled_windows(checkpoint.state)
    large = arch.get("space") in ("torchvision", "timm") and "stem" not in arch
    return arch.get("side") or (224 if large or arch.get("stem") == "imagenet" else 32)


def _decided(
    path: Path,
    candidates: Sequence[Candidate],
    choices: Choices,
    hints: NormalizationHints,
    normalize_of: Callable[[Mapping[str, Any]], Any],
    named: bool,
) -> tuple[dict[str, Any], nn.Module, dict[str, Any]]:
    """Returns the architecture with its normalisation, the model, and facts.

    If there are several candidates, the most accurate one is chosen. If `named` is true, the user named the
    first architecture, which is then preferred among equally accurate ones. Without images, the first
    architecture is returned, and the normalisation stays undecided if several are possible.
    """
    facts: dict[str, Any] = {"normalize_from": choices.source}
    several = len(candidates) > 1
    if hints.batches is None:
        arch, network = candidates[0]
        if several:
            facts["unchecked"] = [field for field in VARIANT_FIELDS if field in arch]
        if len(choices.fields) > 1:
            return arch, network, {**facts, "normalize_from": normalising.OPEN}
        candidates = candidates[:1]
    archs, models, preferred = {}, {}, set()
    for arch, network in candidates:
        for name, more in choices.fields.items():
            options = f"--arch {label(arch)} " * several
            options += f"--normalize {name}" * (len(choices.fields) > 1)
            archs[options.strip()] = whole = {**arch, **more}
            models[options.strip()] = behind(network, normalize_of(whole))
            usual = name in choices.preferred or len(choices.fields) == 1
            if usual and (arch is candidates[0][0] or not named):
                preferred.add(options.strip())
    best = next(iter(models))
    if hints.batches is not None and len(models) > 1:
        best, facts["tried"] = trial.decided(path, models, hints.batches, preferred)
    return archs[best], models[best], facts


def _architectures(
    checkpoint: Checkpoint, arch: Mapping[str, Any] | None, hints: NormalizationHints
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the possible architecture records, the most common one first, and facts.

    There are several records if tensor names and shapes do not determine the architecture.
    """
    facts: dict[str, Any] = dict(checkpoint.origin)
    metadata_arch = checkpoint.metadata.get("arch")
    of_file = {key: arch[key] for key in NOT_OF_THE_NETWORK if arch and key in arch}
    if arch and "space" in arch:
        if "run" in checkpoint.origin:
            metadata_arch = {"space": "nasbench201", "str": checkpoint.metadata.get("arch_str")}
        noted: Mapping[str, Any] = metadata_arch if isinstance(metadata_arch, Mapping) else {}
        if arch["space"] == noted.get("space") == "nasbench201":
            wanted, there = nb201.ops_of(arch), nb201.ops_of(noted)
            if wanted != there:  # none, skip and pooling have no weights to compare
                raise RbError(
                    f"The checkpoint {checkpoint.path} contains the architecture {nb201.to_string(there)},"
                    f" but --arch or the record says {nb201.to_string(wanted)}. Leave out --arch, or"
                    " choose another file."
                )
        facts["arch_from"], fields = "given", dict(arch)
    elif isinstance(metadata_arch, Mapping) and "space" in metadata_arch:
        facts["arch_from"], fields = "metadata", _arch_in_metadata(metadata_arch, checkpoint)
    else:
        facts["arch_from"], seen = "weights", checkpoint.seen
        if len(seen) > 1 and hints.batches is not None:  # images decide
            return [{**cell, **of_file} for cell in different_cells(seen)], facts
        try:
            fields = infer(checkpoint.state, checkpoint.metadata).arch
        except RbError as error:
            error.args = (f"{error} The file is {checkpoint.path}.",)
            raise
    whole = {**_sizes_in_weights(fields, checkpoint), **fields, **of_file}
    named = any(field in (arch or {}) for field in VARIANT_FIELDS)
    if named or facts["arch_from"] == "metadata" or "run" in checkpoint.origin:
        return [whole], facts
    return variants_of(whole), facts


def _arch_in_metadata(arch: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
    identity(arch, f"The architecture in the metadata of the checkpoint {checkpoint.path}")
    for key, value in skeleton(checkpoint.state).items():
        if arch.get("space") == "nasbench201" and arch.get(key, value) != value:
            raise RbError(
                f"The metadata of the checkpoint {checkpoint.path} names an architecture with {key}"
                f" {arch[key]}, but its weights have {key} {value}. Name the right network with --arch."
            )
    return json.loads(json.dumps(arch))  # NumPy's numbers become Python's


def _sizes_in_weights(arch: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
    if arch.get("space") == "nasbench201":
        return dict(skeleton(checkpoint.state))
    if arch.get("space") in models.VARIANTS:
        return dict(next(iter(models.VARIANTS.load(str(arch["space"]))(arch)), {}))
    if arch.get("space") in ("fcnn", "rescnn"):
        first = checkpoint.state.get("layers.0.weight")
        return {} if first is None or not first.ndim else {"width": len(first)}
    if arch.get("space") != "zoo" or arch.get("name") not in zoo.FORMS:
        return {}
    same = [
        one.arch for one in checkpoint.seen if zoo.FORMS.get(str(one.arch["name"])) == zoo.FORMS[arch["name"]]
    ]
    return {key: one[key] for one in same for key in ("stem", "pool", "patch", "side") if key in one}


def _given(arch: Mapping[str, Any]) -> list[list[float]] | str | None:
    given = arch.get("normalize")
    return None if given in (None, RAW) else given


def _normalize_of(checkpoint: Checkpoint, arch: Mapping[str, Any]) -> list[list[float]] | str | None:
    """Returns [mean, std] or PER_IMAGE. Raises RbError if the file and the record differ."""
    given = arch.get("normalize")
    if checkpoint.mean is None or checkpoint.std is None:
        return PER_IMAGE if given is None and noted_per_image(checkpoint) else _given(arch)
    own = [checkpoint.mean.tolist(), checkpoint.std.tolist()]
    if given is not None and (isinstance(given, str) or not _are_equal(own, given)):
        mean, std = (",".join(f"{value:.4f}" for value in values) for values in own)
        raise RbError(
            f"The checkpoint {checkpoint.path} contains its own normalisation (mean {mean}, std {std}), but"
            " the record or --normalize names a different one. Leave out --normalize."
        )
    return own


def _are_equal(pair: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> bool:
    """True if two normalisations are equal. Either may have one number for all channels."""
    values = [(per_channel(a), per_channel(b)) for a, b in zip(pair, other, strict=True)]
    return all(
        (len(a) == len(b) or 1 in (len(a), len(b))) and bool((a - b).abs().max() < 1e-4) for a, b in values
    )


def _classes_and_channels(
    checkpoint: Checkpoint, classes: int | None, shape: tuple[int, int, int] | None
) -> tuple[int, int]:
    """Returns both numbers from the data set if it is known, and otherwise from the file."""
    seen = next(iter(checkpoint.seen), None)
    n_classes = classes_of(checkpoint.state) if seen is None else seen.classes
    channels = in_channels_of(checkpoint.state) if seen is None else seen.in_channels
    other_channels = channels if shape is not None and channels not in (None, shape[0]) else None
    if classes is not None and n_classes is not None and classes != n_classes:
        raise Misfit(
            f"The checkpoint {checkpoint.path} has {n_classes} classes, but the data set has"
            f" {classes}. Name the data set that it was trained for with --dataset.",
            n_classes,
            other_channels,
        )
    if shape is not None and other_channels is not None:
        raise _of_other_channels(checkpoint.path, shape, other_channels)
    if classes is None and n_classes is None:
        raise RbError(
            f"The number of classes of the checkpoint {checkpoint.path} is not known. Name a data set."
        )
    return classes or n_classes or 0, channels or (3 if shape is None else shape[0])


def _of_other_channels(path: Path, shape: Shape, channels: int) -> Misfit:
    return Misfit(
        f"The checkpoint {path} takes images with {channels} channels, but the data set has"
        f" {shape[0]}. Name the data set that it was trained for with --dataset.",
        channels=channels,
    )


def _check_own(path: Path, network: nn.Module, classes: int | None, shape: Shape) -> None:
    """Raise Misfit if a user's network needs images with other channels or has other classes."""
    other, output = {1: 3, 3: 1}.get(shape[0]), _output(network, shape)
    if output is None and other and _output(network, (other, *shape[1:])) is not None:
        raise _of_other_channels(path, shape, other)
    if isinstance(output, Tensor) and output.dim() == 2 and len(output) == 2 and classes:
        logits = output.shape[1]
        if logits not in (1, classes):
            raise Misfit(
                f"The network of {path} returns {logits} logits, but the data set has {classes} classes."
                " If this number comes from the highest label, check that the labels start at 0.",
                logits,
            )


def _output(network: nn.Module, shape: Shape) -> Any:
    """Returns the output for two black images, or None if the network's code raises an exception."""
    output = None
    with optional(), torch.random.fork_rng(devices=[]), torch.no_grad():
        output = (deepcopy(network).eval() if network.training else network)(torch.zeros(2, *shape))
    return output


def _program(
    path: Path,
    form: type[programs.ProgramFormat],
    arch: Mapping[str, Any],
    classes: int | None,
    shape: tuple[int, int, int] | None,
    hints: NormalizationHints,
) -> tuple[nn.Module, dict[str, Any], dict[str, Any]]:
    if shape is None:
        raise RbError(f"The image size that the program {path} takes is not known. Name a data set.")
    program, fields, facts, choices = programs.load(path, form, arch, shape, hints)
    _check_own(path, program, None, shape)
    check_input.keep_images(program, shape)
    n_classes = programs.classes_of(program, shape, path)
    if classes is not None and classes != n_classes:
        raise Misfit(
            f"The program {path} returns {n_classes} logits, but the data set has {classes} classes."
            " Name the data set that it was trained for with --dataset.",
            n_classes,
        )
    if "normalize" in arch:
        choices = Choices({RAW: {"normalize": arch["normalize"]}}, "given")
    choices = choices or normalising.of_program(program, path, hints, shape[0])
    candidate = {"space": "checkpoint", "name": form.name, **fields}, program
    whole, model, more = _decided(path, [candidate], choices, hints, _given, named=False)
    facts = {"format": form.name, "classes": n_classes, "shape": list(shape), "arch_from": "program", **facts}
    return model.eval(), whole, {**facts, **more, "normalize": _given(whole)}
