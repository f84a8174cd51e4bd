"""Trains one record's architecture with a method: from the store, or epoch by epoch."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools import datasets, registry, spaces
from rbtools.errors import RbError
from rbtools.execution import cores, device, precision, resources
from rbtools.execution.engine import JobFunction
from rbtools.execution.once import once
from rbtools.execution.run import Run
from rbtools.inputs import resolve
from rbtools.inputs.data import Data, data_of, of_data
from rbtools.lazy import torch
from rbtools.records import results, trained
from rbtools.report import discard
from rbtools.rng import GENERATOR
from rbtools.spaces.identity import identity
from rbtools.store import digest
from rbtools.trainer import distributed, presets, tracking
from rbtools.trainer.recipe import Recipe, check, check_method

if TYPE_CHECKING:
    from rbtools.training.base import Method


VERSION = 2


class TrainingTask(NamedTuple):
    """One training: the record (and the input record), its training data, the method, the recipe."""

    record: dict[str, Any]
    former: dict[str, Any]
    data: Data
    method: Any
    recipe: Recipe
    precision: str
    prepare: bool = True
    track: tracking.Tracking | None = None

    @property
    def arch(self) -> dict[str, Any]:
        """The record's architecture."""
        arch: dict[str, Any] = self.record["arch"]
        return arch

    @property
    def name(self) -> str:
        """The architecture's name, for messages."""
        return str(self.arch.get("name", "The network"))


@dataclasses.dataclass(frozen=True)
class TrainJob(JobFunction):
    """Train the record's architecture with one method and seed."""

    method: Any
    recipe: Recipe
    seed: int

    def reads(self, run: Run) -> tuple[str, ...]:
        return ("train",)

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        return train(record, self.method, self.recipe, run.changed(seed=self.seed))


def train(record: dict[str, Any], method: Method, recipe: Recipe, run: Run) -> dict[str, Any]:
    """Return the record with a trained checkpoint, its history and `seconds_per_epoch`.

    Results of its old weights are dropped. Raises RbError if the recipe cannot work, the architecture cannot
    be built, or the loss diverges.
    """
    with run.report.clock.stage("data"):
        data = data_of(record, run, "train")
    method, recipe = presets.on_data(method, recipe, data.about)
    check(recipe, data.size)
    check_method(recipe, method)
    former = record
    # Drop the fields of an architecture that describe a weights file.
    arch = {key: value for key, value in record["arch"].items() if key not in ("member", "normalize")}
    record = {**record, "arch": spaces.describe(arch, data.about.classes, data.about.shape)}
    data, recipe = settled(data, method, recipe)
    arithmetic = precision.of_training(run, data.about.shape)
    start = _start(former, recipe, run)
    along = tracking.wanted(recipe, former, run)
    what = {
        "kind": "training",
        "version": VERSION,
        "arch": identity(record["arch"]),
        "data": data.fingerprint,
        "normalize": [data.about.mean, data.about.std],  # the key has the data set's name, not its content
        "method": {"name": method.name, "version": method.version, "config": registry.config(method)},
        "recipe": recipe.config(),
        "seed": run.settings.seed,
        "draws": GENERATOR,
        "precision": arithmetic,
        **({} if start is None else {"init": start}),
        **_stopping(recipe, along),
        **({"prepared": precision.PREPARED} if run.settings.prepare and method.inner else {}),
        **({"processes": distributed.count()} if distributed.count() > 1 else {}),
        # An earlier version joined the last two images into one batch.
        **({"batches": "single"} if 1 in (recipe.batch_size, recipe.micro_batch) else {}),
    }
    kept = _TrainingCache(run, what, along, recipe, resolve.names({"arch": record["arch"]}, data))
    title = str(what["method"]["name"])

    def fit() -> dict[str, Any]:
        run.store.check_writable()
        if kept.lacks_weights:
            run.report.notify(
                "the store has this training without the weights that are asked for: it is done again."
            )
        task = TrainingTask(record, former, data, method, recipe, arithmetic, run.settings.prepare, along)
        done = kept.keep(_fit(task, run, kept.own))
        run.store.drop_state(kept.own)
        return done

    done = once(run, kept.own, kept.look, fit, title=title, unit="training")
    return _trained(record, data, what, done, recipe, run.command)


