"""Computation of measures: networks, batches, and the adversarial images that measures request."""

from __future__ import annotations

import contextlib
import json
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools import spaces
from rbtools.attacks import lattice
from rbtools.errors import RbError
from rbtools.evaluation.base import CHUNK
from rbtools.evaluation.fast_model import CountingModel
from rbtools.execution import device, resources
from rbtools.execution.device import out_of_memory
from rbtools.execution.engine import Call
from rbtools.execution.run import Run
from rbtools.inputs import resolve
from rbtools.inputs.data import Data, InMemory
from rbtools.lazy import nn, torch
from rbtools.measures import batchnorm
from rbtools.measures.base import BatchResult, MeasureBatch, Value
from rbtools.rng.draws import Draws
from rbtools.store import digest
from rbtools.trainer import init
from rbtools.trainer.augment import pixels

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.base import Attack


class MeasureItem(NamedTuple):
    """One measure on given weights and images, possibly under one attack."""

    measure: Any
    attack: Any
    on: str
    data: Data
    size: tuple[int, int]
    batchnorm: str = "running"

    @property
    def n(self) -> int:
        """Number of images that are measured; 0 for measures without data."""
        return min(self.data.size, self.size[0] * self.size[1]) if self.measure.data else 0

    @property
    def statistics(self) -> dict[str, str]:
        """The BatchNorm statistics for the entry: None if the measure has no choice, or for running ones on
        trained weights."""
        usual = self.measure.batchnorm is None or (self.on, self.batchnorm) == ("trained", "running")
        return {} if usual else {"batchnorm": self.batchnorm}

    @property
    def random(self) -> bool:
        return bool(self.measure.random or (self.attack is not None and self.attack.random))


def arch_of(record: dict[str, Any], data: Data) -> dict[str, Any]:
    """The architecture as for a new training: without the fields that describe a weight file. Raises RbError
    for a module in memory, which has none."""
    if isinstance(record, InMemory):
        raise RbError(
            "A measure of these is of an architecture that rb-arch describes, which a module in memory does"
            " not have. Leave out params, macs, bound and those of fresh weights."
        )
    arch = {key: value for key, value in record["arch"].items() if key not in ("member", "normalize")}
    return spaces.describe(arch, data.about.classes, data.about.shape)


class MeasureTile(NamedTuple):
    """A unit of work: an item, by its position, on consecutive examples of one batch."""

    place: int
    batch: int
    examples: range


class TileResult(NamedTuple):
    """The result of a tile, and its seconds."""

    result: BatchResult
    seconds: float


@dataclass(frozen=True)
class Request:
    """Some measures of a record: what a process needs to measure tiles of them."""

    record: dict[str, Any]
    init_seed: int
    items: Sequence[MeasureItem]
    run: Run

    @contextlib.contextmanager
    def opened(self) -> Iterator[Measuring]:
        """The measures on this process's device."""
        with device.taken(self.run, resources.threads_for(self.run, self.record.get("arch"))) as place:
            yield Measuring(self.record, self.init_seed, self.run, place)


def shared(work: Request, keys: Sequence[str]) -> Iterator[tuple[int, list[Value], float]]:
    """As `Measuring.all`, by the workers of the run's engine, or by this process beside other shards; nothing
    where these finished first. keys: of the items' results.
    """
    run, items = work.run, work.items
    store, tiles = run.store, tiles_for(items, run)
    names = {
        tile: digest({"part of": keys[tile.place], "begin": tile.examples.start, "end": tile.examples.stop})
        for tile in tiles
    }
    # Of equal batches all items are measured together, since they share attacks.
    together: dict[Any, list[MeasureTile]] = {}
    for tile in tiles:
        together.setdefault((_shared(items[tile.place]), tile.batch, tile.examples), []).append(tile)
    groups = list(together.values())
    number, of = run.placement.shard
    own = groups[number - 1 :: of]
    others = [group for place, group in enumerate(groups) if place % of != number - 1]
    results: dict[MeasureTile, TileResult] = {}

    def missing() -> Iterator[list[MeasureTile]]:
        for group in [*own, *reversed(others)]:
            if of > 1 and all(store.result(key) is not None for key in keys):
                return
            for tile in group:
                if (known := _stored(store.state(names[tile]))) is not None:
                    results[tile] = known
            if left := [tile for tile in group if tile not in results]:
                yield left

    with store.working():
        for group, found in (_here if run.pool is None else _by_workers)(work, missing()):
            for tile, result in zip(group, found, strict=True):
                results[tile] = result
                store.keep_part(names[tile], json.dumps(result).encode())
    if len(results) == len(tiles):
        yield from _joined(items, {tile: results[tile] for tile in tiles})
    for name in names.values():
        store.drop_state(name)


Groups = Iterator[list["MeasureTile"]]
Found = Iterator[tuple[list["MeasureTile"], list["TileResult"]]]


