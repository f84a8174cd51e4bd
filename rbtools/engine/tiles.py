"""The one loop of every evaluator: fixed tiles of examples through the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rbtools import datasets
from rbtools.engine import precision, prepare, subject
from rbtools.engine.draws import Draws
from rbtools.engine.outcomes import Outcomes
from rbtools.engine.pace import Pace
from rbtools.engine.questions import Column, Question
from rbtools.engine.run import Run
from rbtools.errors import RbError

# Examples that are attacked together, whatever the memory batch, for images of 32x32 and more; of smaller
# ones more. The size is part of what a record's numbers mean only through kernels' rounding, so it is fixed
# for each kind of device and size of image.
TILE = {"cpu": 128, "cuda": 2048}
# Images that go through the model at once. Less than a tile: as broken examples leave, batches stay full.
BATCH = {"cpu": 64, "cuda": 512}
# Where an attack draws for a tile as a whole (AutoAttack's own code), tiles are the same size everywhere.
WHOLE = 128
# A call costs the same however small the images are: 8x8 pixels take half the time each in batches of 512
# (0.065 ms in float32, 0.037 in bf16 against 0.11 and 0.07 in batches of 64; a cell network on AMD EPYC).
_PIXELS, _MOST = 32 * 32, 4


def tile_size(device: torch.device, shape: Sequence[int]) -> int:
    """How many images (C, H, W) of this shape are attacked together."""
    return TILE.get(device.type, TILE["cpu"]) * min(_smaller(shape), _MOST)


def batch_size(device: torch.device, shape: Sequence[int]) -> int:
    """How many images (C, H, W) of this shape go through a model at once, where nothing else is asked."""
    return min(BATCH.get(device.type, BATCH["cpu"]) * _smaller(shape), tile_size(device, shape))


def _smaller(shape: Sequence[int]) -> int:
    """How many images of this shape have the pixels of one of 32x32; 1 for larger ones."""
    return max(_PIXELS // (shape[-2] * shape[-1]), 1)


class Tile:
    """Some examples with all that a question needs to ask about them.

    images: float32 (N, C, H, W) in [0, 1]; labels: int64 (N,); ids: int64 (N,), the examples'
    places in their split, which their random numbers belong to. `model` decides; `search` is the same
    function, perhaps prepared to be faster and less exact. `known`: outcomes (N,) of columns that need
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
        batch: int,
        search: nn.Module | None = None,
        known: Mapping[Any, Tensor] | None = None,
    ) -> None:
        self.model, self.images, self.labels, self.ids = model, images, labels, ids
        self.seed, self.batch = seed, batch
        self.search = model if search is None else search
        self.known = known or {}

    def draws(self, stream: str) -> Draws:
        """Random numbers for these examples, independent of every other stream."""
        return Draws(self.seed, stream, self.ids)

    def logits(self, images: Tensor) -> Tensor:
        """Logits (N, K) in float32, at most `batch` images at a time. RbError where not finite."""
        with torch.no_grad():
            logits = torch.cat([self.model(part).float() for part in images.split(self.batch)])
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
            found = torch.cat([model(part).argmax(1) for part in images.split(self.batch)])
        return found.eq(self.labels)

    @cached_property
    def clean_logits(self) -> Tensor:
        """The logits (N, K) of the unchanged images."""
        return self.logits(self.images)

    @cached_property
    def clean(self) -> Tensor:
        """Which of the unchanged images are classified right: bool (N,)."""
        return self.clean_logits.argmax(1).eq(self.labels)

    def take(self, rows: Tensor | slice) -> Tile:
        """The tile of some of the examples: where a mask is true, or a slice."""
        return Tile(
            self.model,
            self.images[rows],
            self.labels[rows],
            self.ids[rows],
            seed=self.seed,
            batch=self.batch,
            search=self.search,
        )


class Found(NamedTuple):
    """What a question gives for a column and a tile: outcomes (N,), or rows (N, R), sums over them (the
    seconds of the tile where it names none), and the images (N, C, H, W) that were made, to be saved.
    """

    values: Tensor
    totals: dict[str, float]
    images: Tensor | None = None


