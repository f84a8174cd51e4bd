"""Counts the work of a recipe (networks, training runs, images and passes) without data and without a store.

The commands of a recipe are parsed as by the tools, and their jobs are counted instead of run. A pass is one
forward pass of an image, or work with as many multiply-adds.
"""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import orjson
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from rbtools import datasets, models
from rbtools.cli.calls import ToolCall, under_way
from rbtools.cli.shared import done
from rbtools.cli.streams import MemoryStreams
from rbtools.cli.tools import tool
from rbtools.datasets.base import Description
from rbtools.errors import RbError
from rbtools.evaluation.spec import Evaluation, by_column
from rbtools.execution.dry_run import USUAL_SHARE
from rbtools.execution.run import Run
from rbtools.jobs.evaluate_record import EvaluateJob
from rbtools.jobs.measurement import MeasureJob, perturbing
from rbtools.jobs.train_test_gap import GapJob
from rbtools.measures import MEASURES
from rbtools.models import meta
from rbtools.papers.recipes import Command, Pipe
from rbtools.records import SCHEMA, dumps
from rbtools.rng.draws import Draws
from rbtools.trainer import presets
from rbtools.trainer.begin import stepping
from rbtools.trainer.train_model import TrainJob

_PROBE = 4  # images on which the passes of a training step or a measure are counted
_FILES = ("--from", "--checkpoint", "--init-file")  # the options of a recipe whose files may be missing