def _here(work: Request, groups: Groups) -> Found:
    with work.opened() as measuring:
        for group in groups:
            yield group, [measuring.computed(tile, work.items[tile.place]) for tile in group]


def _by_workers(work: Request, groups: Groups) -> Found:
    run, sent, arch = work.run, pickle.dumps(work), work.record.get("arch")
    taken: list[list[MeasureTile]] = []

    def calls() -> Iterator[Call]:
        for group in groups:
            taken.append(group)
            yield MeasureCall(arch, sent, group)

    for number, report in run.pool.map(calls(), run.report.check_cancelled):
        yield taken[number], report.value(run)


@dataclass(frozen=True)
class MeasureCall(Call):
    """The results of tiles of one batch, in a worker, which keeps the networks of the last request. sent: it,
    pickled."""

    arch: Any
    sent: bytes
    tiles: list[MeasureTile]

    def __call__(self, run: Run) -> list[TileResult]:
        global _open
        if _open is None or _open[0] != self.sent:
            _open = None  # its memory is free before the next network is loaded
            work: Request = pickle.loads(self.sent)  # trusted: the driver of this run pickled it
            there = replace(work.run, placement=run.placement, report=run.report)
            with replace(work, run=there).opened() as measuring:
                _open = self.sent, work.items, measuring
        _, items, measuring = _open
        with device.taken(run, resources.threads_for(run, self.arch)):
            measuring.run = replace(measuring.run, report=run.report)
            return [measuring.computed(tile, items[tile.place]) for tile in self.tiles]


_open: tuple[bytes, Sequence[MeasureItem], Measuring] | None = None


