"""Checkpoints: recognise and load weights files strictly, and write them.

Code in a file runs only with `allow_code`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rbtools import check_input, models
from rbtools.errors import Misfit, RbError, optional
from rbtools.models import (
    Shape,
    disambiguate,
    normalising,
    programs,
    recognise,
    statistics,
    tensor_names,
    unpack,
    weights_file,
)
from rbtools.models.families import Ambiguous, Inferred, pooled_windows, skeleton
from rbtools.models.load_weights import OPTIONAL, load_into, meta_init
from rbtools.models.normalising import RAW, ChosenNormalization, NormalizationHints, behind, noted_per_image
from rbtools.models.normalize import PER_IMAGE, Normalized, PerImageStandardization, Preprocessed, per_channel
from rbtools.models.read_checkpoint import Checkpoint, counted, read
from rbtools.models.recognise import infer
from rbtools.spaces import nasbench201 as nb201
from rbtools.spaces import zoo
from rbtools.spaces.identity import identity

Candidate = tuple[dict[str, Any], nn.Module]  # (architecture, its network)
# Spaces whose networks mostly compute no constants while they are built.
WITHOUT_CONSTANTS = ("nasbench201", "zoo", "torchvision", "repo", "fcnn", "rescnn")
# Fields of an architecture that belong to the file.
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
    """Read a file, infer its architecture where `arch` does not give it, build the network, load the weights.

    Returns (model, arch, facts): the model in eval mode on the CPU, with normalisation as its first
    layer where there is one; `arch` the whole architecture record; `facts` plain values for the record, such
    as where the architecture and the normalisation come from. Fields of `arch` that belong to the file:
    `member` (see `read`) and `normalize` ([mean, std], "per-image" or "none") for a file that does not hold
    its normalisation.

    `classes` and `shape` (C, H, W) are the data set's, and have to agree with the file. What names and
    shapes do not determine (cells without weights, the variant of a network, the normalisation) is decided by
    BatchNorm's statistics on the images of `hints`, or on synthetic ones. The facts say how well these fit
    (`fit`, see `disambiguate.choose_function`), or which fields were not compared with images (`unchecked`).
    `allow_code` lets programs (TorchScript, torch.export) and the user's own functions run. Raises RbError
    where anything does not fit, `Ambiguous` where several networks do. The global random state is unchanged.
    """
    path = Path(path)
    kind = programs.kind(path) if path.is_file() else None
    if kind is not None:
        if not allow_code:
            raise programs.refusal(path, kind)
        return _program(path, kind, arch, classes, shape, hints)
    checkpoint = read(path, (arch or {}).get("member"))
    hints = hints or NormalizationHints()
    n_classes, channels = _classes_and_channels(checkpoint, classes, shape)
    named = any(field in (arch or {}) for field in disambiguate.VARIANT_FIELDS)
    arch, facts = _architecture(checkpoint, arch, hints)
    large = arch.get("space") in ("torchvision", "timm") and "stem" not in arch
    side = arch.get("side") or (224 if large or arch.get("stem") == "imagenet" else 32)
    if arch.get("pool") == "4x4":
        side = 32 * pooled_windows(checkpoint.state)
    classes, shape = n_classes, shape or (channels, side, side)
    network, checkpoint = _network(checkpoint, arch, classes, shape, allow_code)
    if arch.get("space") == "python":
        _check_own(path, network, classes, shape)
    by_user = facts["arch_from"] == "given"
    normalization = normalising.choose_normalization(
        checkpoint, arch, network, classes, shape, hints, by_user
    )
    candidates = [(arch, network)]
    others = disambiguate.variants_of(arch)[1:] if hints.known else []

    def built(archs: Iterable[dict[str, Any]]) -> list[Candidate]:
        return [(one, _network(checkpoint, one, classes, shape, allow_code)[0]) for one in archs]

    if not named:
        candidates += built(others)
    normalize = _normalize_of(checkpoint, {**arch, **normalization.arch})
    if isinstance(normalize, list) and len(normalize[0]) not in (1, shape[0]):
        raise RbError(
            f"The normalisation has {len(normalize[0])} means and the images of the checkpoint {path} have"
            f" {shape[0]} channels. Give one mean and one standard deviation a channel, or one for all."
        )
    with_cfg = arch["space"] == "timm" and "side" not in arch
    cfg = getattr(network, "pretrained_cfg", None) if with_cfg else None
    preprocessing = normalising.preprocessing(cfg)
    if preprocessing is not None and "preprocessing" not in arch:
        candidates = [({**one, "preprocessing": preprocessing}, network) for one, network in candidates]
    unusual = [] if named else disambiguate.unusual_variants_of(arch)
    arch, network, normalization, checked = _checked(
        checkpoint, candidates, normalization, facts, hints, lambda: built(unusual)
    )
    if named and checked.get("fit", {}).get("divergence", 0) > disambiguate.CLEAR:
        several = [*others, *disambiguate.unusual_variants_of(arch)]
        checked |= _warned_of_variant(checkpoint, [(arch, network), *built(several)], normalization, hints)
    told = normalising.with_accuracies(normalization.facts, network, hints)
    arch, facts = {**arch, **normalization.arch}, {**facts, **told, **checked}
    normalize = _normalize_of(checkpoint, arch)
    facts |= {"classes": classes, "shape": list(shape), "normalize": normalize}
    if "left_out" in checkpoint.origin:
        left_out = f"{checkpoint.origin['left_out']} beside the network in the file: left out"
        facts["warnings"] = [*facts.get("warnings", ()), left_out]
    return behind(network, normalize).eval(), arch, facts


def _checked(
    checkpoint: Checkpoint,
    candidates: Sequence[Candidate],
    normalization: ChosenNormalization,
    facts: Mapping[str, Any],
    hints: NormalizationHints,
    unusual: Callable[[], list[Candidate]],
) -> tuple[dict[str, Any], nn.Module, ChosenNormalization, dict[str, Any]]:
    """The candidate (architecture, network) that fits the file's BatchNorm statistics, else the first one.

    Also returns its normalisation, and facts. Without images nothing is compared. An `unusual` candidate has
    to fit clearly better than all others; such candidates are built only if the others fit badly.
    """
    arch, network = candidates[0]
    compared = str(facts["arch_from"]).startswith(("given", "weights")) and "run" not in checkpoint.origin
    if not compared or not statistics.remembers(network):
        if compared:
            _refuse_to_guess(checkpoint.path, candidates, "it has no BatchNorm statistics that decide")
        return arch, network, normalization, {}
    if hints.images is None:
        fields = [field for field in disambiguate.VARIANT_FIELDS if len(candidates) > 1 and field in arch]
        by_statistics = normalization.facts.get("normalize_from") == normalising.STATISTICS
        return arch, network, normalization, {"unchecked": fields + ["normalize"] * by_statistics}
    images = hints.images()
    if not statistics.informative(images):
        _refuse_to_guess(checkpoint.path, candidates, "the images have no contrast that decides")
        return arch, network, normalization, {}
    images = images[: statistics.affordable(network)]
    normalizations = [normalization, *normalization.others]
    pairs = [_normalize_of(checkpoint, {**arch, **one.arch}) for one in normalizations]
    place, of_pairs, fit = disambiguate.choose_function(candidates, pairs, images)
    if fit["divergence"] > disambiguate.USUAL and (more := unusual()):
        wider = disambiguate.choose_function([*candidates, *more], pairs, images)
        if wider[-1]["fits"]:
            candidates, (place, of_pairs, fit) = [*candidates, *more], wider
    if of_pairs is not None:
        normalization = normalizations[of_pairs]
    elif normalization.guess is not None and normalization.guess.arch in [one.arch for one in normalizations]:
        normalization = normalization.guess
    if not fit["fits"]:
        divergences = "; ".join(f"{name} {value:g}" for name, value in fit.get("divergences", {}).items())
        _refuse_to_guess(
            checkpoint.path,
            candidates,
            f"its BatchNorm statistics do not decide on these images (divergences: {divergences})",
        )
    arch, network = candidates[place]
    return arch, network, normalization, {"fit": fit}


def _warned_of_variant(
    checkpoint: Checkpoint,
    candidates: Sequence[Candidate],
    normalization: ChosenNormalization,
    hints: NormalizationHints,
) -> dict[str, Any]:
    """A warning if the statistics fit another variant than the named one, which is the first of
    `candidates`."""
    assert hints.images is not None
    images = hints.images()[: statistics.affordable(candidates[0][1])]
    pair = _normalize_of(checkpoint, {**candidates[0][0], **normalization.arch})
    place, _, fit = disambiguate.choose_function(candidates, [pair], images)
    if place == 0:
        return {}
    names = [disambiguate.label(arch) for arch, _ in (candidates[0], candidates[place])]
    far, near = (fit["divergences"][name] for name in names)
    text = (
        f"its BatchNorm statistics diverge by {far:g} as {names[0]}, and by {near:g} as {names[1]}. Try"
        f" --arch {names[1]}"
    )
    return {"warnings": [*normalization.facts.get("warnings", ()), text]}


def _refuse_to_guess(path: Path, candidates: Sequence[Candidate], why: str) -> None:
    """Raise RbError where the candidates differ in a field that no convention decides."""
    if len(candidates) < 2 or candidates[0][0].get("space") != "repo":
        return
    names = " or ".join(f"--arch {disambiguate.label(arch)}" for arch, _ in candidates)
    raise RbError(
        f"The checkpoint {path} has the names and shapes of several networks, and {why}. Say which it is with"
        f" {names}, or name the data set that it was trained for with --dataset."
    )


def _architecture(
    checkpoint: Checkpoint, arch: Mapping[str, Any] | None, hints: NormalizationHints
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The whole architecture record (given, from metadata, or inferred from the weights), and facts."""
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
                    f"The checkpoint {checkpoint.path} holds the architecture {nb201.to_string(there)}, and"
                    f" it was to be loaded as {nb201.to_string(wanted)}. Leave out --arch, or choose another"
                    " file."
                )
        facts["arch_from"], fields = "given", dict(arch)
    elif isinstance(metadata_arch, Mapping) and "space" in metadata_arch:
        facts["arch_from"], fields = "metadata", _arch_in_metadata(metadata_arch, checkpoint)
    else:
        facts["arch_from"] = "weights"
        fields, more = _inferred_arch(checkpoint, of_file, hints)
        facts |= more
    return {**_sizes_in_weights(fields, checkpoint), **fields, **of_file}, facts