def _stopping(recipe: Recipe, along: tracking.Tracking | None) -> dict[str, Any]:
    """What a training with --stop-on depends on, for the key: the measurements of that name."""
    if recipe.stop_on is None or along is None:
        return {}
    return {"stop": dataclasses.replace(along, names=(recipe.stop_on,), test=None).fields()}


class _TrainingCache:
    """A finished training in the store; its tracking history is a separate result.

    The key of a training does not include tracking, so that an untracked one finds the weights of a tracked
    one. A tracked one is found only if its history is stored too: weights of earlier epochs are not kept, so
    it is trained again for the history, and ends with the same weights.
    """

    def __init__(
        self,
        run: Run,
        what: dict[str, Any],
        along: tracking.Tracking | None,
        recipe: Recipe,
        names: dict[str, Any],
    ) -> None:
        self.store, self.what, self.recipe, self.names = run.store, what, recipe, names
        self.lacks_weights = False
        self.key = digest(what)
        self.along = None if along is None else along.key_fields(self.key)
        self.own = self.key if self.along is None else digest(self.along)

    def look(self) -> dict[str, Any] | None:
        """The stored result, if it is complete, or None."""
        plain = self.store.result(self.key)
        # a store of other people may contain anything
        if not isinstance(plain, dict) or "checkpoint" not in plain:
            plain = None
        if plain is None:
            return None
        self.lacks_weights = not all(map(self.store.has_object, self.recipe.stored(plain)))
        if self.lacks_weights:
            return None
        if self.along is None:
            return dict(plain)
        more = self.store.result(self.own)
        # On a GPU another training of this key may have ended with other weights.
        return None if more is None or more["checkpoint"] != plain["checkpoint"] else _joined(plain, more)

    def keep(self, done: dict[str, Any]) -> dict[str, Any]:
        """Store the result of a training, in its two parts."""
        plain = {name: value for name, value in done.items() if name not in ("tracked", "tracking")}
        self.store.keep_result(self.key, self.what, plain, self.names)
        if self.along is None:
            return plain
        more = {name: done[name] for name in ("checkpoint", "tracked", "tracking")}
        self.store.keep_result(self.own, self.along, more, self.names)
        return _joined(plain, more)