class Measuring:
    """All measures of one record: each network is built once, each batch attacked once for all measures."""

    def __init__(self, record: dict[str, Any], init_seed: int, run: Run, device: torch.device) -> None:
        self.record, self.init_seed, self.run, self.device = record, init_seed, run, device
        self.chunk = run.settings.batch or CHUNK.get(device.type, CHUNK["cpu"])
        self.models: dict[tuple[str, str], tuple[nn.Module, bool]] = {}
        self.attacked: tuple[Any, AttackedBatch] | None = None  # the last network and its key

    def all(self, items: Sequence[MeasureItem]) -> Iterator[tuple[int, list[Value], float]]:
        """The place of each item, its values, and its seconds; items on the same batches share a pass."""
        groups: dict[Any, list[int]] = {}
        for place, item in enumerate(items):
            groups.setdefault(_shared(item), []).append(place)
        for places in groups.values():
            results = {tile: self.computed(tile, items[tile.place]) for tile in _tiles(items, places)}
            yield from _joined(items, results)

    def computed(self, tile: MeasureTile, item: MeasureItem) -> TileResult:
        """The result of a tile of an item."""
        self._progress(item, tile)
        model, together = self._model(item)
        which = (_shared(item), tile.batch, tile.examples)
        if self.attacked is None or self.attacked[0] != which:
            batch = self._batch(item, tile)
            self.attacked = which, AttackedBatch(model, batch, self.run.settings.seed, together)
        start = time.perf_counter()
        result = self._measured(model, item, self.attacked[1])
        return TileResult(result, time.perf_counter() - start)

    def _progress(self, item: MeasureItem, tile: MeasureTile) -> None:
        self.run.report.check_cancelled()
        self.run.report.progress(f"{item.measure.name}  batch {tile.batch + 1}")

    def _measured(self, model: nn.Module, job: MeasureItem, attacked: AttackedBatch) -> BatchResult:
        """A measure of one batch; each time memory runs out, with fewer images at once."""
        while True:
            try:
                result: BatchResult = job.measure(model, attacked.batch(job, self.chunk))
                return result
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
                        " larger device, or a smaller --batch-size."
                    ) from error
            self.chunk = max(self.chunk // 2, 1)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _model(self, job: MeasureItem) -> tuple[nn.Module, bool]:
        """The network in eval mode, its parameters frozen; and whether an image depends on its batch."""
        key = job.on, job.batchnorm
        if key not in self.models:
            if job.on == "trained":
                model = resolve.load_model(self.record, job.data, self.run, self.device)
            else:
                arch, allowed = arch_of(self.record, job.data), self.run.selection.allow_code
                model = init.fresh(arch, job.data.about, self.init_seed, allow_code=allowed)
                model = model.to(self.device).eval().requires_grad_(False)
            self.models[key] = model, batchnorm.use(model, job.batchnorm)
        return self.models[key]

    def _batch(self, item: MeasureItem, tile: MeasureTile) -> MeasureBatch:
        """The examples of a tile, in the order of the split; a black image for measures without data."""
        if item.measure.data:
            dataset = item.data.load()
            ids = item.data.order(dataset.labels)[tile.examples.start : tile.examples.stop]
            images = pixels(dataset.images[ids].to(self.device))
            labels = dataset.labels[ids].to(self.device)
        else:
            ids = labels = torch.zeros(1, dtype=torch.int64, device=self.device)
            images = torch.zeros(1, *item.data.about.shape, device=self.device)
        draws = Draws(self.run.settings.seed, "measure", ids.to(self.device))
        probes = Draws(
            self.run.settings.seed, "measure.batch", torch.tensor([tile.batch], device=self.device)
        )
        return MeasureBatch(images, labels, draws, probes, chunk=self.chunk)


def _shared(item: MeasureItem) -> tuple[Any, ...]:
    """The fields that items with equal batches share."""
    return (item.on, item.batchnorm, item.data.split, item.size if item.measure.data else None)


def _tiles(
    items: Sequence[MeasureItem], places: Sequence[int], piece: int | None = None
) -> list[MeasureTile]:
    """The tiles of items with equal batches, in order: whole batches, or pieces of `piece` examples."""
    first = items[places[0]]
    n, size = (first.n, first.size[1]) if first.measure.data else (1, 1)
    step = min(piece or size, size)
    return [
        MeasureTile(place, start // size, range(begin, min(begin + step, start + size, n)))
        for start in range(0, n, size)
        for begin in range(start, min(start + size, n), step)
        for place in places
    ]


def tiles_for(items: Sequence[MeasureItem], run: Run) -> list[MeasureTile]:
    """The tiles of all items that workers can share.

    Measures that are sums over images are cut into chunks of `chunk` images, as a single process does. For
    other measures a batch is one tile.
    """
    chunk = run.settings.batch or CHUNK.get(resources.kind(run).type, CHUNK["cpu"])
    groups: dict[Any, list[int]] = {}
    for place, item in enumerate(items):
        of_images = bool(item.measure.of_images and item.batchnorm != "batch")
        groups.setdefault((_shared(item), of_images), []).append(place)
    return [
        tile
        for (_, of_images), places in groups.items()
        for tile in _tiles(items, places, chunk if of_images else None)
    ]


def _joined(
    items: Sequence[MeasureItem], results: Mapping[MeasureTile, TileResult]
) -> Iterator[tuple[int, list[Value], float]]:
    """The position, values and seconds of every item with results of tiles, in their order."""
    for place in dict.fromkeys(tile.place for tile in results):
        measure, batches = items[place].measure, dict[int, list[MeasureTile]]()
        for tile in results:
            if tile.place == place:
                batches.setdefault(tile.batch, []).append(tile)
        parts = [measure.joined([results[tile].result for tile in tiles]) for tiles in batches.values()]
        sizes = [sum(len(tile.examples) for tile in tiles) for tiles in batches.values()]
        seconds = sum(results[tile].seconds for tiles in batches.values() for tile in tiles)
        yield place, measure.values(parts, sizes), seconds


def _stored(data: bytes | None) -> TileResult | None:
    """A tile's result as it was stored; None for damaged data."""
    try:
        result, seconds = json.loads(data or b"")
        return TileResult(dict(result), float(seconds))
    except (ValueError, TypeError):
        return None


class AttackedBatch:
    """A batch with its adversarial images, computed on first use."""

    def __init__(self, model: nn.Module, clean: MeasureBatch, seed: int, together: bool = False) -> None:
        self.model, self.clean, self.seed, self.together = model, clean, seed, together
        self.made: dict[tuple[Any, int], Tensor] = {}

    def batch(self, job: MeasureItem, chunk: int) -> MeasureBatch:
        """The batch with the adversarial images that the job's measure needs."""
        clean = self.clean
        chunk = len(clean) if self.together else chunk
        perturbed = self._after(job.attack, 1, chunk) if job.measure.attacks > 0 else None
        twice = self._after(job.attack, 2, chunk) if job.measure.attacks > 1 else None
        extra = perturbed, twice, chunk, self.together
        return MeasureBatch(clean.images, clean.labels, clean.draws, clean.probes, *extra)

    def _after(self, attack: Attack, times: int, chunk: int) -> Tensor:
        """The images after `times` attacks, each within eps of its start."""
        if (attack, times) not in self.made:
            start = self.clean.images if times == 1 else self._after(attack, times - 1, chunk)
            stream = f"attack.{attack.name}" + (f"/{times}" if times > 1 else "")
            draws = Draws(self.seed, stream, self.clean.draws.examples)
            rows = torch.arange(len(start), device=start.device)
            parts = []
            for some in rows.split(chunk):
                counting = CountingModel(self.model, chunk)
                perturbed, _ = lattice.run(
                    attack, counting, start[some], self.clean.labels[some], draws.take(some)
                )
                parts.append(lattice.project(perturbed, start[some], attack))
            self.made[attack, times] = torch.cat(parts)
        return self.made[attack, times]