@dataclass(frozen=True)
class Networks:
    """Networks of one data set. `each` is the number of records of a network after its trainings."""

    archs: tuple[dict[str, Any], ...] = field(repr=False)
    data: str
    each: int = 1

    @property
    def records(self) -> int:
        return self.each * len(self.archs)

    @property
    def about(self) -> Description:
        return described(self.data)

    @property
    def typical(self) -> dict[str, Any]:
        """The network with the median number of multiply-adds."""
        return sorted(self.archs, key=lambda arch: float(arch["macs"]))[len(self.archs) // 2]

    @property
    def multiply_adds(self) -> float:
        """The multiply-adds of one pass through the network of each record."""
        return self.each * math.fsum(arch["macs"] for arch in self.archs)


class Work(NamedTuple):
    """The work of a command for the networks of one data set. `images` and `passes` are for one record;
    `passes` is the maximum, and `usual` counts only images that attacks have not yet broken. `batch` is the
    number of images that pass at once (None: the device decides), and `epochs` is 0 if nothing is trained."""

    title: str
    networks: Networks
    images: int
    passes: float
    usual: float
    batch: int | None
    epochs: int = 0


@cache
def described(name: str) -> Description:
    """Describe a data set whose files may be missing. For NAME:classes=A/B, only the size is known without
    the files, because all classes of published data sets have the same number of images."""
    whole, _, chosen = name.partition(":classes=")
    about = datasets.source(whole).describe()
    count = len(chosen.split("/")) if chosen else about.classes
    sizes = {split: size * count // about.classes for split, size in about.sizes.items()}
    return replace(about, name=name, classes=count, sizes=sizes)


def work(pipe: Pipe) -> tuple[list[Work], list[str]]:
    """The work of all commands, and the reasons why networks are left out (timm is not installed)."""
    counter = _Counter()
    counter.outputs(pipe)
    return counter.found, list(counter.left_out)


class _Jobs(MemoryStreams):
    """Streams that record the jobs of a command, but do no work."""

    jobs: Sequence[Any] = ()
    run: Run

    def each(self, works: Any, run: Run) -> bool:
        self.jobs, self.run = list(works), run
        return True


class _Counter:
    def __init__(self) -> None:
        self.found: list[Work] = []
        self.left_out: dict[str, None] = {}
        self.listed: dict[str, tuple[dict[str, Any], ...]] = {}  # the last networks of each data set

    def outputs(self, pipe: Pipe) -> list[Networks]:
        """Count the work of a pipe. Returns the networks of the records that it writes."""
        networks: list[Networks] = []
        for stage in pipe:
            if isinstance(stage, list):
                networks = self._command(stage, networks)
            else:
                networks = [one for inside in stage for one in self.outputs(inside)]
        return networks

    def _command(self, command: Command, networks: list[Networks]) -> list[Networks]:
        if command[0] == "rb-arch":
            return self._listing(command)
        if command[0] == "rb-search":  # a cell that is not known yet: the median of the cells
            data = _option(command, "--dataset") or "digits"
            cell = Networks((Networks(self.listed[data], data).typical,), data)
            self.found.append(Work(" ".join(command[:2]), cell, 0, 0, 0, None))
            return [cell]
        jobs = _read(tuple(_without_files(command)))
        title = " ".join(itertools.takewhile(lambda word: not word.startswith("--"), command))
        for one in networks:
            for job in jobs.jobs:
                counted = _trained(job, one) if isinstance(job, TrainJob) else _evaluated(job, jobs.run, one)
                self.found.append(counted._replace(title=title))
        times = len(jobs.jobs) if command[0] == "rb-train" else 1
        return [replace(one, each=one.each * times) for one in networks]

    def _listing(self, command: Command) -> list[Networks]:
        data = _option(command, "--dataset") or "digits"
        about, whole = described(data), data.partition(":classes=")[0]
        words = [whole if word == data else word for word in command]
        archs = []
        for line in _read(tuple(words)).lines:
            arch = orjson.loads(line)["arch"]
            try:
                archs.append(arch if "macs" in arch else {**arch, "macs": _multiply_adds(arch, about)})
            except RbError as wrong:  # timm is not installed
                self.left_out[f"{arch['name']}: {wrong}"] = None
        self.listed[data] = tuple(archs)
        return [Networks(self.listed[data], data)] if archs else []


def _multiply_adds(arch: dict[str, Any], about: Description) -> int:
    return meta.of_arch(tuple(arch.items()), about.classes, about.shape)[1]


@cache
def _read(command: tuple[str, ...]) -> _Jobs:
    """The jobs of a command, or the records that it lists."""
    streams, page = _Jobs(), tool(command[0].removeprefix("rb-"))
    words = [*command[1:], "--config", os.environ.get("RB_CONFIG", "none")]
    with warnings.catch_warnings(), page.command.make_context(page.words, words, obj=streams) as context:
        warnings.simplefilter("ignore")
        status = page.command.invoke(context)
        with under_way(ToolCall(command[0], streams=streams)):  # rb-train works after it has read its options
            done(status or 0)
    return streams


def _option(command: Command, name: str) -> str | None:
    return command[command.index(name) + 1] if name in command else None


def _without_files(command: Command) -> Iterator[str]:
    words = iter(command)
    for word in words:
        if word in _FILES:
            next(words)
        else:
            yield word


# --- trainings ------------------------------------------------------------------------------------


def _trained(job: TrainJob, networks: Networks) -> Work:
    method, recipe = presets.on_data(job.method, job.recipe, networks.about)
    size = networks.about.sizes["train"]
    of_step = _step_passes(stepping(method, recipe, {})) + recipe.clean_pass
    passes = recipe.epochs * size * of_step
    if recipe.track:
        tracked = tuple(MEASURES.build(name) for name in recipe.track if name in MEASURES)
        attacks = perturbing(["pgd"], (8 / 255,), method.attack_steps, None)
        each = _measured(MeasureJob(tracked, attacks), networks).passes
        each += 2 * recipe.track_n * (of_step - 2) if "robust" in recipe.track else 0  # on both splits
        passes += recipe.epochs // recipe.every * each
    return Work("", networks, recipe.epochs * size, passes, passes, recipe.batch_size, recipe.epochs)


@cache
def _step_passes(method: Any) -> float:
    """The passes for an image in a training step of a method, counted on a small network."""
    about = described("digits")
    model = models.build(_SMALL, classes=about.classes, shape=about.shape).train()
    images = torch.rand(_PROBE, *about.shape, generator=torch.Generator().manual_seed(0))
    labels, draws = torch.arange(_PROBE), Draws(0, "train", torch.arange(_PROBE))
    with _Counted(_SMALL, about, _PROBE) as counted:
        method(model, images, labels, draws).value.backward()
    return float(counted.passes)


_SMALL = {"space": "nasbench201", "index": 1835, "cells": 1, "channels": 2}


class _Counted(TorchDispatchMode):
    """Counts the multiply-adds in its block as passes of `images` images through a network."""

    def __init__(self, arch: dict[str, Any], about: Description, images: int) -> None:
        super().__init__()
        self.of_pass, self.operations = 2.0 * images * _multiply_adds(arch, about), 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            self.operations += count(*args, **(kwargs or {}), out_val=result)
        return result

    @property
    def passes(self) -> float:
        return self.operations / self.of_pass


# --- evaluations ----------------------------------------------------------------------------------


def _evaluated(job: Any, run: Run, networks: Networks) -> Work:
    if isinstance(job, MeasureJob):
        return _measured(job, networks)
    assert isinstance(job, EvaluateJob | GapJob), job
    splits = {"test": run.selection.n}
    if isinstance(job, GapJob):
        splits["train"] = job.n_train or run.selection.n
    images = sum(_count(networks.about.sizes[split], n, run) for split, n in splits.items())
    most, usual = _passes(job.evaluations)
    return Work("", networks, images, images * most, images * usual, None)


def _count(size: int, n: int | None, run: Run) -> int:
    chosen = run.selection.indices
    size = size if chosen is None else len(datasets.indices.read(chosen, size).numbers)
    return min(size, n or size)


def _passes(evaluations: Sequence[Evaluation]) -> tuple[float, float]:
    """The largest and the usual number of passes for an image."""
    columns = {}
    for one in evaluations:
        for spec, *_ in by_column(one.specs):
            # PR over all images and over the correct ones are of the same copies.
            columns[repr({**spec.column(), "counted": "all"})] = spec
    specs = list(columns.values())
    usual = sum(spec.most_passes * (USUAL_SHARE if spec.under_attack else 1) for spec in specs)
    return sum(spec.most_passes for spec in specs), usual


def _measured(job: MeasureJob, networks: Networks) -> Work:
    images = passes = 0.0
    theory = networks.typical["space"] in ("fcnn", "rescnn")  # whose measures need such networks
    arch = dumps({**networks.typical} if theory else _SMALL).decode()
    data = "digits:classes=3/8" if theory else "digits"
    for measure in job.measures:
        batches, size = job.batches or measure.size[0], job.batch_size or measure.size[1]
        splits = len(job.splits or [measure.split]) if measure.data else 1
        weights = 2 if job.on == "both" and measure.weights != "trained" else 1
        count = splits * weights * min(batches * size, networks.about.sizes["train"])
        images += count
        passes += count * _measure_passes(replace(job, measures=(measure,)), arch, data)
    return Work("", networks, round(images), passes, passes, None)


@cache
def _measure_passes(job: MeasureJob, arch: str, data: str) -> float:
    """The passes of one measure for an image, counted with fresh weights and few digits."""
    job = replace(job, batches=1, batch_size=_PROBE, on="init", splits=("train",))
    record = {"schema": SCHEMA, "arch": orjson.loads(arch), "dataset": data}
    with _Counted(record["arch"], described(data), _PROBE) as counted:
        job(record, Run.of(device="cpu", threads=1))
    return float(counted.passes)
