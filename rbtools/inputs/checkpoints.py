"""Recognises a user's checkpoint file, determines its normalisation, and creates a record for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from rbtools import datasets, spaces
from rbtools.datasets.base import channels_of
from rbtools.datasets.normalization import CLASSES
from rbtools.datasets.tree import some
from rbtools.errors import Misfit, RbError
from rbtools.execution.run import Run
from rbtools.inputs import published_weights, queried, resolve
from rbtools.inputs.data import Data, data_of, of_data
from rbtools.inputs.named_networks import LEADERBOARDS, named_arch, normalization, numbers
from rbtools.records import SCHEMA
from rbtools.spaces.identity import identity
from rbtools.store import canonical, digest

if TYPE_CHECKING:
    from torch import Tensor


VERSION = 5
ENCODED = ("imagefolder", "parquet")  # data sets of encoded pictures: grey or rgb can be requested
TRIED, BATCH = 256, 64  # maximum number of images on which networks or normalisations are tried
# The origin of the architecture, in words.
SOURCES = {
    **{"given": "as given", "weights": "recognised from its weights", "metadata": "as its metadata names it"},
    "program": "a program",
}
Pairs = dict[str, tuple[tuple[float, ...], tuple[float, ...]] | str | None]


@dataclass(frozen=True)
class CheckpointHints:
    """The values of the options --arch and --normalize, as the user typed them."""

    arch: str | None = None
    normalize: str | None = None

    def given(self, run: Run) -> dict[str, Any]:
        """The options as fields of an architecture, with `space` only if --arch is given. Raises RbError."""
        classes = _classes_of(run) if self.leaderboard else None
        fields = {} if self.arch is None else named_arch(self.arch, classes)
        if self.normalize is not None:
            fields["normalize"] = normalization(self.normalize)
        if run.selection.member is not None:
            fields["member"] = run.selection.member
        return fields

    @property
    def leaderboard(self) -> dict[str, str]:
        """The record's field with the leaderboard entry that `--arch LEADERBOARD:NAME` names, or {}."""
        board, _, name = str(self.arch).partition(":")
        return {"leaderboard": name} if name and board in LEADERBOARDS else {}


def record_of(path: str, hints: CheckpointHints, run: Run, *, with_data: bool = True) -> dict[str, Any]:
    """Create a record for a checkpoint file. The architecture is the value of `--arch`, or is recognised.

    Without data, fields that depend on the images of a data set are left out. Raises RbError if the file is
    not a checkpoint, if its architecture is not recognised, or if the network does not fit the data.
    """
    given = hints.given(run)
    source = {}
    if published_weights.is_name(path):
        path, arch, name = published_weights.find(path, run)
        given, source = {**arch, **given}, {"weights": name}
    elif hints.arch is None:
        given = {**published_weights.beside(path), **given}
    about = {"arch": given, "checkpoint_file": path}
    data = data_of(about, run) if with_data else None
    name = resolve.hash_of(path, run)
    while True:  # the channels are fitted first and then the classes, or the reverse
        try:
            arch, facts = _recognised(path, name, given, data, run)
            break
        except Misfit as misfit:
            data, run = _fitting(misfit, data, about, run)
            about["recognised"] = {"classes": data.about.classes}
    if hints.normalize is not None and facts["normalize_from"] == "given":
        facts["normalize_from"] = "--normalize"
    _say(path, arch, facts, run)
    _warn(path, facts, run)
    shape = facts["shape"] if data is None else data.about.shape
    return {
        "schema": SCHEMA,
        "arch": spaces.describe(arch, facts["classes"], shape),
        **({} if data is None else of_data(data)),
        "checkpoint": name,
        "checkpoint_file": path,
        "recognised": {**source, **facts},
        **hints.leaderboard,
    }


def _fitting(misfit: Misfit, data: Data | None, about: dict[str, Any], run: Run) -> tuple[Data, Run]:
    """Data with the number of classes and channels that the network has, and a run that names these data.
    Raises `misfit` if there are no such data."""
    if data is None:
        raise misfit
    kind, _, argument = data.name.partition(":")
    word = {1: "grey", 3: "rgb"}.get(misfit.channels or 0)
    if word and kind in ENCODED and channels_of(argument)[1] is None:
        run.report.notify(f"The network takes {misfit.channels} channels, so {data.name}:{word} is used.")
        run = run.changed(dataset=f"{data.name}:{word}")
    found = data_of({**about, "recognised": {"classes": misfit.classes}} if misfit.classes else about, run)
    if found.fingerprint == data.fingerprint:
        if (misfit.classes or 0) <= data.about.classes:
            raise misfit
        raise RbError(
            f"{misfit} If the data set has only some of the network's {misfit.classes} classes, give the"
            f" number of each class ({some(data.about.class_names)}) in the network with --classes."
        )
    return found, run


class OtherCheckpoint(RbError):
    """Raised for a file that is not the checkpoint of the record."""


