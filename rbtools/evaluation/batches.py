"""The one loop of every evaluator: fixed batches of examples through the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rbtools import datasets
from rbtools.errors import RbError
from rbtools.evaluation import fast_model
from rbtools.evaluation.outcomes import Outcomes
from rbtools.evaluation.tasks import EvalTask, Output
from rbtools.execution import precision
from rbtools.execution.context import Pace, RunContext
from rbtools.execution.device import out_of_memory
from rbtools.inputs import resolve
from rbtools.rng.draws import Draws

# Examples that are attacked together, whatever the memory batch, for images of 32x32 and more; of smaller
# ones more. The size is part of what a record's numbers mean only through kernels' rounding, so it is fixed
# for each kind of device and size of image.
BATCH = {"cpu": 128, "cuda": 2048}
# Images that go through the model at once. Less than a batch: as broken examples leave, batches stay full.
CHUNK = {"cpu": 64, "cuda": 512}
# Where an attack draws for a batch as a whole (AutoAttack's own code), batches are the same size everywhere.
REFERENCE_BATCH = 128
# A call costs the same however small the images are: 8x8 pixels take half the time each in batches of 512
# (0.065 ms in float32, 0.037 in bf16 against 0.11 and 0.07 in batches of 64; a cell network on AMD EPYC).
_PIXELS, _MOST = 32 * 32, 4


def batch_size(device: torch.device, shape: Sequence[int]) -> int:
    """How many images (C, H, W) of this shape are attacked together."""
    return BATCH.get(device.type, BATCH["cpu"]) * min(_smaller(shape), _MOST)


def default_chunk_size(device: torch.device, shape: Sequence[int]) -> int:
    """How many images (C, H, W) of this shape go through a model at once, where nothing else is asked."""
    return min(CHUNK.get(device.type, CHUNK["cpu"]) * _smaller(shape), batch_size(device, shape))


def _smaller(shape: Sequence[int]) -> int:
    """How many images of this shape have the pixels of one of 32x32; 1 for larger ones."""
    return max(_PIXELS // (shape[-2] * shape[-1]), 1)


class Batch:
    """Some examples with all that a question needs to ask about them.

    images: float32 (N, C, H, W) in [0, 1]; labels: int64 (N,); ids: int64 (N,), the examples'
    places in their split, which their random numbers belong to. `model` decides; `fast_model` is the same
    function, perhaps prepared to be faster and less exact. `precomputed`: outcomes (N,) of outputs that need
    not be measured.
    """

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        ids: Tensor,
        *,
        seed: int,
        chunk_size: int,
        fast_model: nn.Module | None = None,
        precomputed: Mapping[Any, Tensor] | None = None,
    ) -> None:
        self.model, self.images, self.labels, self.ids = model, images, labels, ids
        self.seed, self.chunk_size = seed, chunk_size
        self.fast_model = model if fast_model is None else fast_model
        self.precomputed = precomputed or {}

    def draws(self, stream: str) -> Draws:
        """Random numbers for these examples, independent of every other stream."""
        return Draws(self.seed, stream, self.ids)

    def logits(self, images: Tensor) -> Tensor:
        """Logits (N, K) in float32, at most `chunk_size` images at a time. RbError where not finite."""
        with torch.no_grad():
            logits = torch.cat([self.model(part).float() for part in images.split(self.chunk_size)])
        if not torch.isfinite(logits).all():
            first = int((~torch.isfinite(logits)).any(1).nonzero()[0])
            raise RbError(
                f"The model's output for image {int(self.ids[first])} is not finite (NaN or infinity)."
                " Check its weights and its normalisation."
            )
        return logits

    def correct(self, images: Tensor) -> Tensor:
        """Which images (N, ...) of these examples the model classifies right: bool (N,)."""
        return self.logits(images).argmax(1).eq(self.labels)

    def judged(self, model: nn.Module, images: Tensor) -> Tensor:
        """Which images (N, ...) another model classifies right: bool (N,)."""
        with torch.no_grad():
            found = torch.cat([model(part).argmax(1) for part in images.split(self.chunk_size)])
        return found.eq(self.labels)

    @cached_property
    def clean_logits(self) -> Tensor:
        """The logits (N, K) of the unchanged images."""
        return self.logits(self.images)

    @cached_property
    def clean(self) -> Tensor:
        """Which of the unchanged images are classified right: bool (N,)."""
        return self.clean_logits.argmax(1).eq(self.labels)

    def take(self, rows: Tensor | slice) -> Batch:
        """The batch of some of the examples: where a mask is true, or a slice."""
        return Batch(
            self.model,
            self.images[rows],
            self.labels[rows],
            self.ids[rows],
            seed=self.seed,
            chunk_size=self.chunk_size,
            fast_model=self.fast_model,
        )


class Outcome(NamedTuple):
    """What a task gives for an output and a batch: outcomes (N,), or rows (N, R), sums over them (the
    seconds of the batch where it names none), and the images (N, C, H, W) that were made, to be saved.
    """

    values: Tensor
    totals: dict[str, float]
    images: Tensor | None = None


def fill(
    model: nn.Module,
    data: resolve.Data,
    task: EvalTask,
    outputs: Sequence[Output],
    outcomes: Sequence[Outcomes],
    n: int,
    device: torch.device,
    run: RunContext,
    save: Callable[[Any, Tensor, Outcome], None] | None = None,
) -> None:
    """Compute the outcomes that are missing among the first n examples, batch by batch.

    Examples are met in one fixed, class-balanced order (`Data.order`); batches are consecutive
    pieces of it, so that neither n nor the memory batch decides which examples meet. `save` is given a
    output, the numbers of examples and what was found, wherever images were made to be saved.
    """
    dataset = data.load()
    order = data.order(dataset.labels)[:n]
    whole = any(output.batch_dependent for output in outputs)
    size = REFERENCE_BATCH if whole else batch_size(device, data.about.shape)
    chunk_size = min(run.batch or default_chunk_size(device, data.about.shape), size)
    with run.clock.stage("preparation"):
        search, how, _ = _searched(model, outputs, data.about.shape, run)
    pace = Pace(n, min(map(len, outcomes)))
    with _kept(outcomes):
        for start in range(0, n, size):
            stop = min(start + size, n)
            for begin, wanted in _missing(outcomes, start, stop):
                run.check_cancelled()
                run.progress(_words(task.title, begin, n, pace, outputs, outcomes))
                ids = order[begin:stop]
                known = {
                    output: torch.from_numpy(one.values(stop)[begin:]).to(device)
                    for output, one in zip(outputs, outcomes, strict=True)
                    if len(one) >= stop
                }
                begun = time.perf_counter()
                found, chunk_size = _measured(
                    task,
                    [outputs[i] for i in wanted],
                    lambda size: _batch(model, search, dataset, ids, device, run.seed, size, known),  # noqa: B023
                    chunk_size,
                )
                arrays = [one.values.cpu().numpy() for one in found]  # waits for the device
                seconds = time.perf_counter() - begun
                for i, one, values in zip(wanted, found, arrays, strict=True):
                    prepared = how if outputs[i].allow_fast_model else ()
                    outcomes[i].extend(values, {"seconds": seconds, **one.totals}, device.type, prepared)
                    if one.images is not None and save is not None:
                        save(outputs[i], ids, one)


def _words(
    title: str, done: int, n: int, pace: Pace, outputs: Sequence[Output], outcomes: Sequence[Outcomes]
) -> str:
    """What the status line says: how far it is, the pace, and what was found so far."""
    parts = [title, f"{done}/{n} images", pace.words(done)]
    for output, one in zip(outputs, outcomes, strict=True):
        if done and not output.implicit and hasattr(output, "metric") and len(one) >= done:
            entry = output.entries(one.values(done), one.totals)[0]
            parts.append(f"{entry['metric']} {entry['value']:.3f}")
    return "  ".join(filter(None, parts))


def _missing(outcomes: Sequence[Outcomes], start: int, stop: int) -> list[tuple[int, list[int]]]:
    """What a batch lacks: from which example on, and which outputs, those known furthest first.

    Columns that are known equally far are measured together; none is measured twice on an example, so
    that sums over examples stay sums, and what others lean on is there before them.
    """
    groups: dict[int, list[int]] = {}
    for i, one in enumerate(outcomes):
        if len(one) < stop:
            groups.setdefault(max(len(one), start), []).append(i)
    return sorted(groups.items(), reverse=True)


def _measured(
    task: EvalTask, outputs: Sequence[Output], batch: Callable[[int], Batch], chunk_size: int
) -> tuple[list[Outcome], int]:
    """Outcomes of a batch, and the batch that memory allowed: halved for as long as it runs out."""
    while True:
        try:
            found = task.run(batch(chunk_size), outputs)
            return [one if isinstance(one, Outcome) else Outcome(one, {}) for one in found], chunk_size
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            if chunk_size == 1:
                raise RbError(
                    "Memory ran out with one image at a time. Use a larger device, or --device cpu."
                ) from error
        chunk_size = max(chunk_size // 2, 1)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _searched(
    model: nn.Module, outputs: Sequence[Output], shape: tuple[int, int, int], run: RunContext
) -> fast_model.FastModel:
    """The model that searches run on: prepared where an output asks for one."""
    if not (run.prepare and any(output.allow_fast_model for output in outputs)):
        return fast_model.FastModel(model, ())
    found = fast_model.make_fast_model(model, precision.resolve(run), shape, compiled=run.compile)
    if found.refusal is not None:
        run.notify(
            f"warning: the network is searched as it is, in float32, because {found.refusal}. Searches take"
            " longer; verdicts are the same."
        )
    return found


def _batch(
    model: nn.Module,
    fast_model: nn.Module,
    dataset: datasets.Dataset,
    ids: Tensor,
    device: torch.device,
    seed: int,
    chunk_size: int,
    precomputed: Mapping[Any, Tensor],
) -> Batch:
    images = dataset.images[ids].to(device).float().div(255)
    labels = dataset.labels[ids].to(device)
    ids = ids.to(device)
    return Batch(
        model,
        images,
        labels,
        ids,
        seed=seed,
        chunk_size=chunk_size,
        fast_model=fast_model,
        precomputed=precomputed,
    )


@contextmanager
def _kept(outcomes: Sequence[Outcomes]) -> Iterator[None]:
    """Keep what was found, also when the work is interrupted."""
    try:
        yield
    finally:
        for one in outcomes:
            one.keep()
