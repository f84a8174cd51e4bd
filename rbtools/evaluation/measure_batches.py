"""Computation of measures: networks, batches, and the adversarial images that measures request."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools import spaces
from rbtools.attacks import steps
from rbtools.errors import RbError
from rbtools.evaluation.batches import CHUNK
from rbtools.evaluation.fast_model import CountingModel
from rbtools.execution.context import RunContext
from rbtools.execution.device import out_of_memory
from rbtools.inputs import resolve
from rbtools.inputs.data import Data
from rbtools.lazy import nn, torch
from rbtools.measures import batchnorm
from rbtools.measures.base import MeasureBatch
from rbtools.rng.draws import Draws
from rbtools.trainer import init

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.base import Attack
    from rbtools.measures.base import BatchResult, Value


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
        """The BatchNorm statistics, left out without a choice and for running ones on trained weights."""
        usual = self.measure.batchnorm is None or (self.on, self.batchnorm) == ("trained", "running")
        return {} if usual else {"batchnorm": self.batchnorm}

    @property
    def random(self) -> bool:
        return bool(self.measure.random or (self.attack is not None and self.attack.random))


def arch_of(record: dict[str, Any], data: Data) -> dict[str, Any]:
    """The architecture as for a new training: without the fields that describe a weight file."""
    arch = {key: value for key, value in record["arch"].items() if key not in ("member", "normalize")}
    return spaces.describe(arch, data.about.classes, data.about.shape)


class Measuring:
    """All measures of one record: each network is built once, each batch attacked once for all measures."""

    def __init__(self, record: dict[str, Any], init_seed: int, run: RunContext, device: torch.device) -> None:
        self.record, self.init_seed, self.run, self.device = record, init_seed, run, device
        self.chunk = run.batch or CHUNK.get(device.type, CHUNK["cpu"])
        self.models: dict[tuple[str, str], tuple[nn.Module, bool]] = {}

    def all(self, jobs: Sequence[tuple[Any, MeasureItem]]) -> Iterator[tuple[Any, list[Value], float]]:
        """The values of each job, and its seconds; jobs on the same batches share a pass over them."""
        groups: dict[Any, list[tuple[Any, MeasureItem]]] = {}
        for place, job in jobs:
            key = (job.on, job.batchnorm, job.data.split, job.size if job.measure.data else None)
            groups.setdefault(key, []).append((place, job))
        for group in groups.values():
            yield from self._group(group)

    def _group(self, jobs: list[tuple[Any, MeasureItem]]) -> Iterator[tuple[Any, list[Value], float]]:
        first = jobs[0][1]
        model, together = self._model(first)
        results: list[list[BatchResult]] = [[] for _ in jobs]
        seconds = [0.0 for _ in jobs]
        sizes = []
        for number, batch in enumerate(self._batches(first)):
            sizes.append(len(batch))
            attacked = AttackedBatch(model, batch, self.run.seed, together)
            for place, (_, job) in enumerate(jobs):
                self.run.check_cancelled()
                self.run.progress(f"{job.measure.name}  batch {number + 1}")
                start = time.perf_counter()
                results[place].append(self._measured(model, job, attacked))
                seconds[place] += time.perf_counter() - start
        for (place, job), parts, spent in zip(jobs, results, seconds, strict=True):
            yield place, job.measure.values(parts, sizes), spent

    def _measured(self, model: nn.Module, job: MeasureItem, attacked: AttackedBatch) -> BatchResult:
        """A measure of one batch; each time memory runs out, with fewer images at once."""
        while True:
            try:
                # In TF32 rounding errors would dominate the curvature.
                with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
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
                arch, allowed = arch_of(self.record, job.data), self.run.allow_code
                model = init.fresh(arch, job.data.about, self.init_seed, allow_code=allowed)
                model = model.to(self.device).eval().requires_grad_(False)
            self.models[key] = model, batchnorm.use(model, job.batchnorm)
        return self.models[key]

    def _batches(self, job: MeasureItem) -> Iterator[MeasureBatch]:
        """Consecutive pieces of the order of the split; one black image for measures without data."""
        if not job.measure.data:
            ids = torch.zeros(1, dtype=torch.int64, device=self.device)
            yield self._batch(torch.zeros(1, *job.data.about.shape, device=self.device), ids, ids, 0)
            return
        dataset = job.data.load()
        for number, ids in enumerate(job.data.order(dataset.labels)[: job.n].split(job.size[1])):
            images = dataset.images[ids].to(self.device).float().div(255)
            yield self._batch(images, dataset.labels[ids].to(self.device), ids.to(self.device), number)

    def _batch(self, images: Tensor, labels: Tensor, ids: Tensor, number: int) -> MeasureBatch:
        draws = Draws(self.run.seed, "measure", ids)
        probes = Draws(self.run.seed, "measure.batch", torch.tensor([number], device=self.device))
        return MeasureBatch(images, labels, draws, probes, chunk=self.chunk)


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
                perturbed = attack(counting, start[some], self.clean.labels[some], draws.take(some))
                parts.append(steps.project(perturbed.detach().float(), start[some], attack.eps, attack.norm))
            self.made[attack, times] = torch.cat(parts)
        return self.made[attack, times]
