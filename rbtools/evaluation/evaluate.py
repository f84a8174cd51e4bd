"""`evaluate`: which images a model classifies correctly under a task, and the metrics computed from that. The
loop cuts the examples into fixed batches, measures the specs on each, and keeps the outcomes. It gets a
model, images, labels and settings. Two small objects divide the batches among processes (`share`) and store
the outcomes (`Outcomes`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rbtools import graphs
from rbtools.check_input import outside_inference
from rbtools.datasets import streaming
from rbtools.datasets.indices import subset
from rbtools.errors import RbError, in_words_of_python
from rbtools.evaluation.accuracy import Attacked
from rbtools.evaluation.base import (
    REFERENCE_BATCH,
    Batch,
    Outcome,
    Outcomes,
    TilePart,
    batch_size,
    default_chunk_size,
)
from rbtools.evaluation.spec import Spec, by_column, rows_of
from rbtools.execution import precision as precisions
from rbtools.execution.device import environment, float32, out_of_memory
from rbtools.lazy import nn, np, torch
from rbtools.report import SILENT, Pace, Report, progress_of
from rbtools.settings import Settings
from rbtools.store import Store

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.evaluation.fast_model import FastModel

# The smallest tile of an evaluation that several workers share, as a part of a batch. Less than a batch only
# on a CPU, whose kernels compute an image bit for bit alike in any batch of more than a few images (3 of
# 32x32 pixels, 13 of 8x8). 32 images take up to 4 % longer each than 64, and 16 up to 13 % (cell networks on
# AMD EPYC). On a GPU the kernels depend on the number of images, and small batches use it badly.
TILES_OF_BATCH = {"cpu": 4}


class Examples(NamedTuple):
    """Images (M, C, H, W), uint8 levels or floats in [0, 1], with their labels, int64 (M,).

    order: int64 (n,), the examples to evaluate; results have their order, and the prefix of a longer order
    gives the same results. Random numbers belong to the position in `images`.
    """

    images: Tensor | streaming.Streamed
    labels: Tensor
    order: Tensor


class Share(Protocol):
    """Which batches this process computes. workers: for how many the examples are cut."""

    workers: int

    def tiles(
        self, tiles: Sequence[range], outcomes: Sequence[Outcomes], progress: Callable[[int], None]
    ) -> Iterator[range]:
        """Yield the tiles to compute; afterwards the outcomes are complete. `progress` takes the number of
        examples that are done, and raises when the work should stop."""

    def add(self, tile: range, parts: Mapping[int, TilePart]) -> None:
        """Take the outcomes of a tile, by the position of their spec."""


class Alone:
    """This process computes every batch."""

    workers = 1

    def tiles(
        self, tiles: Sequence[range], outcomes: Sequence[Outcomes], progress: Callable[[int], None]
    ) -> Iterator[range]:
        self.outcomes = outcomes
        for tile in tiles:
            progress(tile.start)
            yield tile

    def add(self, tile: range, parts: Mapping[int, TilePart]) -> None:
        for i, part in parts.items():
            self.outcomes[i].extend(*part)


@outside_inference
@in_words_of_python()
def evaluate(
    model: Any,
    data: Any,
    task: Any,
    *,
    n: int | None = None,
    seed: int = 0,
    device: str = "auto",
    batch: int | None = None,
    precision: str = "auto",
    store: Any = None,
    keep_images: bool = False,
    draws: int = 20,
    progress: bool | Callable[[str], None] | None = None,
) -> Any:
    """Measure a model in memory; see `Result`. A list of tasks gives a list of results.

    model: a module or function, images float32 (N, C, H, W) in [0, 1] -> logits (N, K), in eval mode; it is
    not changed. Warns, as commands do, of a model in train mode (it is evaluated in eval mode), of outputs
    that are probabilities, and of a normalisation that looks wrong. data: (images, labels) as tensors or
    arrays, uint8 or floats in [0, 1]; a torch Dataset or DataLoader of such pairs; or the name of a data set
    ("cifar10"). task: an attack (`PGD(eps=8 / 255)`), a
    corruption with its severity (`(Fog(), 3)`), a noise with its radius (`(Uniform(), 0.1)`), a certification
    method, "acc", or a list of these.

    n: so many images, balanced over the classes. seed: of all random numbers, which belong to the image and
    its position in the data. device: "auto" is that of the model. batch: images at a time; changes memory,
    not results. precision: of attack searches
    ("fp32", "bf16"); the model itself decides in float32. store: a folder in which outcomes are kept, and
    found again by weights and class of the model; without it nothing is written. keep_images: results have
    the images that the attack left. draws: of a model that is found to be randomised, for each verdict (1:
    judge it as any other). progress: takes a line
    of text; True shows it by tqdm.

    Raises RbError for input in another form, with what was found and what to do.
    """
    from rbtools.evaluation import in_memory  # imports torch, which outcomes in a store do not need
    from rbtools.evaluation.by_draws import by_draws, eot_of

    counts = (("draws", draws, 1), ("n", n, 1), ("batch", batch, 1))
    for name, count, least in (*counts, ("seed", seed, 0)):
        if count is not None and (not isinstance(count, Integral) or count < least):
            raise RbError(f"{name} is {count!r}. It must be a whole number, {least} or more.")
    if precision not in ("auto", "fp32", "bf16"):
        raise RbError(f"precision is {precision!r}. Choose from: auto, fp32, bf16.")
    given = in_memory.data_of(data, kept=store is not None)
    network, place = in_memory.model_of(model, given, device)
    order = subset(given.labels, len(given.labels) if n is None else n, seed=0)
    chosen = precisions.chosen(precision, place.type == "cuda")
    settings = Settings(seed=seed, batch=batch, precision=chosen, draws=draws)
    cache = in_memory.Cache(store, model, given) if store is not None else None
    with progress_of(progress) as line, float32(place), in_memory.in_eval_mode(model):
        report = SILENT if line is None else Report(progress=line)
        look = in_memory.Look(network, given, place, settings, cache)
        network = in_memory.randomised.controlled(network, look.randomness)
        look.warn(given, order)
        results: list[in_memory.Result] = []
        for todo in map(in_memory.task_of, task if isinstance(task, list) else [task]):
            if look.randomness.randomised and draws > 1:
                asked, todo = todo, by_draws(todo, draws)
                if asked is not todo:
                    report.notify(f"The model {look.randomness.sentence(draws, eot_of(todo))}")
            columns = by_column(todo.every)
            specs = [column[0] for column in columns]
            outcomes = [
                Outcomes(Store(None), "")
                if cache is None
                else Outcomes(cache.store, cache.key(spec, settings, len(order)), anew=keep_images)
                for spec in specs
            ]
            images = in_memory.KeptImages() if keep_images else None
            if any(len(known) < len(order) for known in outcomes):
                compute_outcomes(
                    network,
                    Examples(given.images, given.labels, order),
                    todo.title,
                    specs,
                    outcomes,
                    settings=settings,
                    device=place,
                    report=report,
                    save=images,
                )
            for column, known in zip(columns, outcomes, strict=True):
                for spec in column:
                    if spec in todo.specs:
                        results.append(in_memory.result_of(spec, known, order, settings, images))
    return results if isinstance(task, list) or len(results) > 1 else results[0]


def compute_outcomes(
    model: nn.Module,
    examples: Examples,
    title: str,
    specs: Sequence[Spec],
    outcomes: Sequence[Outcomes],
    *,
    settings: Settings,
    device: torch.device,
    report: Report = SILENT,
    share: Share | None = None,
    save: Callable[[Any, Tensor, Outcome], None] | None = None,
) -> None:
    """Compute the outcomes that are missing, batch by batch.

    model: eval mode, on `device`, images float32 (N, C, H, W) in [0, 1] -> logits (N, K). outcomes: those of
    each spec, of a prefix of the order. title: for the progress line. Batches are consecutive pieces of the
    order, so that neither their number nor the memory batch changes which examples share one. `save`
    receives a spec, the ids of the examples and the outcome wherever the outcome has images. Raises RbError
    where one image alone needs more memory than there is.
    """
    n, channels, height, width = len(examples.order), *examples.images.shape[1:]
    shape = (channels, height, width)
    pixels, labels = streaming.batchwise(examples.images, device), examples.labels.to(device)
    chunk = default_chunk_size(device, shape) if settings.batch is None else settings.batch
    chunk = min(chunk, together(specs, device, shape) * _copies(specs))
    with report.clock.stage("preparation"):
        from rbtools.evaluation.randomised import RandomisedModel

        randomised = isinstance(model, RandomisedModel)
        fast = _searched(
            model, specs, shape, replace(settings, prepare=settings.prepare and not randomised), report
        )
    place, share = environment(device), share or Alone()
    title = f"{title} seed {settings.seed}" if any(spec.random for spec in specs) else title
    progress = _StatusLine(title, n, specs, outcomes, report)
    cuts = cut(specs, n, device, shape, share.workers)
    with (
        _kept(outcomes),
        closing(share.tiles(cuts, outcomes, progress)) as tiles,  # type: ignore[type-var]
    ):
        for tile in tiles:
            if share.workers == 1:
                streaming.prefetch(pixels, _following(outcomes, examples.order, tile))
            parts: dict[int, TilePart] = {}
            for begin, missing in _missing(outcomes, tile):
                ids = examples.order[begin : tile.stop]
                wanted = [specs[i] for i in missing]
                known = {specs[i]: values for i, values in _known(outcomes, parts, begin, tile.stop, device)}
                start = time.perf_counter()
                batch = _batch(model, fast.model, pixels, labels, ids, settings.seed, chunk, known)
                if randomised:
                    batch.draw = 0
                batch.watch = progress.inside
                while True:
                    try:
                        results = rows_of(wanted, batch)
                        break
                    except RuntimeError as error:
                        batch = _in_smaller_chunks(batch, error)
                chunk = batch.chunk_size
                arrays = [result.values.cpu().numpy() for result in results]  # waits for the device
                seconds = time.perf_counter() - start
                for i, result, values in zip(missing, results, arrays, strict=True):
                    steps = fast.steps if specs[i].searches else ()
                    totals = {"seconds": seconds, **result.totals}
                    parts[i] = TilePart(values, totals, device.type, steps, place)
                    if result.images is not None and save is not None:
                        save(specs[i], ids, result)
            share.add(tile, parts)


def cut(
    specs: Sequence[Spec], n: int, device: torch.device, shape: Sequence[int], workers: int
) -> list[range]:
    """The first n examples cut into tiles for workers: the batches or, if outcomes do not depend on their
    size, batches and then smaller tiles.
    """
    batch = together(specs, device, shape)
    fixed = workers <= 1 or any(spec.fixed_batches for spec in specs)
    smallest = batch if fixed else max(batch // TILES_OF_BATCH.get(device.type, 1), 1)
    tiles, start = [], 0
    while start < n:
        # Half of a worker's share of what is left, so that workers end at about the same time.
        size = min(max((n - start) // (2 * max(workers, 1)), smallest), batch)
        stop = n if n - start < min(batch, size + smallest // 2) else min(start + size, n)
        tiles.append(range(start, stop))
        start = stop
    return tiles


def together(specs: Sequence[Spec], device: torch.device, shape: Sequence[int]) -> int:
    """How many images (C, H, W) are attacked together."""
    if any(spec.batch_dependent for spec in specs):
        return REFERENCE_BATCH
    return max(batch_size(device, shape) // _copies(specs), 1)


def _copies(specs: Sequence[Spec]) -> int:
    """How many copies of each image go through the network together."""
    return max(spec.copies for spec in specs)


def _following(outcomes: Sequence[Outcomes], order: Tensor, tile: range) -> Tensor:
    """The examples that the next batch will compute first; none if it lacks no outcome."""
    following = range(tile.stop, min(tile.stop + len(tile), len(order)))
    first = [begin for begin, _ in _missing(outcomes, following)][:1]
    return order[first[0] if first else following.stop : following.stop]


def _missing(outcomes: Sequence[Outcomes], tile: range) -> list[tuple[int, list[int]]]:
    """The specs that a batch lacks, grouped by the first missing example, the most complete group first.

    Specs that are equally complete are measured together; none is measured twice on an example, so that
    sums over examples stay correct, and specs that others need are measured before them.
    """
    groups: dict[int, list[int]] = {}
    for i, known in enumerate(outcomes):
        if len(known) < tile.stop:
            groups.setdefault(max(len(known), tile.start), []).append(i)
    return sorted(groups.items(), reverse=True)


def _known(
    outcomes: Sequence[Outcomes], parts: Mapping[int, TilePart], begin: int, stop: int, device: torch.device
) -> Iterator[tuple[int, Tensor]]:
    """The specs whose outcomes of the examples from `begin` to `stop` are known, by their position."""
    for i, known in enumerate(outcomes):
        stored = known.values(stop)[begin:]
        if len(known) < stop and i not in parts:
            continue
        if len(known) < stop:
            stored = np.concatenate([stored, parts[i].values]) if len(stored) else parts[i].values
        yield i, torch.from_numpy(stored).to(device)


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
    images = pixels[ids].to(labels.device)
    images = images.float().div(255) if images.dtype == torch.uint8 else images.float()
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


def _in_smaller_chunks(batch: Batch, error: RuntimeError) -> Batch:
    """The batch in half as large chunks. Raises the error unless it says that memory ran out, and RbError
    where a chunk is one image."""
    if not out_of_memory(error):
        raise error
    if batch.chunk_size == 1:
        raise RbError(
            "Memory ran out with one image at a time. Use a larger device, or --device cpu."
        ) from error
    if torch.cuda.is_available():
        graphs.lasting_pool.cache_clear()
        torch.cuda.empty_cache()
    return batch.in_chunks(max(batch.chunk_size // 2, 1))


def _searched(
    model: nn.Module,
    specs: Sequence[Spec],
    shape: tuple[int, int, int],
    settings: Settings,
    report: Report,
) -> FastModel:
    """The model that attacks run on: a fast copy where a spec allows one."""
    from rbtools.evaluation import fast_model

    if not (settings.prepare and any(spec.searches for spec in specs)):
        return fast_model.FastModel(model, ())
    result = fast_model.make_fast_model(model, settings.precision, shape)
    if result.refusal is not None:
        report.notify(
            f"warning: attacks run on the network itself, in float32, because {result.refusal}. They take"
            " longer; the float32 decisions are the same."
        )
    if result.remark is not None:
        report.notify(result.remark)
    return result


class _StatusLine:
    """The status line: images done, the pace, and the accuracies so far."""

    def __init__(
        self, title: str, n: int, specs: Sequence[Spec], outcomes: Sequence[Outcomes], report: Report
    ) -> None:
        self.title, self.n, self.specs, self.outcomes, self.report = title, n, specs, outcomes, report
        self.pace = Pace(n, min(map(len, outcomes)))
        self.said = ""

    def inside(self, words: str) -> None:
        """How far the work on a batch is."""
        self.report.progress(f"{self.said} · {words}")

    def __call__(self, done: int) -> None:
        self.report.check_cancelled()
        parts = [self.title, f"image {done}/{self.n}", self.pace.words(done)]
        for spec, known in zip(self.specs, self.outcomes, strict=True):
            if done and isinstance(spec, Attacked) and len(known) >= done:
                value = spec.findings(known.values(done), known.totals)["value"]
                parts.append(f"{spec.name()} {value:.3f}")
        self.said = " · ".join(filter(None, parts))
        self.report.progress(self.said)


@contextmanager
def _kept(outcomes: Sequence[Outcomes]) -> Iterator[None]:
    """Write the outcomes to the store at the end, also when the work is interrupted."""
    try:
        yield
    finally:
        for unsaved in outcomes:
            unsaved.keep()