def _joined(plain: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return {**plain, "history": {**plain["history"], **more["tracked"]}, "tracking": more["tracking"]}


def settled(data: Any, method: Method, recipe: Recipe) -> tuple[Any, Recipe]:
    """Data and recipe with the defaults that depend on the data set or the method."""
    if recipe.normalize is not None:
        mean, std = (
            (None, None) if recipe.normalize == "none" else _pair(recipe.normalize, data.about.shape[0])
        )
        data = dataclasses.replace(data, about=dataclasses.replace(data.about, mean=mean, std=std))
    side = min(data.about.shape[1:])
    changes: dict[str, Any] = {}
    if recipe.augment is None:
        changes["augment"] = data.about.augment
    if "awp" in recipe.regularize and recipe.awp_gamma is None:
        changes["awp_gamma"] = 0.005 if method.name == "trades" else 0.01
    if "cutout" in recipe.regularize:
        changes["cutout_length"] = recipe.cutout_length or max(round(side * 14 / 32), 1)
        if changes["cutout_length"] > side:
            raise RbError(
                f"--cutout-length is {recipe.cutout_length}, and the images have {side} pixels"
                " a side."
                f" Expected at most {side}."
            )
    return data, dataclasses.replace(recipe, **changes)


def _pair(
    normalize: str | Sequence[Sequence[float]], channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, from a name or from one or more numbers each."""
    if isinstance(normalize, str):
        normalize = datasets.NORMALIZATIONS[normalize]
    mean, std = (tuple(map(float, values)) for values in normalize)
    if len(mean) not in (1, channels):
        raise RbError(
            f"--normalize has {len(mean)} means, and the images have {channels} channels. Give one of each"
            " per channel, or one of each for all."
        )
    return mean, std


def _start(record: dict[str, Any], recipe: Recipe, run: Run) -> dict[str, Any] | None:
    """The initial weights, for the key; None for a fresh network. Raises RbError."""
    if recipe.init == "random":
        return None
    if recipe.init == "timm":
        if record["arch"].get("space") != "timm":
            raise RbError(
                "--init timm starts from timm's published weights, and the record's network is not of the"
                " space timm. Make the record with rb-arch --arch timm:NAME, or use --init random."
            )
        file = recipe.init_file
        if file is not None and not os.path.isfile(file):
            raise RbError(f"--init-file {file} is no file. Name the weights of the network, in timm's names.")
        return {
            "timm": record["arch"].get("name"),
            **({} if file is None else {"file": run.store.file_hash(file)}),
        }
    if not record.get("checkpoint"):
        raise RbError(
            "--init checkpoint starts from the record's checkpoint, and the record has none. Train it first"
            " (rb-train --method erm), or use --init random."
        )
    fields = {key: record["arch"][key] for key in ("member", "normalize") if key in record["arch"]}
    return {"checkpoint": resolve.checkpoint_name(record, run), **fields}


def _fit(task: TrainingTask, run: Run, key: str) -> dict[str, Any]:
    from rbtools.trainer.loop import fit

    state = run.store.state(key)
    threads, processes = _threads(task, run, state), distributed.here()
    with device.taken(run, threads * processes) as chosen:
        if processes > 1:
            torch.set_num_threads(threads)
        distributed.broadcast(distributed.Order(task, run.settings.seed, threads, key, state))
        with run.report.clock.stage("training"):
            return fit(task, run, key, chosen, state)


def _threads(task: TrainingTask, run: Run, state: bytes | None) -> int:
    """CPU threads of each process of a training on this machine: the user's number; else the number that the
    training began with, since another one rounds differently; else that of `resources.training_threads`.
    """
    from rbtools.trainer.state import threads as threads_of  # torch, which a stored training does not need

    arch, here = task.record["arch"], distributed.here()
    began = None
    if run.placement.threads is None and cores.asked() is None and device.choose(run).type == "cpu":
        began = threads_of(state)
    if began is not None:
        return max(min(began, cores.count() // here), 1)
    return max(resources.training_threads(run, arch) // here, 1)


def _trained(
    record: dict[str, Any],
    data: Data,
    what: dict[str, Any],
    done: dict[str, Any],
    recipe: Recipe,
    command: str | None,
) -> dict[str, Any]:
    record = results.forget_evaluations(record)
    of_former_file = ("checkpoint_file", "recognised", "leaderboard")
    record = {key: value for key, value in record.items() if key not in of_former_file}
    section = trained.section(what, done, recipe.select, recipe.preset, recipe.stored(done))
    if command is not None:
        section["command"] = command
    record = {**record, **of_data(data), "train": section, "checkpoint": recipe.selected(done)}
    for entry in trained.entries(done):
        record = results.add(record, entry, replace=True)
    return record


def worker_loop(run: Run) -> None:
    """Take part in the trainings that process 0 broadcasts, until there are no more."""
    from rbtools.trainer.loop import fit

    while (order := distributed.receive()) is not None:
        own = run.changed(seed=order.seed, progress=discard, notify=discard)
        torch.set_num_threads(order.threads)
        with contextlib.suppress(RbError):  # all processes raise it, and process 0 reports it
            fit(order.task, own, order.key, device.choose(own), order.state)
