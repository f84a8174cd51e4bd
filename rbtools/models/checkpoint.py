"""Checkpoints: reading what others saved, recognising it, loading it strictly; writing our own.

Nothing here runs code from a file, unless the caller says that it may.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rbtools import models
from rbtools.errors import RbError
from rbtools.models import programs, recognise, settle, statistics, weights_file
from rbtools.models.families.base import Ambiguous, Inferred
from rbtools.models.fit import load_into
from rbtools.models.hollow import hollow
from rbtools.models.normalize import Normalized, per_channel
from rbtools.models.reading import Checkpoint, read
from rbtools.models.recognise import infer
from rbtools.spaces import nasbench201 as nb201
from rbtools.spaces import zoo

__all__ = ["OPEN", "RAW", "Checkpoint", "Inferred", "infer", "load", "load_into", "read", "to_bytes"]

RAW = "none"  # an architecture's `normalize` where the network takes pixels as they are
OPEN = "open"  # a normalisation that nothing tells

# Spaces whose networks hold no number that is made while they are built, apart from parameters.
FILLED_WHOLE = ("nasbench201", "zoo", "torchvision")
NOT_OF_THE_NETWORK = ("member", "normalize")  # fields of an architecture that say how to read the file


def load(
    path: str | Path,
    arch: Mapping[str, Any] | None = None,
    *,
    classes: int | None = None,
    shape: tuple[int, int, int] | None = None,
    images: Callable[[], Tensor] | None = None,
    known: Mapping[str, statistics.Pair | None] | None = None,
    allow_code: bool = False,
) -> tuple[nn.Module, dict[str, Any], dict[str, Any]]:
    """Read a file, tell or take its architecture, build the network and load the weights.

    Returns (model, arch, facts): the model in eval mode on the CPU, with normalisation as its first
    layer where there is one; `arch` the whole architecture record; `facts` what was found and where from,
    plain values for the record. Fields of `arch` that belong to the file: `member` (see `read`) and
    `normalize` ([mean, std], or "none") for a file that does not hold its normalisation.

    `classes` and `shape` (C, H, W) are the data set's, and have to agree with the file. What names and
    shapes leave open (cells without weights; with `known` normalisations, the right one) is settled by
    BatchNorm's statistics on `images()` (N, C, H, W) in [0, 1], or on synthetic ones. `allow_code` lets
    programs (TorchScript, torch.export) and the user's own functions run. Raises RbError where anything
    does not fit, `Ambiguous` where several networks do. The global random state stays as it is.
    """
    path = Path(path)
    kind = programs.kind(path) if path.is_file() else None
    if kind is not None:
        if not allow_code:
            raise programs.refusal(path, kind)
        return _program(path, kind, arch, classes, shape)
    checkpoint = read(path, (arch or {}).get("member"))
    arch, facts = _architecture(checkpoint, arch, images)
    classes, shape = _agreed(checkpoint, arch, classes, shape)
    network = _network(checkpoint, arch, classes, shape, allow_code)
    facts["normalize_from"] = _source_of_normalisation(checkpoint, arch)
    if facts["normalize_from"] == OPEN and known is not None:
        seen = statistics.synthetic(shape) if images is None else images()[: statistics.MANY]
        fitting = statistics.normalisation(network, seen, known)
        if fitting is not None:
            pair = known[fitting.name]
            arch["normalize"] = RAW if pair is None else [list(values) for values in pair]
            facts |= {"normalize_from": "BatchNorm statistics", "normalize_name": fitting.name}
            facts["normalize_divergences"] = fitting.divergences
    normalize = _normalize_of(checkpoint, arch)
    model = network if normalize is None else Normalized(network, *normalize)
    facts |= {"classes": classes, "shape": list(shape), "normalize": normalize}
    return model.eval(), arch, facts


def _source_of_normalisation(checkpoint: Checkpoint, arch: Mapping[str, Any]) -> str:
    """Who says it; a file of our own says it by having none."""
    noted = checkpoint.metadata.get("arch")
    if checkpoint.mean is not None or (isinstance(noted, Mapping) and "space" in noted):
        return "checkpoint"
    return "given" if "normalize" in arch else OPEN


def _architecture(
    checkpoint: Checkpoint, arch: Mapping[str, Any] | None, images: Callable[[], Tensor] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The whole architecture record and where it comes from: given, noted in the file, or its weights."""
    facts: dict[str, Any] = dict(checkpoint.found)
    noted = checkpoint.metadata.get("arch")
    of_file = {key: arch[key] for key in NOT_OF_THE_NETWORK if arch and key in arch}
    if arch and "space" in arch:
        _refuse_other_cell(arch, noted, checkpoint.path)
        facts["arch_from"], told = "given", dict(arch)
    elif isinstance(noted, Mapping) and "space" in noted:
        facts["arch_from"], told = "metadata", dict(noted)
    else:
        facts["arch_from"] = "weights"
        told, more = _told(checkpoint, images)
        facts |= more
    return {**_shown(told, checkpoint), **told, **of_file}, facts


