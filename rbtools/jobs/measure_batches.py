"""Computes measures: networks, batches, and the adversarial images that measures need."""

from __future__ import annotations

import contextlib
import itertools
import json
import pickle
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools import spaces
from rbtools.attacks import lattice
from rbtools.attacks.oracle import Oracle
from rbtools.errors import RbError
from rbtools.evaluation.base import CHUNK
from rbtools.evaluation.tiles import in_turn, part_key
from rbtools.execution import device, resources
from rbtools.execution.device import out_of_memory
from rbtools.execution.run import Run
from rbtools.inputs import resolve
from rbtools.inputs.data import Data, InMemory
from rbtools.jobs.tile_calls import OpenedCall, by_workers
from rbtools.lazy import nn, torch
from rbtools.measures import batchnorm
from rbtools.measures.base import BatchResult, MeasureBatch, Value
from rbtools.rng.draws import Draws
from rbtools.trainer import init
from rbtools.trainer.augment import pixels

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.base import Attack
    from rbtools.measures.base import Measure


class MeasureItem(NamedTuple):
    """A measure on given weights and images, with or without an attack."""

    measure: Any
    attack: Any
    on: str
    data: Data
    size: tuple[int, int]
    batchnorm: str = "running"
    init_seed: int = 0

    @property
    def n(self) -> int:
        """The number of measured images, which is 0 for measures without data."""
        return min(self.data.size, self.size[0] * self.size[1]) if self.measure.data else 0

    @property
    def batches(self) -> int:
        return -(-self.n // self.size[1])

    @property
    def statistics(self) -> dict[str, str]:
        """The BatchNorm statistics as fields of the entry; empty if the measure offers no choice, or if
        trained weights are used with running statistics."""
        usual = self.measure.batchnorm is None or (self.on, self.batchnorm) == ("trained", "running")
        return {} if usual else {"batchnorm": self.batchnorm}

    @property
    def random(self) -> bool:
        return bool(self.measure.random or (self.attack is not None and self.attack.random))


def arch_of(record: dict[str, Any], data: Data) -> dict[str, Any]:
    """The architecture without the fields that describe a file. Raises RbError for a module in memory."""
    if isinstance(record, InMemory):
        raise RbError(
            "One of these measures needs an architecture that rb-arch describes; a module in memory has none."
            " Leave out params, macs, bound and the measures of fresh weights."
        )
    arch = {key: value for key, value in record["arch"].items() if key not in ("member", "normalize")}
    return spaces.describe(arch, data.about.classes, data.about.shape)


class MeasureTile(NamedTuple):
    """A unit of work: the measure with the result `key`, on consecutive examples of one batch."""

    key: str
    batch: int
    examples: range


class TileResult(NamedTuple):
    """The result of a tile, and the time in seconds."""

    result: BatchResult
    seconds: float


@dataclass(frozen=True)
class MeasureWork:
    """The measures of a record by the keys of their results, and the inputs of their tiles."""

    inputs: resolve.Inputs
    items: Mapping[str, MeasureItem]

    @contextlib.contextmanager
    def opened(self) -> Iterator[Measuring]:
        """Yields the measures, ready for use on this process's device."""
        with device.taken(self.inputs.run, self.inputs.threads()) as place:
            yield Measuring(self, place)

    @property
    def divided(self) -> bool:  # whether several processes may share the work
        run = self.inputs.run
        return run.pool is not None or run.plan is not None or run.placement.shard[1] > 1

    def tiles(self) -> list[list[MeasureTile]]:
        """The tiles of all items. Tiles of the same images are in one group, because they share attacks.

        A tile is usually a batch. If processes share the work, the batches of measures that are sums over
        images are divided into chunks of `chunk` images. A single process uses the same chunks.
        """
        run = self.inputs.run
        chunk = run.settings.batch or CHUNK.get(resources.kind(run).type, CHUNK["cpu"])
        together: dict[Any, list[MeasureTile]] = {}
        for key, item in self.items.items():
            n, size = (item.n, item.size[1]) if item.measure.data else (1, 1)
            of_images = item.measure.of_images and item.batchnorm != "batch"
            step = min(chunk, size) if self.divided and of_images else size
            for start in range(0, n, size):
                for begin in range(start, min(start + size, n), step):
                    tile = MeasureTile(key, start // size, range(begin, min(begin + step, start + size, n)))
                    together.setdefault((_shared(item), *tile[1:]), []).append(tile)
        return list(together.values())


def measured(work: MeasureWork) -> Iterator[tuple[str, list[Value], float]]:
    """Yields the key of each item, its values and its seconds; nothing if other shards finish first."""
    run = work.inputs.run
    store, groups = run.store, work.tiles()
    tiles = itertools.chain.from_iterable(groups)
    names = {tile: part_key(tile.key, tile.examples.start, tile.examples.stop) for tile in tiles}
    results: dict[MeasureTile, TileResult] = {}

    def missing() -> Iterator[list[MeasureTile]]:
        for group in in_turn(groups, run.placement.shard):
            if run.placement.shard[1] > 1 and all(store.result(key) is not None for key in work.items):
                return
            for tile in group:
                if (known := _stored(store.state(names[tile]))) is not None:
                    results[tile] = known
            if left := [tile for tile in group if tile not in results]:
                yield left

    with store.working():
        for group, found in _computed(work, missing()):
            for tile, result in zip(group, found, strict=True):
                results[tile] = result
                store.keep_state(names[tile], json.dumps(result, default=float).encode(), sync=False)
    if len(results) == len(names):
        for key, item in work.items.items():
            of_item = {tile: results[tile] for tile in names if tile.key == key}
            yield key, *_joined(item.measure, of_item)
    for name in names.values():
        store.drop_state(name)


def _computed(
    work: MeasureWork, groups: Iterator[list[MeasureTile]]
) -> Iterator[tuple[list[MeasureTile], list[TileResult]]]:
    """Yields tiles with their results, computed in this process or by the workers of the engine."""
    run, arch = work.inputs.run, work.inputs.record.get("arch")
    if run.pool is not None:
        sent = pickle.dumps(work)
        yield from by_workers(run, groups, lambda group: MeasureCall(arch, sent, group))
        return
    with work.opened() as measuring:
        for group in groups:
            yield group, [measuring.computed(tile) for tile in group]


@dataclass(frozen=True)
class MeasureCall(OpenedCall):
    tiles: list[MeasureTile]

    def __call__(self, run: Run) -> list[TileResult]:
        with self.opened(run) as (_, measuring):
            return [measuring.computed(tile) for tile in self.tiles]


class Measuring:
    """Computes all measures of one record, with one network and one attack for each batch."""

    def __init__(self, work: MeasureWork, device: torch.device) -> None:
        self.work, self.device, self.report = work, device, work.inputs.run.report
        self.settings = work.inputs.run.settings
        self.chunk = self.settings.batch or CHUNK.get(device.type, CHUNK["cpu"])
        self.models: dict[tuple[str, str], tuple[nn.Module, bool]] = {}
        self.attacked: tuple[Any, AttackedBatch] | None = None  # the last network and its key

    def computed(self, tile: MeasureTile) -> TileResult:
        item = self.work.items[tile.key]
        self.report.check_cancelled()
        self.report.progress(f"{item.measure.name}  batch {tile.batch + 1}")
        model, together = self._model(item)
        which = (_shared(item), *tile[1:])
        if self.attacked is None or self.attacked[0] != which:
            batch = self._batch(item, tile)
            self.attacked = which, AttackedBatch(model, batch, self.settings.seed, together)
        start = time.perf_counter()
        result = self._measured(model, item, self.attacked[1])
        return TileResult(result, time.perf_counter() - start)

    def _measured(self, model: nn.Module, job: MeasureItem, attacked: AttackedBatch) -> BatchResult:
        """The result of a measure on one batch, with fewer images at once each time memory runs out."""
        while True:
            try:
                return job.measure(model, attacked.batch(job, self.chunk))
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                if attacked.together:
                    raise RbError(
                        f"Memory ran out in the measure {job.measure.name}: with --batchnorm batch the"
                        f" {len(attacked.clean)} images of a batch go through the network at once. Use a"
                        " smaller --batch-size, or --batchnorm running."
                    ) from error
                if self.chunk == 1:
                    raise RbError(
                        f"Memory ran out in the measure {job.measure.name} with one image at a time. Use a"
                        " GPU with more memory, or a smaller --batch-size."
                    ) from error
            self.chunk = max(self.chunk // 2, 1)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _model(self, job: MeasureItem) -> tuple[nn.Module, bool]:
        """The frozen network, and whether an output depends on the other images of the batch."""
        key, inputs = (job.on, job.batchnorm), self.work.inputs
        if key not in self.models:
            if job.on == "trained":
                model = resolve.load_model(inputs.record, job.data, inputs.run, self.device)
            else:
                arch, allowed = arch_of(inputs.record, job.data), inputs.run.selection.allow_code
                model = init.fresh(arch, job.data.about, job.init_seed, allow_code=allowed)
                model = model.to(self.device).eval().requires_grad_(False)
            self.models[key] = model, batchnorm.use(model, job.batchnorm)
        return self.models[key]

    def _batch(self, item: MeasureItem, tile: MeasureTile) -> MeasureBatch:
        """The examples of a tile in the order of the split. Measures without data get a black image."""
        if item.measure.data:
            dataset = item.data.load()
            ids = item.data.order(dataset.labels)[tile.examples.start : tile.examples.stop]
            images = pixels(dataset.images[ids].to(self.device))
            labels = dataset.labels[ids].to(self.device)
        else:
            ids = labels = torch.zeros(1, dtype=torch.int64, device=self.device)
            images = torch.zeros(1, *item.data.about.shape, device=self.device)
        draws = Draws(self.settings.seed, "measure", ids.to(self.device))
        probes = Draws(self.settings.seed, "measure.batch", torch.tensor([tile.batch], device=self.device))
        return MeasureBatch(images, labels, draws, probes)


def _shared(item: MeasureItem) -> tuple[Any, ...]:
    """The fields that are equal for items with equal batches."""
    return (item.on, item.batchnorm, item.data.split, item.size if item.measure.data else None)


def _joined(measure: Measure, results: Mapping[MeasureTile, TileResult]) -> tuple[list[Value], float]:
    """The values of a measure, from the results of its tiles in order, and the total seconds."""
    batches = [list(tiles) for _, tiles in itertools.groupby(results, lambda tile: tile.batch)]
    parts = [measure.joined([results[tile].result for tile in tiles]) for tiles in batches]
    sizes = [sum(len(tile.examples) for tile in tiles) for tiles in batches]
    return measure.values(parts, sizes), sum(result.seconds for result in results.values())


def _stored(data: bytes | None) -> TileResult | None:
    """A tile's result from the store, or None if the data are missing or damaged."""
    try:
        result, seconds = json.loads(data or b"")
        return TileResult(dict(result), float(seconds))
    except (ValueError, TypeError):
        return None


class AttackedBatch:
    """A batch with its adversarial images, which are computed when they are first used."""

    def __init__(self, model: nn.Module, clean: MeasureBatch, seed: int, together: bool = False) -> None:
        self.model, self.clean, self.seed, self.together = model, clean, seed, together
        self.made: dict[tuple[Any, int], Tensor] = {}

    def batch(self, job: MeasureItem, chunk: int) -> MeasureBatch:
        """The batch with the adversarial images that the job's measure needs."""
        chunk = len(self.clean) if self.together else chunk
        perturbed = self._after(job.attack, 1, chunk) if job.measure.attacks > 0 else None
        twice = self._after(job.attack, 2, chunk) if job.measure.attacks > 1 else None
        return replace(self.clean, perturbed=perturbed, twice=twice, chunk=chunk, together=self.together)

    def _after(self, attack: Attack, times: int, chunk: int) -> Tensor:
        """The images after `times` successive attacks, each within eps of its own starting image."""
        if (attack, times) not in self.made:
            start = self.clean.images if times == 1 else self._after(attack, times - 1, chunk)
            stream = f"attack.{attack.name}" + (f"/{times}" if times > 1 else "")
            draws = Draws(self.seed, stream, self.clean.draws.examples)
            rows = torch.arange(len(start), device=start.device)
            parts = []
            for some in rows.split(chunk):
                oracle = Oracle(self.model, chunk)
                perturbed, _ = attack.runner(oracle)(
                    oracle, start[some], self.clean.labels[some], draws.take(some)
                )
                parts.append(lattice.project(perturbed, start[some], attack))
            self.made[attack, times] = torch.cat(parts)
        return self.made[attack, times]