def with_file(
    record: dict[str, Any], path: str, run: Run, hints: CheckpointHints | None = None
) -> dict[str, Any]:
    """The record with the path of the file that contains its weights.

    A record without a checkpoint, such as a row of a leaderboard, gets the network in the file, as `hints`
    describes it. Raises OtherCheckpoint if the file is not the record's checkpoint, and RbError if the file
    cannot be read or recognised.
    """
    name, arch = record.get("checkpoint"), record["arch"]
    if name is None:
        at = run.changed(dataset=run.selection.dataset or record.get("dataset"))
        made = record_of(path, hints or CheckpointHints(), at)
        there, key = made["arch"], "class" if "class" in arch else "name"
        if arch.get("space") == there.get("space") and arch.get(key) != there.get(key):
            raise OtherCheckpoint(
                f"another network: {path} is {there.get('name')}, but the record's is {arch.get('name')}"
            )
        return {**record, **made}
    file = published_weights.find(path, run)[0] if published_weights.is_name(path) else path
    if (here := resolve.hash_of(file, run)) != name:
        raise OtherCheckpoint(
            f"another checkpoint: {path} is {here[:19]}..., but the record's is {str(name)[:19]}..."
        )
    recognised = record.get("recognised") if "checkpoint_file" in record else {"normalize_from": "checkpoint"}
    return {**record, "checkpoint_file": file, "recognised": recognised}


def resolve_inputs(record: dict[str, Any], run: Run, split: str | None = None) -> resolve.Inputs:
    """The record and one split of its data. Raises RbError if the model or the data are not usable."""
    record = _with_twin(prepared(record, run), run)
    with run.report.clock.stage("data"):
        inputs = resolve.Inputs(record, data_of(record, run, split), run)
    if queried.only_answers(record):
        queried.check(record, run, inputs.data)
    return inputs


def _with_twin(record: dict[str, Any], run: Run) -> dict[str, Any]:
    """The record with the checkpoint that gives attacks their gradients, if the run names one."""
    if (file := run.selection.gradients_from) is None:
        return record
    from rbtools.models import programs

    # The twin of a graph takes the same pixels.
    given, normalize = record["arch"].get("normalize"), None
    if given is not None and programs.format_of_file(Path(file), run.selection.allow_code) is not None:
        normalize = given if isinstance(given, str) else " ".join(map(numbers, given))
    hints = CheckpointHints(normalize=normalize)
    twin = record_of(file, hints, run.changed(gradients_from=None, member=None))
    kept = ("arch", "checkpoint", "checkpoint_file", "recognised")
    return {**record, "gradients": {key: twin[key] for key in kept}}


def prepared(record: dict[str, Any], run: Run) -> dict[str, Any]:
    """The record with its published weights, or with the fields that only the images of its data set
    determine, such as the normalisation of a user's file. Raises RbError."""
    published = None if run.selection.weights is None else published_weights.found(record, run)
    if published is not None:
        if published.member is not None:
            record = {**record, "arch": {**record["arch"], "member": published.member}}
        file = {"checkpoint": resolve.hash_of(published.path, run), "checkpoint_file": published.path}
        record = {**record, **file}
    elif not _is_open(record):
        return record
    identity(record["arch"])  # this raises RbError for an invalid architecture
    data, path = data_of(record, run), record["checkpoint_file"]
    name = resolve.checkpoint_name(record, run)
    recognised = record.get("recognised")
    recognised = recognised if isinstance(recognised, dict) else {}
    unchecked = recognised.get("unchecked")
    open_fields = unchecked if isinstance(unchecked, list) else []
    given = {key: value for key, value in record["arch"].items() if key not in open_fields}
    arch, facts = _recognised(path, name, given, data, run)
    facts["arch_from"] = recognised.get("arch_from", "given")
    if "normalize" in given and "normalize_from" in recognised:
        facts["normalize_from"] = recognised["normalize_from"]
    if "tried" in facts:
        _say(path, arch, facts, run)
    _warn(path, facts, run)
    return {
        **record,
        "arch": spaces.describe(arch, data.about.classes, data.about.shape),
        "recognised": facts,
    }


def _is_open(record: dict[str, Any]) -> bool:
    """True if the record describes a user's file with fields that depend on the images of a data set."""
    file, arch, facts = (record.get(key) for key in ("checkpoint_file", "arch", "recognised"))
    if not (isinstance(file, str) and isinstance(arch, dict) and isinstance(arch.get("space"), str)):
        return False
    facts = facts if isinstance(facts, dict) else {}
    no_normalisation = "normalize" not in arch and facts.get("normalize_from", "open") == "open"
    return os.path.isfile(file) and ("unchecked" in facts or no_normalisation)