def fill(
    model: nn.Module,
    data: subject.Data,
    question: Question,
    columns: Sequence[Column],
    outcomes: Sequence[Outcomes],
    n: int,
    device: torch.device,
    run: Run,
    save: Callable[[Any, Tensor, Found], None] | None = None,
) -> None:
    """Compute the outcomes that are missing among the first n examples, tile by tile.

    Examples are met in one fixed, class-balanced order (`Data.order`); tiles are consecutive
    pieces of it, so that neither n nor the memory batch decides which examples meet. `save` is given a
    column, the numbers of examples and what was found, wherever images were made to be saved.
    """
    dataset = data.load()
    order = data.order(dataset.labels)[:n]
    whole = any(column.whole_tiles for column in columns)
    size = WHOLE if whole else tile_size(device, data.about.shape)
    batch = min(run.batch or batch_size(device, data.about.shape), size)
    with run.clock.stage("preparation"):
        search, how, _ = _searched(model, columns, data.about.shape, run)
    pace = Pace(n, min(map(len, outcomes)))
    with _kept(outcomes):
        for start in range(0, n, size):
            stop = min(start + size, n)
            for begin, wanted in _missing(outcomes, start, stop):
                run.pulse()
                run.progress(_words(question.title, begin, n, pace, columns, outcomes))
                ids = order[begin:stop]
                known = {
                    column: torch.from_numpy(one.values(stop)[begin:]).to(device)
                    for column, one in zip(columns, outcomes, strict=True)
                    if len(one) >= stop
                }
                begun = time.perf_counter()
                found, batch = _measured(
                    question,
                    [columns[i] for i in wanted],
                    lambda size: _tile(model, search, dataset, ids, device, run.seed, size, known),  # noqa: B023
                    batch,
                )
                arrays = [one.values.cpu().numpy() for one in found]  # waits for the device
                seconds = time.perf_counter() - begun
                for i, one, values in zip(wanted, found, arrays, strict=True):
                    prepared = how if columns[i].searches else ()
                    outcomes[i].extend(values, {"seconds": seconds, **one.totals}, device.type, prepared)
                    if one.images is not None and save is not None:
                        save(columns[i], ids, one)


def _words(
    title: str, done: int, n: int, pace: Pace, columns: Sequence[Column], outcomes: Sequence[Outcomes]
) -> str:
    """What the status line says: how far it is, the pace, and what was found so far."""
    parts = [title, f"{done}/{n} images", pace.words(done)]
    for column, one in zip(columns, outcomes, strict=True):
        if done and not column.byproduct and hasattr(column, "metric") and len(one) >= done:
            entry = column.entries(one.values(done), one.totals)[0]
            parts.append(f"{entry['metric']} {entry['value']:.3f}")
    return "  ".join(filter(None, parts))


def _missing(outcomes: Sequence[Outcomes], start: int, stop: int) -> list[tuple[int, list[int]]]:
    """What a tile lacks: from which example on, and which columns, those known furthest first.

    Columns that are known equally far are measured together; none is measured twice on an example, so
    that sums over examples stay sums, and what others lean on is there before them.
    """
    groups: dict[int, list[int]] = {}
    for i, one in enumerate(outcomes):
        if len(one) < stop:
            groups.setdefault(max(len(one), start), []).append(i)
    return sorted(groups.items(), reverse=True)


def _measured(
    question: Question, columns: Sequence[Column], tile: Callable[[int], Tile], batch: int
) -> tuple[list[Found], int]:
    """Outcomes of a tile, and the batch that memory allowed: halved for as long as it runs out."""
    while True:
        try:
            found = question.measure(tile(batch), columns)
            return [one if isinstance(one, Found) else Found(one, {}) for one in found], batch
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            if batch == 1:
                raise RbError(
                    "Memory ran out with one image at a time. Use a larger device, or --device cpu."
                ) from error
        batch = max(batch // 2, 1)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def out_of_memory(error: RuntimeError) -> bool:
    """Whether torch says that there was no memory left, on whatever device."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _searched(
    model: nn.Module, columns: Sequence[Column], shape: tuple[int, int, int], run: Run
) -> prepare.Prepared:
    """The model that searches run on: prepared where a column asks for one."""
    if not (run.prepare and any(column.searches for column in columns)):
        return prepare.Prepared(model, ())
    found = prepare.prepared(model, precision.resolve(run), shape, compiled=run.compile)
    if found.refusal is not None:
        run.remark(
            f"warning: the network is searched as it is, in float32, because {found.refusal}. Searches take"
            " longer; verdicts are the same."
        )
    return found


def _tile(
    model: nn.Module,
    search: nn.Module,
    dataset: datasets.Dataset,
    ids: Tensor,
    device: torch.device,
    seed: int,
    batch: int,
    known: Mapping[Any, Tensor],
) -> Tile:
    images = dataset.images[ids].to(device).float().div(255)
    labels = dataset.labels[ids].to(device)
    ids = ids.to(device)
    return Tile(model, images, labels, ids, seed=seed, batch=batch, search=search, known=known)


@contextmanager
def _kept(outcomes: Sequence[Outcomes]) -> Iterator[None]:
    """Keep what was found, also when the work is interrupted."""
    try:
        yield
    finally:
        for one in outcomes:
            one.keep()
