"""The loop over fixed batches of examples that every evaluation uses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rbtools.datasets import streaming
from rbtools.errors import RbError
from rbtools.evaluation import divide
from rbtools.evaluation.base import Batch, EvalTask, Outcome, Output
from rbtools.evaluation.outcomes import Outcomes, Part
from rbtools.execution import precision
from rbtools.execution.device import environment, out_of_memory
from rbtools.execution.run import Run
from rbtools.inputs.data import Data
from rbtools.lazy import nn, np, torch
from rbtools.report import Pace

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.evaluation.fast_model import FastModel


# Examples that are attacked together, independent of the memory batch, for images of 32x32 and larger;
# smaller images allow more. The size changes results through the rounding of kernels only, so it is fixed for
# each kind of device and size of image.
BATCH = {"cpu": 128, "cuda": 2048}
# Images that go through the model at once: fewer than a batch, so that chunks stay full as examples drop out.
CHUNK = {"cpu": 64, "cuda": 512}
# If an attack draws for the whole batch (AutoAttack's own code), batches have the same size everywhere.
REFERENCE_BATCH = 128
# The smallest tile of an evaluation that several workers share, as a part of a batch. Less than a batch only
# on a CPU, whose kernels give an image the same bits beside any others, if these are more than a few (3 of
# 32x32 pixels, 13 of 8x8). 32 images take up to 4 % longer each than 64, and 16 up to 13 % (cell networks on
# AMD EPYC). On a GPU kernels depend on how many images there are, and small batches leave it idle.
TILES_OF_BATCH = {"cpu": 4}
# The overhead of a call does not depend on the size of the images: 8x8 pixels take half the time each in
# batches of 512 (0.065 ms in float32, 0.037 in bf16 against 0.11 and 0.07 in batches of 64; a cell network on
# AMD EPYC).
_PIXELS, _MOST = 32 * 32, 4


def batch_size(device: torch.device, shape: Sequence[int]) -> int:
    """How many images (C, H, W) of this shape are attacked together."""
    return BATCH.get(device.type, BATCH["cpu"]) * min(_smaller(shape), _MOST)


def default_chunk_size(device: torch.device, shape: Sequence[int]) -> int:
    """How many images (C, H, W) of this shape go through a model at once without --batch."""
    return min(CHUNK.get(device.type, CHUNK["cpu"]) * _smaller(shape), batch_size(device, shape))


def _smaller(shape: Sequence[int]) -> int:
    """How many images of this shape have as many pixels as one of 32x32; 1 for larger images."""
    return max(_PIXELS // (shape[-2] * shape[-1]), 1)


def fill(
    model: nn.Module,
    data: Data,
    task: EvalTask,
    outputs: Sequence[Output],
    outcomes: Sequence[Outcomes],
    n: int,
    device: torch.device,
    run: Run,
    save: Callable[[Any, Tensor, Outcome], None] | None = None,
    *,
    helping: bool = False,
) -> None:
    """Compute the outcomes that are missing among the first n examples, batch by batch.

    Examples come in one fixed, class-balanced order (`Data.order`); batches are consecutive pieces of it, so
    that neither n nor the memory batch changes which examples share a batch. `save` receives an output, the
    ids of the examples and the outcome wherever the outcome has images. With `divide` other processes
    compute some of the batches (`divide`); `helping`: this one is such a process.
    """
    from rbtools.models import cuda_graphs  # imports torch

    dataset = data.load()
    order = data.order(dataset.labels)[:n]
    pixels, labels = streaming.batchwise(dataset.images, device), dataset.labels.to(device)
    size = _together(outputs, device, data.about.shape)
    chunk_size = min(
        run.settings.batch or default_chunk_size(device, data.about.shape), size * _copies(outputs)
    )
    with run.report.clock.stage("preparation"):
        fast, fast_steps, *_ = _searched(model, outputs, data.about.shape, run)
    place = environment(device)
    pace = Pace(n, min(map(len, outcomes)))
    title = (
        f"{task.title} seed {run.settings.seed}" if any(output.random for output in outputs) else task.title
    )

    def progress(done: int) -> None:
        run.report.check_cancelled()
        run.report.progress(_words(title, done, n, pace, outputs, outcomes))

    def compute(batch: range) -> dict[int, Part]:
        """The outcomes that a batch lacks, by the position of their output."""
        nonlocal chunk_size
        parts: dict[int, Part] = {}
        for begin, wanted in _missing(outcomes, batch.start, batch.stop):
            ids = order[begin : batch.stop]
            precomputed = {
                outputs[i]: torch.from_numpy(values).to(device)
                for i, values in _known(outcomes, parts, begin, batch.stop)
            }
            start = time.perf_counter()
            results, chunk_size = _measured(
                task,
                [outputs[i] for i in wanted],
                lambda size: _batch(model, fast, pixels, labels, ids, run.settings.seed, size, precomputed),  # noqa: B023
                chunk_size,
                fast,
            )
            arrays = [result.values.cpu().numpy() for result in results]  # waits for the device
            seconds = time.perf_counter() - start
            run.report.after_batch(len(ids))
            for i, result, values in zip(wanted, results, arrays, strict=True):
                steps = fast_steps if outputs[i].allow_fast_model else ()
                totals = {"seconds": seconds, **result.totals}
                parts[i] = Part(values, totals, device.type, steps, place)
                if result.images is not None and save is not None:
                    save(outputs[i], ids, result)
        return parts

    with _kept(outcomes), cuda_graphs.released(fast):
        if is_divided(outputs, n, device, data.about.shape, run) and save is None:
            tiles = _tiles(outputs, n, device, data.about.shape, run)
            divide.fill(tiles, outcomes, compute, run, progress, helping=helping)
            return
        if (
            run.placement.divide
            and run.placement.workers > 1
            and any(output.batch_dependent for output in outputs)
        ):
            run.report.notify(
                f"{task.title} draws its random numbers for a whole batch, so one process computes all of it."
            )
        for batch in (range(start, min(start + size, n)) for start in range(0, n, size)):
            progress(batch.start)
            streaming.prefetch(pixels, _following(outcomes, order, batch.stop, size))
            for i, part in compute(batch).items():
                outcomes[i].extend(*part)


def _following(outcomes: Sequence[Outcomes], order: Tensor, start: int, size: int) -> Tensor:
    """The examples that the batch from `start` on will compute first; none if it lacks no outcome."""
    stop = min(start + size, len(order))
    first = [begin for begin, _ in _missing(outcomes, start, stop)][:1]
    return order[first[0] if first else stop : stop]


def is_divided(
    outputs: Sequence[Output], n: int, device: torch.device, shape: Sequence[int], run: Run
) -> bool:
    """Whether several processes share the batches: not if an attack draws for the whole batch."""
    whole = any(output.batch_dependent for output in outputs)
    return run.placement.divide and not whole and len(_tiles(outputs, n, device, shape, run)) > 1


def _tiles(
    outputs: Sequence[Output], n: int, device: torch.device, shape: Sequence[int], run: Run
) -> list[range]:
    """The first n examples cut into what a worker takes at once: the batches, or where their size shows in
    no outcome, batches and smaller tiles towards the end.
    """
    batch = _together(outputs, device, shape)
    fixed = run.placement.workers <= 1 or any(output.fixed_batches for output in outputs)
    smallest = batch if fixed else max(batch // TILES_OF_BATCH.get(device.type, 1), 1)
    tiles, start = [], 0
    while start < n:
        # Half of a worker's share of what is left, so that workers end at about the same time.
        size = min(max((n - start) // (2 * max(run.placement.workers, 1)), smallest), batch)
        stop = n if n - start < min(batch, size + smallest // 2) else min(start + size, n)
        tiles.append(range(start, stop))
        start = stop
    return tiles


def _together(outputs: Sequence[Output], device: torch.device, shape: Sequence[int]) -> int:
    """How many images (C, H, W) are attacked together."""
    whole = any(output.batch_dependent for output in outputs)
    return REFERENCE_BATCH if whole else max(batch_size(device, shape) // _copies(outputs), 1)


def _copies(outputs: Sequence[Output]) -> int:
    """How many copies of each image go through the network together."""
    return max(output.copies_together for output in outputs)


def _known(
    outcomes: Sequence[Outcomes], parts: Mapping[int, Part], begin: int, stop: int
) -> Iterator[tuple[int, np.ndarray]]:
    """The outputs whose outcomes of the examples from `begin` to `stop` are known, by their position."""
    for i, known in enumerate(outcomes):
        stored = known.values(stop)[begin:]
        if len(known) >= stop:
            yield i, stored
        elif i in parts:
            values = parts[i].values
            yield i, np.concatenate([stored, values]) if len(stored) else values


def _words(
    title: str, done: int, n: int, pace: Pace, outputs: Sequence[Output], outcomes: Sequence[Outcomes]
) -> str:
    """The status line: images done, the pace, and the accuracies so far."""
    parts = [title, f"image {done}/{n}", pace.words(done)]
    for output, known in zip(outputs, outcomes, strict=True):
        if done and not output.implicit and output.metric is not None and len(known) >= done:
            entry = output.entries(known.values(done), known.totals)[0]
            parts.append(f"{entry['metric']} {entry['value']:.3f}")
    return " · ".join(filter(None, parts))


def _missing(outcomes: Sequence[Outcomes], start: int, stop: int) -> list[tuple[int, list[int]]]:
    """The outputs that a batch lacks, grouped by the first missing example, the most complete group first.

    Outputs that are equally complete are measured together; none is measured twice on an example, so that
    sums over examples stay correct, and outputs that others need are measured before them.
    """
    groups: dict[int, list[int]] = {}
    for i, known in enumerate(outcomes):
        if len(known) < stop:
            groups.setdefault(max(len(known), start), []).append(i)
    return sorted(groups.items(), reverse=True)


def _measured(
    task: EvalTask,
    outputs: Sequence[Output],
    batch: Callable[[int], Batch],
    chunk_size: int,
    fast: nn.Module,
) -> tuple[list[Outcome], int]:
    """Outcomes of a batch, and the chunk size that memory allowed: halved each time memory runs out."""
    from rbtools.models import cuda_graphs  # imports torch

    while True:
        try:
            results = task.run(batch(chunk_size), outputs)
            return [
                result if isinstance(result, Outcome) else Outcome(result, {}) for result in results
            ], chunk_size
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            if chunk_size == 1:
                raise RbError(
                    "Memory ran out with one image at a time. Use a larger device, or --device cpu."
                ) from error
        chunk_size = max(chunk_size // 2, 1)
        cuda_graphs.release(fast)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _searched(
    model: nn.Module, outputs: Sequence[Output], shape: tuple[int, int, int], run: Run
) -> FastModel:
    """The model that attacks run on: a fast copy where an output allows one."""
    from rbtools.evaluation import fast_model

    if not (run.settings.prepare and any(output.allow_fast_model for output in outputs)):
        return fast_model.FastModel(model, ())
    result = fast_model.make_fast_model(
        model, precision.resolve(run), shape, compiled=run.settings.compile, notify=run.report.notify
    )
    if result.refusal is not None:
        run.report.notify(
            f"warning: attacks run on the network itself, in float32, because {result.refusal}. They take"
            " longer; the float32 decisions are the same."
        )
    if result.remark is not None:
        run.report.notify(result.remark)
    return result


def _batch(
    model: nn.Module,
    fast_model: nn.Module,
    pixels: Tensor | streaming.Streamed,
    labels: Tensor,
    ids: Tensor,
    seed: int,
    chunk_size: int,
    precomputed: Mapping[Any, Tensor],
) -> Batch:
    images = pixels[ids].float().div(255)
    ids = ids.to(labels.device)
    return Batch(
        model,
        images,
        labels[ids],
        ids,
        seed=seed,
        chunk_size=chunk_size,
        fast_model=fast_model,
        precomputed=precomputed,
    )


@contextmanager
def _kept(outcomes: Sequence[Outcomes]) -> Iterator[None]:
    """Write the outcomes to the store at the end, also when the work is interrupted."""
    try:
        yield
    finally:
        for unsaved in outcomes:
            unsaved.keep()