def _recognised(
    path: str, name: str, given: Mapping[str, Any], data: Data | None, run: Run
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The complete architecture of a file, and facts about its origin. Both are cached in the store."""
    about = None if data is None else data.about
    key_fields = {"kind": "recognised", "version": VERSION, "file": name, "given": dict(given)}
    if data is not None and about is not None:
        key_fields |= {"data": data.fingerprint, "split": data.split, "classes": about.classes}
        key_fields |= {"shape": about.shape, "normalize": [about.mean, about.std]}
    if (preset := run.selection.normalize) is not None:
        key_fields["preset"] = preset
    stored = run.store.get(f"recognised:{digest(key_fields)}")
    if stored is None:
        from rbtools.models import checkpoint

        _, arch, facts = checkpoint.load(
            path,
            given,
            classes=None if about is None else about.classes,
            shape=None if about is None else about.shape,
            hints=checkpoint.NormalizationHints(
                normalizations(data), CLASSES, None if data is None else lambda: _batches(data), preset
            ),
            allow_code=run.selection.allow_code,
        )
        stored = canonical({"arch": arch, "facts": facts}).decode()
        run.store.put(f"recognised:{digest(key_fields)}", stored)
    result = orjson.loads(stored)
    arch = result["arch"]
    # put these fields first, for readers
    first = {key: arch[key] for key in ("space", "name") if key in arch}
    return {**first, **arch}, result["facts"]


def _batches(data: Data) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of the first images in the order of evaluations, with pixels in [0, 1], and their labels."""
    dataset = data.load()
    for ids in data.order(dataset.labels)[:TRIED].split(BATCH):
        yield dataset.images[ids].float().div(255), dataset.labels[ids]


def normalizations(data: Data | None) -> Pairs:
    """The known normalisations, the most likely first; None means unchanged pixels."""
    pairs: Pairs = {}
    if data is not None and data.about.mean is not None and data.about.std is not None:
        pairs["dataset"] = (data.about.mean, data.about.std)
    channels = 3 if data is None else data.about.shape[0]
    pairs["none"] = None
    for name, pair in datasets.NORMALIZATIONS.items():
        if len(pair.mean) == channels or name not in CLASSES:
            pairs[name] = (pair.mean, pair.std)
    return {**pairs, "per-image": "per-image"}


def _classes_of(run: Run) -> int | None:
    """The number of classes of `--dataset`, which selects among a leaderboard's entries for one network."""
    if run.selection.dataset is None:
        return None
    return datasets.describe(
        run.selection.dataset, run.selection.data_dir, allow_code=run.selection.allow_code
    ).classes


# --- messages about the facts that were recognised ------------------------------------------------------


def left_open(record: Mapping[str, Any]) -> str | None:
    """The fields of a user's file that depend on the images of a data set, as a string, or None."""
    known, arch = record.get("recognised"), record.get("arch")
    facts = known if isinstance(known, dict) else {}
    unchecked = facts.get("unchecked")
    fields = [str(field) for field in unchecked] if isinstance(unchecked, list) else []
    if isinstance(arch, dict) and "normalize" not in arch and facts.get("normalize_from", "open") == "open":
        fields.append("normalize")
    return " and ".join({"normalize": "normalisation"}.get(field, field) for field in fields) or None


def _say(path: str, arch: Mapping[str, Any], facts: Mapping[str, Any], run: Run) -> None:
    """Report in one line which properties of the file were inferred."""
    shown = ("channels", "cells", "stem", "shortcut", "activation", "eps", "member")
    of = ", ".join(f"{key} {arch[key]}" for key in shown if key in arch)
    space, name = arch["space"], str(arch.get("name") or arch.get("str"))
    name = name if space in ("zoo", "nasbench201") else f"{space}:{name}"
    by = SOURCES.get(facts["arch_from"], f"by {facts['arch_from']}")
    source = facts["normalize_from"]
    why = "to be chosen by accuracy on --dataset, or given by --normalize"
    if source != "open":
        why = f"from {source}"
    if source.startswith("guess: "):
        why = f"a guess: {source.removeprefix('guess: ')}; check it, or add --normalize"
    file, normalised = os.path.basename(path), "pixels as they are"
    if facts["normalize"] is not None:
        per_image = isinstance(facts["normalize"], str)
        values = "" if per_image else " ".join(map(numbers, facts["normalize"]))
        normalised = "each image normalised by itself" if per_image else f"normalised {values}"
    answers = f"; returns {facts['answers']}" if "answers" in facts else ""
    run.report.notify(
        f"{file} is {name}{f' ({of})' if of else ''}, {by}; {facts['classes']} classes;"
        f" {normalised} ({why}){answers}.{_tried(facts)}"
    )
    if facts.get("others") and "member" not in arch:
        run.report.notify(
            f"{file} contains several sets of weights: {facts['nesting'][-1]} is used; the others are"
            f" {', '.join(facts['others'])}. Choose with --member."
        )


def _warn(path: str, facts: Mapping[str, Any], run: Run) -> None:
    """Report the problems of the file."""
    for text in facts.get("warnings", ()):
        run.report.notify(f"warning: {os.path.basename(path)}: {text}.")


def _tried(facts: Mapping[str, Any]) -> str:
    tried = facts.get("tried")
    if tried is None:
        return " Its variant is chosen by accuracy on --dataset." if "unchecked" in facts else ""
    each = sorted(tried["acc"].items(), key=lambda item: -item[1])  # the store sorts by name
    listed = ", ".join(f"{accuracy:.4f} with {options}" for options, accuracy in each)
    return f" Accuracy on {tried['images']} images: {listed}."
