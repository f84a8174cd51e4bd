"""The one loop of every evaluator: fixed tiles of examples through the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from rbtools import datasets
from rbtools.engine import subject
from rbtools.engine.draws import Draws
from rbtools.engine.outcomes import Outcomes
from rbtools.engine.questions import Column, Question
from rbtools.engine.run import Run
from rbtools.errors import RbError

# Examples that are computed together, whatever the memory batch. The size is part of what a
# record's numbers mean only through kernels' rounding, so it is fixed for each kind of device.
TILE = {"cpu": 128, "cuda": 512}


class Tile:
    """Some examples with all that a question needs to ask about them.

    images: float32 (N, C, H, W) in [0, 1]; labels: int64 (N,); ids: int64 (N,), the examples'
    places in their split, which their random numbers belong to.
    """

    def __init__(
        self, model: nn.Module, images: Tensor, labels: Tensor, ids: Tensor, *, seed: int, batch: int
    ) -> None:
        self.model, self.images, self.labels, self.ids = model, images, labels, ids
        self.seed, self.batch = seed, batch

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

    @cached_property
    def clean(self) -> Tensor:
        """Which of the unchanged images are classified right: bool (N,)."""
        return self.correct(self.images)

    def take(self, mask: Tensor) -> Tile:
        """The tile of the examples where mask is true."""
        return Tile(
            self.model,
            self.images[mask],
            self.labels[mask],
            self.ids[mask],
            seed=self.seed,
            batch=self.batch,
        )

    def parts(self) -> Iterator[Tile]:
        """This tile in pieces of at most `batch` examples, for work that keeps gradients."""
        for start in range(0, len(self.ids), self.batch):
            index = slice(start, start + self.batch)
            yield Tile(
                self.model,
                self.images[index],
                self.labels[index],
                self.ids[index],
                seed=self.seed,
                batch=self.batch,
            )


def fill(
    model: nn.Module,
    data: subject.Data,
    question: Question,
    columns: Sequence[Column],
    outcomes: Sequence[Outcomes],
    n: int,
    device: torch.device,
    run: Run,
) -> None:
    """Compute the outcomes that are missing among the first n examples, tile by tile.

    Examples are met in one fixed, class-balanced order (`Data.order`); tiles are consecutive
    pieces of it, so that neither n nor the memory batch decides which examples meet.
    """
    dataset = data.load()
    order = data.order(dataset.labels)[:n]
    size = TILE.get(device.type, TILE["cpu"])
    batch = min(run.batch or size, size)
    with _kept(outcomes):
        for start in range(0, n, size):
            positions = order[start : start + size]
            stop = start + len(positions)
            wanted = [i for i, one in enumerate(outcomes) if len(one) < stop]
            if not wanted:
                continue
            run.pulse()
            skip = min(len(outcomes[i]) for i in wanted) - start
            ids = positions[max(skip, 0) :]
            run.progress(f"{question.title}  {start + max(skip, 0)}/{n} images")
            begun = time.perf_counter()
            found, batch = _measured(
                question,
                [columns[i] for i in wanted],
                lambda size: _tile(model, dataset, ids, device, run.seed, size),  # noqa: B023
                batch,
            )
            arrays = [_host(values) for values in found]  # waits for the device
            seconds = time.perf_counter() - begun
            for i, values in zip(wanted, arrays, strict=True):
                known = len(outcomes[i]) - (stop - len(ids))
                outcomes[i].extend(values[known:], seconds, device.type)


def _measured(
    question: Question, columns: Sequence[Column], tile: Callable[[int], Tile], batch: int
) -> tuple[list[Tensor], int]:
    """Outcomes of a tile, and the batch that memory allowed: halved for as long as it runs out."""
    while True:
        try:
            return question.measure(tile(batch), columns), batch
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


def _tile(
    model: nn.Module, dataset: datasets.Dataset, ids: Tensor, device: torch.device, seed: int, batch: int
) -> Tile:
    images = dataset.images[ids].to(device).float().div(255)
    labels = dataset.labels[ids].to(device)
    return Tile(model, images, labels, ids.to(device), seed=seed, batch=batch)


def _host(values: Tensor) -> np.ndarray:
    array: np.ndarray = values.to(torch.int32).cpu().numpy()
    return array


@contextmanager
def _kept(outcomes: Sequence[Outcomes]) -> Iterator[None]:
    """Keep what was found, also when the work is interrupted."""
    try:
        yield
    finally:
        for one in outcomes:
            one.keep()