def _arch_in_metadata(arch: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
    """The architecture in the file's metadata, checked against its weights."""
    identity(arch, f"The architecture noted in the checkpoint {checkpoint.path}")
    for key, value in skeleton(checkpoint.state).items():
        if arch.get("space") == "nasbench201" and arch.get(key, value) != value:
            raise RbError(
                f"The checkpoint {checkpoint.path} notes an architecture with {key} {arch[key]}, and its"
                f" weights have {key} {value}. Say which network it is with --arch."
            )
    return json.loads(json.dumps(arch))  # NumPy's numbers become Python's


def _inferred_arch(
    checkpoint: Checkpoint, of_file: Mapping[str, Any], hints: NormalizationHints
) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        try:
            return infer(checkpoint.state, checkpoint.metadata).arch, {}
        except Ambiguous as several:
            normalised = _with_normalisation(checkpoint, several.candidates[0], of_file, hints)
            images = None if hints.images is None else hints.images()
            inferred, facts = disambiguate.choose_cell(normalised, several, images)
            return inferred.arch, facts
    except RbError as error:
        error.args = (f"{error} The file is {checkpoint.path}.",)
        raise


def _with_normalisation(
    checkpoint: Checkpoint, one: Inferred, of_file: Mapping[str, Any], hints: NormalizationHints
) -> Checkpoint:
    """The checkpoint with its normalisation: the file's, the given one, or the one that its statistics fit.

    The statistics of the first BatchNorm layer are the same for all cells.
    """
    shape = (one.in_channels, 32, 32)
    with meta_init():
        network = models.build(one.arch, classes=one.classes, shape=shape)
    load_into(network, checkpoint)
    normalization = normalising.choose_normalization(checkpoint, of_file, network, one.classes, shape, hints)
    pair = _normalize_of(checkpoint, {**of_file, **normalization.arch})
    if not isinstance(pair, list):
        return checkpoint
    mean, std = map(per_channel, pair)
    return replace(checkpoint, mean=mean, std=std)


def _sizes_in_weights(arch: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
    """The sizes of the weights, for an architecture that is given without them."""
    if arch.get("space") == "nasbench201":
        return dict(skeleton(checkpoint.state))
    if arch.get("space") in models.VARIANTS:
        return disambiguate.usual_fields(arch)
    if arch.get("space") in ("fcnn", "rescnn"):
        first = checkpoint.state.get("layers.0.weight")
        return {} if first is None or not first.ndim else {"width": len(first)}
    if arch.get("space") != "zoo" or arch.get("name") not in zoo.FORMS:
        return {}
    try:
        seen = infer(checkpoint.state, checkpoint.metadata).arch
    except RbError:
        return {}
    same = zoo.FORMS.get(str(seen.get("name"))) == zoo.FORMS[arch["name"]]
    return {key: seen[key] for key in ("stem", "pool", "patch", "side") if same and key in seen}


def _network(
    checkpoint: Checkpoint, arch: Mapping[str, Any], classes: int, shape: Shape, allow: bool
) -> tuple[nn.Module, Checkpoint]:
    """The network with its weights, and the checkpoint under the names of that network."""
    if arch.get("space") in WITHOUT_CONSTANTS:
        with meta_init():
            network = models.build(arch, classes=classes, shape=shape)
        load_into(network, checkpoint)
        if not any(buffer.is_meta for buffer in network.buffers()):
            return network, checkpoint
    with torch.random.fork_rng(devices=[]):  # such a network computes constants while it is built
        network = models.build(arch, classes=classes, shape=shape, allow_code=allow)
    if arch.get("space") not in WITHOUT_CONSTANTS:
        checkpoint = _as_saved(checkpoint, network)
    load_into(network, checkpoint)
    if arch.get("space") in models.RUNS_CODE:
        check_input.keep_images(network, shape)
    return network, checkpoint


def _as_saved(checkpoint: Checkpoint, network: nn.Module) -> Checkpoint:
    """The checkpoint under the names in the file, if the network has these names, or the module in a wrapper.

    A user's own network may itself contain names that look like a wrapper's prefix or a normaliser's buffers,
    and the file may have losses, metrics or another, smaller network beside it. Where nothing fits, the names
    that fit best, for the error.
    """
    names = {key for key in network.state_dict() if not key.endswith(OPTIONAL)}
    saved = {key: value for key, value in checkpoint.saved.items() if not key.endswith(OPTIONAL)}
    for inside in _wrappers(names):
        wanted = {key.removeprefix(inside) for key in names}
        last = min(wanted, default="")
        ends = [key.removesuffix(last) for key in saved if f".{key}".endswith(f".{last}")]
        fits = [one for one in ends if {k.removeprefix(one) for k in saved if k.startswith(one)} == wanted]
        if len(fits) > 1:
            fits = [one for one in fits if one == checkpoint.origin["prefix"]]
        for prefix in fits:
            rest = {key: value for key, value in saved.items() if not key.startswith(prefix)}
            others = sum(value.numel() for key, value in rest.items() if not unpack.is_beside(key))
            if others <= sum(saved[prefix + key].numel() for key in wanted):
                return _under(checkpoint, prefix, inside, rest)
    prefixes = {key[:end] for key in saved for end in range(len(key)) if not end or key[end - 1] == "."}
    at = {one: {key.removeprefix(one) for key in saved if key.startswith(one)} for one in prefixes}
    now = len(names & set(tensor_names.translation(checkpoint.state, dict.fromkeys(names)).values()))
    best = [
        (len({inside + key for key in keys} & names), prefix, inside)
        for inside in _wrappers(names)
        for prefix, keys in at.items()
    ]
    most, prefix, inside = max(best, key=lambda one: one[0], default=(0, "", ""))
    return _under(checkpoint, prefix, inside, {}) if now < most < len(names) else checkpoint


def _under(checkpoint: Checkpoint, prefix: str, inside: str, rest: dict[str, Tensor]) -> Checkpoint:
    """The checkpoint with the tensors of this prefix in the file, under another one; `rest` is left out."""
    state = {k.removeprefix(prefix): v for k, v in checkpoint.saved.items() if k.startswith(prefix)}
    origin, mean, std = {**checkpoint.origin, "prefix": prefix}, checkpoint.mean, checkpoint.std
    if mean is not None and (not rest or unpack.take_normalisation(dict(state), "", {})[0] is not None):
        mean, std, origin["normalisation"] = None, None, "inside the network"
    unpack.take_normalisation(rest, checkpoint.path, {})  # what is left of the rest is no part of it
    if beside := [key for key in rest if not key.startswith(unpack.COPIES)]:
        origin["left_out"] = counted(beside)
    state = {inside + key: value for key, value in state.items()}
    return replace(checkpoint, state=state, mean=mean, std=std, origin=origin, inside=inside)


def _wrappers(names: set[str]) -> Iterator[str]:
    """The prefixes that all names share: "", "module.", "module.net." ..."""
    inside = ""
    while True:
        yield inside
        words = {name.removeprefix(inside).partition(".")[0] for name in names}
        inside += f"{words.pop()}." if len(words) == 1 else " "
        if inside.endswith((" ", "..")) or not all(name.startswith(inside) for name in names):
            return


def _normalize_of(checkpoint: Checkpoint, arch: Mapping[str, Any]) -> list[list[float]] | str | None:
    """[mean, std] or PER_IMAGE from the file or the architecture record. Raises RbError where they differ."""
    given = arch.get("normalize")
    if checkpoint.mean is None or checkpoint.std is None:
        given = PER_IMAGE if given is None and noted_per_image(checkpoint) else given
        return None if given in (None, RAW) else given
    own = [checkpoint.mean.tolist(), checkpoint.std.tolist()]
    if given is not None and (isinstance(given, str) or not _are_equal(own, given)):
        mean, std = (",".join(f"{value:.4f}" for value in values) for values in own)
        raise RbError(
            f"The checkpoint {checkpoint.path} normalises images by itself (mean {mean}, std {std}), and is"
            " to be loaded with another normalisation. Leave out --normalize."
        )
    return own


def _are_equal(pair: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> bool:
    """Whether two normalisations are equal; either may have one number for all channels."""
    values = [(per_channel(a), per_channel(b)) for a, b in zip(pair, other, strict=True)]
    return all(
        (len(a) == len(b) or 1 in (len(a), len(b))) and bool((a - b).abs().max() < 1e-4) for a, b in values
    )


def _classes_and_channels(
    checkpoint: Checkpoint, classes: int | None, shape: tuple[int, int, int] | None
) -> tuple[int, int]:
    """The number of classes and of image channels, from the data set or else from the file."""
    n_classes: int | None
    channels: int | None
    try:
        seen = infer(checkpoint.state, checkpoint.metadata)
        n_classes, channels = seen.classes, seen.in_channels
    except Ambiguous as several:
        n_classes, channels = several.candidates[0].classes, several.candidates[0].in_channels
    except RbError:
        n_classes = recognise.classes_of(checkpoint.state)
        channels = recognise.in_channels_of(checkpoint.state)
    other_channels = channels if shape is not None and channels not in (None, shape[0]) else None
    if classes is not None and n_classes is not None and classes != n_classes:
        raise Misfit(
            f"The checkpoint {checkpoint.path} distinguishes {n_classes} classes and the data set has"
            f" {classes}. Name the data set that it was trained for with --dataset.",
            n_classes,
            other_channels,
        )
    if shape is not None and other_channels is not None:
        raise _of_other_channels(checkpoint.path, shape, other_channels)
    if classes is None and n_classes is None:
        raise RbError(
            f"The checkpoint {checkpoint.path} does not show its number of classes. Name a data set."
        )
    return classes or n_classes or 0, channels or (3 if shape is None else shape[0])


def _of_other_channels(path: Path, shape: Shape, channels: int) -> Misfit:
    return Misfit(
        f"The checkpoint {path} takes images with {channels} channels and the data set's have"
        f" {shape[0]}. Name the data set that it was trained for with --dataset.",
        channels=channels,
    )


def _check_own(path: Path, network: nn.Module, classes: int | None, shape: Shape) -> None:
    """Raise Misfit for a user's network that takes grey images and fails on RGB ones, or the reverse, and for
    one with another number of logits than the data set has classes."""
    other, output = {1: 3, 3: 1}.get(shape[0]), _output(network, shape)
    if output is None and other and _output(network, (other, *shape[1:])) is not None:
        raise _of_other_channels(path, shape, other)
    if isinstance(output, Tensor) and output.dim() == 2 and len(output) == 2 and classes:
        logits = output.shape[1]
        if logits not in (1, classes):
            raise Misfit(
                f"The network of {path} gives {logits} logits, and the data set has {classes} classes (its"
                " highest label, where nothing else says it: are the labels from 1?).",
                logits,
            )


def _output(network: nn.Module, shape: Shape) -> Any:
    """What a network gives for two black images; None where its code raises."""
    output = None
    with optional(), torch.random.fork_rng(devices=[]), torch.no_grad():
        output = (deepcopy(network).eval() if network.training else network)(torch.zeros(2, *shape))
    return output


def _program(
    path: Path,
    kind: str,
    arch: Mapping[str, Any] | None,
    classes: int | None,
    shape: tuple[int, int, int] | None,
    hints: NormalizationHints | None,
) -> tuple[nn.Module, dict[str, Any], dict[str, Any]]:
    if shape is None:
        raise RbError(f"The program {path} does not show which images it takes. Name a data set.")
    program = programs.load(path, kind)
    _check_own(path, program, None, shape)
    check_input.keep_images(program, shape)
    n_classes = programs.classes_of(program, shape, path)
    if classes is not None and classes != n_classes:
        raise Misfit(
            f"The program {path} gives {n_classes} logits and the data set has {classes} classes."
            " Name the data set that it was trained for with --dataset.",
            n_classes,
        )
    if arch and "normalize" in arch:
        fields = {"normalize": arch["normalize"]}
        normalization = ChosenNormalization(fields, {"normalize_from": "given"})
    else:
        normalization = normalising.of_program(program, path, hints or NormalizationHints())
    normalize = normalization.arch.get("normalize")
    normalize = None if normalize == RAW else normalize
    facts = {"format": kind, "classes": n_classes, "shape": list(shape), "arch_from": "program"}
    facts |= {**normalization.facts, "normalize": normalize}
    whole = {"space": "checkpoint", "name": kind, **normalization.arch}
    return behind(program, normalize).eval(), whole, facts


def to_bytes(
    network: nn.Module,
    metadata: Mapping[str, Any],
    mean: Sequence[float] | Tensor | None = None,
    std: Sequence[float] | Tensor | None = None,
) -> bytes:
    """A safetensors file: the bare network's tensors, `normalize.mean` and `.std`, `metadata` as JSON.

    A `Normalized` network gives its own mean and std. Equal weights and metadata give equal bytes,
    wherever the weights lie and in whatever memory format.
    """
    from safetensors.torch import save

    network = getattr(network, "_orig_mod", network)  # unwrap torch.compile's wrapper
    if isinstance(network, Normalized):
        mean, std = network.mean, network.std
    if isinstance(network, PerImageStandardization):
        metadata = {**metadata, "normalize": PER_IMAGE}
    if isinstance(network, Preprocessed):
        network = network.network
    tensors = dict(network.state_dict())
    if mean is not None and std is not None:
        tensors |= {"normalize.mean": per_channel(mean), "normalize.std": per_channel(std)}
    plain = {
        # Cloned, because safetensors refuses tensors that share memory or are channels-last.
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    # One key: the writer orders several ones differently from run to run.
    text = json.dumps(dict(metadata), sort_keys=True, allow_nan=False, separators=(",", ":"))
    return save(plain, {weights_file.METADATA_KEY: text})