def _told(
    checkpoint: Checkpoint, images: Callable[[], Tensor] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        try:
            return infer(checkpoint.state, checkpoint.metadata).arch, {}
        except Ambiguous as several:
            found, facts = settle.cell(checkpoint, several, images and images())
            return found.arch, facts
    except RbError as error:
        error.args = (f"{error} The file is {checkpoint.path}.",)
        raise


def _shown(arch: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
    """The sizes that the weights show, for an architecture that was named without them."""
    if arch.get("space") == "nasbench201":
        return dict(recognise.skeleton(checkpoint.state))
    if arch.get("space") != "zoo" or arch.get("name") not in zoo.FORMS:
        return {}
    try:
        seen = infer(checkpoint.state, checkpoint.metadata).arch
    except RbError:
        return {}
    same = zoo.FORMS.get(str(seen.get("name"))) == zoo.FORMS[arch["name"]]
    return {key: seen[key] for key in ("stem", "patch", "side") if same and key in seen}


def _refuse_other_cell(arch: Mapping[str, Any], noted: Any, path: Path) -> None:
    """Raise where the file notes another cell: strict loading cannot see none, skip and pooling."""
    if not isinstance(noted, Mapping) or {arch.get("space"), noted.get("space")} != {"nasbench201"}:
        return
    wanted, there = nb201.ops_of(arch), nb201.ops_of(noted)
    if wanted != there:
        raise RbError(
            f"The checkpoint {path} holds the architecture {nb201.to_string(there)}, and it was to be"
            f" loaded as {nb201.to_string(wanted)}. Leave out --arch, or choose another file."
        )


def _network(
    checkpoint: Checkpoint, arch: Mapping[str, Any], classes: int, shape: tuple[int, int, int], allow: bool
) -> nn.Module:
    if arch.get("space") in FILLED_WHOLE:
        with hollow():
            network = models.build(arch, classes=classes, shape=shape)
    else:
        with torch.random.fork_rng(devices=[]):
            network = models.build(arch, classes=classes, shape=shape, allow_code=allow)
    load_into(network, checkpoint)
    return network


def _normalize_of(checkpoint: Checkpoint, arch: Mapping[str, Any]) -> list[list[float]] | None:
    """[mean, std] from the file or the architecture record; both only where they are the same."""
    given = arch.get("normalize")
    if checkpoint.mean is None or checkpoint.std is None:
        return None if given in (None, RAW) else given
    own = [checkpoint.mean.tolist(), checkpoint.std.tolist()]
    if given is not None and (given == RAW or not _same(own, given)):
        raise RbError(
            f"The checkpoint {checkpoint.path} normalises images by itself (mean {_short(own[0])}, std"
            f" {_short(own[1])}), and is to be loaded with another normalisation. Leave out --normalize."
        )
    return own


def _same(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> bool:
    return all(
        bool((per_channel(a) - per_channel(b)).abs().max() < 1e-4) for a, b in zip(one, other, strict=True)
    )


def _short(values: Sequence[float]) -> str:
    return ",".join(f"{value:.4f}" for value in values)


def _agreed(
    checkpoint: Checkpoint,
    arch: Mapping[str, Any],
    classes: int | None,
    shape: tuple[int, int, int] | None,
) -> tuple[int, tuple[int, int, int]]:
    """The number of classes and the image shape, from the data set or else from the file."""
    there, channels = _ends(checkpoint)
    if classes is not None and there is not None and classes != there:
        raise RbError(
            f"The checkpoint {checkpoint.path} tells {there} classes apart and the data set has {classes}."
            " Choose the data set that it was trained for."
        )
    if shape is not None and channels is not None and shape[0] != channels:
        raise RbError(
            f"The checkpoint {checkpoint.path} takes images with {channels} channels and the data set's have"
            f" {shape[0]}. Choose the data set that it was trained for."
        )
    if classes is None and there is None:
        raise RbError(
            f"The checkpoint {checkpoint.path} does not show its number of classes. Name a data set."
        )
    side = 224 if arch.get("stem") == "imagenet" or arch.get("space") in ("torchvision", "timm") else 32
    return classes or there or 0, shape or (channels or 3, side, side)


def _ends(checkpoint: Checkpoint) -> tuple[int | None, int | None]:
    try:
        seen = infer(checkpoint.state, checkpoint.metadata)
    except Ambiguous as several:
        seen = several.candidates[0]
    except RbError:
        return recognise.classes_of(checkpoint.state), recognise.in_channels_of(checkpoint.state)
    return seen.classes, seen.in_channels


def _program(
    path: Path,
    kind: str,
    arch: Mapping[str, Any] | None,
    classes: int | None,
    shape: tuple[int, int, int] | None,
) -> tuple[nn.Module, dict[str, Any], dict[str, Any]]:
    if shape is None:
        raise RbError(f"The program {path} does not show which images it takes. Name a data set.")
    program = programs.load(path, kind)
    there = programs.classes_of(program, shape, path)
    if classes is not None and classes != there:
        raise RbError(
            f"The program {path} gives {there} logits and the data set has {classes} classes."
            " Choose the data set that it was trained for."
        )
    normalize = (arch or {}).get("normalize")
    facts = {"format": kind, "classes": there, "shape": list(shape), "arch_from": "program"}
    facts |= {"normalize_from": OPEN if normalize is None else "given"}
    facts |= {"normalize": None if normalize == RAW else normalize}
    whole = {"space": "checkpoint", "name": kind} | ({} if normalize is None else {"normalize": normalize})
    if normalize in (None, RAW):
        return program, whole, facts
    return Normalized(program, *normalize).eval(), whole, facts


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

    network = getattr(network, "_orig_mod", network)  # torch.compile's wrapper
    if isinstance(network, Normalized):
        mean, std, network = network.mean, network.std, network.network
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
