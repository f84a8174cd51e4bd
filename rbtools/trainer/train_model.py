"""Trains the architecture of a record with a method, or reads the result from the store."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools import datasets, registry, spaces
from rbtools.datasets.indices import ORDER
from rbtools.errors import RbError
from rbtools.execution import device, precision, resources
from rbtools.execution.engine import JobFunction
from rbtools.execution.once import once
from rbtools.execution.report import discard
from rbtools.execution.run import Run
from rbtools.inputs import resolve
from rbtools.inputs.data import Data, data_of, of_data
from rbtools.lazy import torch
from rbtools.records import results, trained
from rbtools.rng import GENERATOR
from rbtools.spaces.identity import identity
from rbtools.store import Store, digest
from rbtools.trainer import distributed, presets, tracking
from rbtools.trainer.recipe import Recipe, check, check_method
from rbtools.trainer.state import threads as stored_threads

if TYPE_CHECKING:
    from rbtools.training.base import Method


VERSION = 2


class TrainingTask(NamedTuple):
    """One training run. `former` is the record as given, from whose checkpoint training may start, and
    `record` contains the architecture that is trained. `precision` is "bf16" or "fp32". `prepare` is true if
    inner attacks run on a fast copy."""

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
        arch: dict[str, Any] = self.record["arch"]
        return arch

    @property
    def name(self) -> str:
        return str(self.arch.get("name", "The network"))


@dataclasses.dataclass(frozen=True)
class TrainJob(JobFunction):
    method: Any
    recipe: Recipe
    seed: int

    def reads(self, run: Run) -> tuple[str, ...]:
        return ("train",)

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        return train(record, self.method, self.recipe, run.changed(seed=self.seed))


def train(record: dict[str, Any], method: Method, recipe: Recipe, run: Run) -> dict[str, Any]:
    """Returns the record with a trained checkpoint, its history and `seconds_per_epoch`, without results of
    the earlier weights. Raises RbError if the recipe cannot work or the loss diverges."""
    with run.report.clock.stage("data"):
        data = data_of(record, run, "train")
    method, recipe = presets.on_data(method, recipe, data.about)
    check(recipe, data.size)
    check_method(recipe, method)
    # These two fields describe a weights file.
    arch = {key: value for key, value in record["arch"].items() if key not in ("member", "normalize")}
    fresh = {**record, "arch": spaces.describe(arch, data.about.classes, data.about.shape)}
    data, recipe = settled(data, method, recipe)
    arithmetic = precision.of_training(run, data.about.shape)
    init = _initial_weights(record, recipe, run)
    track = tracking.wanted(recipe, record, run)
    task = TrainingTask(fresh, record, data, method, recipe, arithmetic, run.settings.prepare, track)
    what = _key_fields(task, init, run.settings.seed)
    stored = _StoredTraining(task, what, run.store)

    def compute() -> dict[str, Any]:
        run.store.check_writable()
        if stored.lacks_weights:
            run.report.notify("the store has this result without the requested weights: training again.")
        done = stored.keep(_fit(task, run, stored.key))
        run.store.drop_state(stored.key)
        return done

    done = once(run, stored.key, stored.look_up, compute, title=method.name, unit="training")
    return _trained(task, what, done, run.command)


def _key_fields(task: TrainingTask, init: dict[str, Any] | None, seed: int) -> dict[str, Any]:
    """Everything that determines the weights. `init` is described in `_initial_weights`."""
    method, recipe, about = task.method, task.recipe, task.data.about
    fields = {
        "kind": "training",
        "version": VERSION,
        "arch": identity(task.arch),
        "data": task.data.fingerprint,
        "normalize": [about.mean, about.std],  # they follow from the data set's name or the recipe
        "method": {"name": method.name, "version": method.version, "config": registry.config(method)},
        "recipe": recipe.config(),
        "seed": seed,
        "draws": GENERATOR,
        "precision": task.precision,
    }
    if recipe.val or recipe.train_n:
        fields["order"] = ORDER  # determines which images are used and which are held out
    if init is not None:
        fields["init"] = init
    if recipe.lr_rule == "theorem1" and task.arch.get("space") == "rescnn":
        fields["kappa"] = "pixels"  # in results without this field, kappa was the side of the filter
    if recipe.stop_on is not None and task.track is not None:
        fields["stop"] = dataclasses.replace(task.track, names=(recipe.stop_on,), test=None).fields()
    if task.prepare and method.inner:
        fields["prepared"] = precision.PREPARED
    if distributed.count() > 1:
        fields["processes"] = distributed.count()
    if 1 in (recipe.batch_size, recipe.micro_batch):
        fields["batches"] = "single"  # results without this field joined the last two images into one batch
    return fields


class _StoredTraining:
    """A training result in the store: the weights under one key, and the tracking history under a second key.

    The key of the weights does not depend on tracking, so a training run without tracking finds the weights
    of a run with tracking. A run with tracking is found only if its history is also stored. Otherwise the
    network is trained again, because weights of earlier epochs are not stored. The work is done under `key`,
    which is the key of the history or, without tracking, the key of the weights.
    """

    def __init__(self, task: TrainingTask, what: dict[str, Any], store: Store) -> None:
        self.store, self.what, self.recipe = store, what, task.recipe
        self.names = resolve.names({"arch": task.arch}, task.data)
        self.lacks_weights = False
        self.weights_key = digest(what)
        self.key, self.tracking = self.weights_key, None
        if task.track is not None:
            self.tracking = {"kind": "tracking", "training": self.weights_key, **task.track.fields()}
            self.key = digest(self.tracking)

    def look_up(self) -> dict[str, Any] | None:
        plain = self.store.result(self.weights_key)
        if not isinstance(plain, dict) or "checkpoint" not in plain:
            return None  # another user's store may contain anything
        self.lacks_weights = not all(map(self.store.has_object, self.recipe.stored(plain)))
        if self.lacks_weights:
            return None
        if self.tracking is None:
            return dict(plain)
        tracked = self.store.result(self.key)
        # On a GPU another training of this key may have ended with other weights.
        if tracked is None or tracked["checkpoint"] != plain["checkpoint"]:
            return None
        return _joined(plain, tracked)

    def keep(self, done: dict[str, Any]) -> dict[str, Any]:
        plain = {name: value for name, value in done.items() if name not in ("tracked", "tracking")}
        self.store.keep_result(self.weights_key, self.what, plain, self.names)
        if self.tracking is None:
            return plain
        tracked = {name: done[name] for name in ("checkpoint", "tracked", "tracking")}
        self.store.keep_result(self.key, self.tracking, tracked, self.names)
        return _joined(plain, tracked)


def _joined(plain: dict[str, Any], tracked: dict[str, Any]) -> dict[str, Any]:
    history = {**plain["history"], **tracked["tracked"]}
    return {**plain, "history": history, "tracking": tracked["tracking"]}


def settled(data: Any, method: Method, recipe: Recipe) -> tuple[Any, Recipe]:
    """Return the data with the recipe's normalisation, and the recipe with the defaults that depend on the
    data set or the method. Raises RbError if the normalisation or the recipe does not match the images."""
    about = data.about
    changes: dict[str, Any] = {}
    if recipe.normalize is not None:
        mean, std = _mean_and_std(recipe.normalize, about.shape[0])
        data = dataclasses.replace(data, about=dataclasses.replace(about, mean=mean, std=std))
    if recipe.augment is None:
        changes["augment"] = about.augment
    if "awp" in recipe.regularize and recipe.awp_gamma is None:
        changes["awp_gamma"] = 0.005 if method.name == "trades" else 0.01
    if "cutout" in recipe.regularize:
        side = min(about.shape[1:])
        changes["cutout_length"] = recipe.cutout_length or max(round(side * 14 / 32), 1)
        if changes["cutout_length"] > side:
            raise RbError(
                f"--cutout-length is {recipe.cutout_length}, but the images have only {side} pixels per side."
                f" Expected at most {side}."
            )
    return data, dataclasses.replace(recipe, **changes)


def _mean_and_std(
    normalize: str | Sequence[Sequence[float]], channels: int
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """The mean and standard deviation per channel, read from a name (None for "none") or from numbers."""
    if normalize == "none":
        return None, None
    if isinstance(normalize, str):
        normalize = datasets.NORMALIZATIONS[normalize]
    mean, std = (tuple(map(float, values)) for values in normalize)
    if len(mean) not in (1, channels):
        raise RbError(
            f"--normalize has {len(mean)} means, but the images have {channels} channels. Give one mean and"
            " one deviation per channel, or one of each for all channels."
        )
    return mean, std


def _initial_weights(record: dict[str, Any], recipe: Recipe, run: Run) -> dict[str, Any] | None:
    """The description, for the key, of the weights with which training starts, or None for a fresh network.
    Raises RbError if the record does not have such weights."""
    if recipe.init == "random":
        return None
    if recipe.init == "timm":
        if record["arch"].get("space") != "timm":
            raise RbError(
                "--init timm starts from timm's published weights, but the record's network is not from the"
                " space timm. Create the record with rb-arch --arch timm:NAME, or use --init random."
            )
        file = recipe.init_file
        if file is not None and not os.path.isfile(file):
            raise RbError(f"--init-file {file} is not a file. Give a file of weights with timm's names.")
        hashed = {} if file is None else {"file": run.store.file_hash(file)}
        return {"timm": record["arch"].get("name"), **hashed}
    if not record.get("checkpoint"):
        raise RbError(
            "--init checkpoint starts from the record's checkpoint, but the record has none. Train the model"
            " first (rb-train --method erm), or use --init random."
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
    """The number of CPU threads of each training process on this machine: the user's number, otherwise the
    number with which the training began (because another number rounds differently), otherwise a default."""
    here = distributed.here()
    if (
        run.placement.threads is None
        and resources.threads_asked() is None
        and device.choose(run).type == "cpu"
    ):
        began = stored_threads(state)
        if began is not None:
            return max(min(began, resources.cores() // here), 1)
    return max(resources.training_threads(run, task.arch) // here, 1)


def _trained(
    task: TrainingTask, what: dict[str, Any], done: dict[str, Any], command: str | None
) -> dict[str, Any]:
    recipe = task.recipe
    section = trained.section(what, done, recipe.select, recipe.preset, recipe.stored(done))
    if command is not None:
        section["command"] = command
    of_former_file = ("checkpoint_file", "recognised", "leaderboard", "preprocessing")
    record = results.forget_evaluations(task.record)
    record = {key: value for key, value in record.items() if key not in of_former_file}
    record |= {**of_data(task.data), "train": section, "checkpoint": recipe.selected(done)}
    for entry in trained.entries(done):
        record = results.add(record, entry, replace=True)
    return record


def worker_loop(run: Run) -> None:
    """Take part in the training runs that process 0 broadcasts, until there are no more."""
    from rbtools.trainer.loop import fit

    while (order := distributed.receive()) is not None:
        own = run.changed(seed=order.seed, progress=discard, notify=discard)
        torch.set_num_threads(order.threads)
        with contextlib.suppress(RbError):  # all processes raise it, and process 0 reports it
            fit(order.task, own, order.key, device.choose(own), order.state)
