"""Evaluates a model on images, with `evaluate` for models in memory and `Evaluator` for measuring tiles."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools import graphs
from rbtools.attacks.verdicts import Judge
from rbtools.check_input import outside_inference
from rbtools.datasets import streaming
from rbtools.datasets.indices import subset
from rbtools.errors import RbError, in_words_of_python
from rbtools.evaluation import randomised
from rbtools.evaluation.base import (
    REFERENCE_BATCH,
    Batch,
    Outcome,
    OutcomeRows,
    Outcomes,
    batch_size,
    default_chunk_size,
)
from rbtools.evaluation.spec import Spec, by_column
from rbtools.evaluation.tiles import Tile, TileState, complete
from rbtools.execution import precision as precisions
from rbtools.execution.device import environment, float32, out_of_memory
from rbtools.execution.report import SILENT, Pace, Report, progress_of
from rbtools.execution.settings import Settings
from rbtools.lazy import nn, np, torch
from rbtools.store import Store

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.evaluation.fast_model import FastModel


_COMPARED = 8  # images on which a float32 copy has to agree with the model


class Examples(NamedTuple):
    """Images (M, C, H, W), uint8 or floats in [0, 1], with their labels, int64 (M,).

    `order` lists the examples to evaluate, int64 (n,). Results are in this order, and the first results do
    not depend on how long the order is. An image's random numbers depend on its position in `images`.
    """

    images: Tensor | streaming.Streamed
    labels: Tensor
    order: Tensor


@outside_inference()
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
    **options: Any,
) -> Any:
    """Evaluate a model in memory; returns a `Result`. If `task` is a list, returns a list of results.

    `model` is a module or a function that maps images float32 (N, C, H, W) in [0, 1] to logits (N, K). The
    model is evaluated in eval mode and not changed. Warns, as the commands do, if the model is in train mode,
    if its outputs are probabilities, or if its normalisation looks wrong. `data` is (images, labels) as
    tensors or arrays, uint8 or floats in [0, 1]; a torch Dataset or DataLoader of such pairs; or the name of
    a data set ("cifar10"). `task` is an attack (`PGD(eps=8 / 255)`), a corruption with its severity (`(Fog(),
    3)`), a noise with its radius (`(Uniform(), 0.1)`), a certification method with its radius (`(Smooth(),
    0.5)`), "acc", or a list of tasks.

    `n` is the number of images to use, chosen in proportion to the classes, so that the result is an estimate
    for all images. `seed` determines all random numbers, which depend on an image's position in the data.
    `device` "auto" is the device of the model. `batch` is the number of images that go through the model at
    once; it changes memory use but not results. `precision` is the precision of attack searches ("fp32",
    "bf16"); decisions are made in float32. `store` is a folder in which outcomes are stored; their keys
    contain a hash of the model's weights and class. Without `store`, nothing is written. With `keep_images`,
    results contain the perturbed images. `draws` is the number of random passes for each image if the model
    is randomised; 1 evaluates it like any other model. `progress` is a function that is called with a line of
    text; True shows a tqdm progress bar. `options` scale and crop the images of a named data set: resize=256,
    crop=224 (`rbtools.datasets.source`).

    Raises RbError if an argument is invalid; the message says what was found and what to do.
    """
    from rbtools.evaluation import in_memory  # imports torch, which outcomes in a store do not need

    _check(precision, seed, draws=draws, n=n, batch=batch)
    given = in_memory.data_of(data, kept=store is not None, **options)
    network, place = in_memory.model_of(model, given, device)
    order = subset(given.labels, len(given.labels) if n is None else n, seed=0)
    precision = precisions.chosen(precision, place.type == "cuda")
    settings = Settings(seed=seed, batch=batch, precision=precision, draws=draws)
    cache = in_memory.Cache(store, model, given)
    with progress_of(progress) as line, float32(place), in_memory.in_eval_mode(model):
        report = SILENT if line is None else Report(progress=line)
        look, first = in_memory.looked_at(network, given, order, place, cache)
        network = randomised.controlled(network, look)
        examples, results = Examples(given.images, given.labels, order), in_memory.ResultList()
        where: Any = {"settings": settings, "device": place, "report": report, "store": cache.store}
        for one in task if isinstance(task, list) else [task]:
            asked = in_memory.able(in_memory.task_of(one), network)
            todo, said = randomised.judged(asked, look, draws)
            if said is not None:
                warnings.warn(f"The model {said}", stacklevel=4)
            images = in_memory.KeptImages() if keep_images else None
            columns = by_column(todo.every)
            specs = [column[0] for column in columns]
            outcomes = [cache.outcomes(spec, settings, len(order), anew=keep_images) for spec in specs]
            evaluator = Evaluator(network, examples, todo.title, specs, save=images, first=first, **where)
            measured, status = partial(map, evaluator.measure), evaluator.status(outcomes)
            complete(outcomes, len(order), evaluator.size, measured, status, store=evaluator.store)
            results += in_memory.results_of(todo, columns, outcomes, order, settings, images)
    return results if isinstance(task, list) or len(results) > 1 else results[0]


def _check(precision: str, seed: Any, **counts: Any) -> None:
    """Raise RbError for an unknown precision, and for numbers that are below 1 (seed: 0) or not whole."""
    for name, count in {**counts, "seed": seed}.items():
        least = 0 if name == "seed" else 1
        if count is not None and (not isinstance(count, Integral) or count < least):
            raise RbError(f"{name} is {count!r}. It must be a whole number, {least} or more.")
    if precision not in ("auto", "fp32", "bf16"):
        raise RbError(f"precision is {precision!r}. Choose from: auto, fp32, bf16.")


class Evaluator:
    """Evaluates a network on a device with some examples and specs.

    `model` is in eval mode on `device` and maps images float32 (N, C, H, W) in [0, 1] to logits (N, K).
    `title` is shown in the progress line. Partial results of a tile are kept in `store`. If an outcome has
    images, `save` is called with the spec, the ids of the examples and the outcome. `load` is described in
    `Batch`. `first` are the model's logits (M, K) for the first images in the order, if they are known.
    `watch` is called with the progress of a tile: a string, and the number of passes of the current attack.
    """

    def __init__(
        self,
        model: nn.Module,
        examples: Examples,
        title: str,
        specs: Sequence[Spec],
        *,
        settings: Settings,
        device: torch.device,
        report: Report = SILENT,
        store: Store | None = None,
        save: Callable[[Any, Tensor, Outcome], None] | None = None,
        load: Any = None,
        first: Tensor | None = None,
    ) -> None:
        # Partial results in a store have no images.
        self.store, self.save = store if store is not None and save is None else Store(None), save
        self.watch: Callable[[str, int], None] | None = None
        self.load, self.first = load, first
        self.model, self.examples, self.title, self.specs = model, examples, title, specs
        self.settings, self.device, self.report = settings, device, report
        self.shape = tuple(examples.images.shape[1:])
        self.randomised = getattr(model, "randomised", False)
        self.pixels = streaming.batchwise(examples.images, device)
        self.labels = examples.labels.to(device)
        self.size = together(specs, device, self.shape)
        chunk = default_chunk_size(device, self.shape) if settings.batch is None else settings.batch
        self.chunk = min(chunk, self.size * max(spec.copies for spec in specs))
        self.place = environment(device)

    @cached_property
    def fast(self) -> FastModel:
        """The model that attacks run on, which is a fast copy if one of the specs allows it."""
        from rbtools.evaluation import fast_model

        allowed = any(spec.searches for spec in self.specs)
        if not allowed or self.randomised or not self.settings.prepare:
            return fast_model.FastModel(self.model, ())
        with self.report.clock.stage("preparation"):
            result = fast_model.make_fast_model(self.model, self.settings.precision, self.shape)  # type: ignore[arg-type]
        if result.refusal is not None:
            self.report.notify(
                f"warning: attacks run on the network itself, in float32, because {result.refusal}. They take"
                " longer, but the float32 decisions are the same."
            )
        if result.remark is not None:
            self.report.notify(result.remark)
        return result

    @cached_property
    def judge(self) -> Judge | None:
        """The float32 copy that decides. It is None if rows contain logits, or if the copy has other logits
        for the first images. In these cases, the model itself decides."""
        copy = self.fast.judge
        if copy is None or not all(spec.verdicts for spec in self.specs):
            return None
        batch = self._batch(self.examples.order[:_COMPARED], {})
        judge = Judge.of(copy, batch.clean_logits)
        return judge if judge.agrees(batch.clean_logits, batch.outputs(copy, batch.images)) else None

    def _steps(self, spec: Spec) -> tuple[str, ...]:
        """The steps that created the copy on which a spec searches. They do not affect the decisions of
        `judge`, so the entry of clean accuracy is the same whichever attack is measured with it."""
        if not spec.searches:
            return ()
        return self.fast.steps if not spec.precise else self.fast.float32_steps if self.judge else ()

    def measure(self, tile: Tile) -> tuple[Tile, dict[int, OutcomeRows]]:
        """Measure the missing outcomes of a tile. Returns the tile, and each spec's outcomes by its position
        in `specs`. Raises RbError if a single image needs too much memory."""
        streaming.prefetch(self.pixels, self._after(tile))
        parts = dict[int, OutcomeRows]()
        state = TileState(self.store, tile.keys, self.device, self.place)
        for begin, missing in tile.lacks:
            ids = self.examples.order[begin : tile.examples.stop]
            start = state.clock()
            batch = replace(
                self._batch(ids, self._known(tile, parts, begin)), partial=state, judge=self.judge
            )
            classes: dict[type[Spec], list[int]] = {}
            for i in missing:
                classes.setdefault(type(self.specs[i]), []).append(i)
            while True:
                state.begin(begin)
                try:
                    results = dict[int, Outcome]()
                    for cls, some in classes.items():
                        found = cls.rows_together([self.specs[i] for i in some], batch)
                        results |= zip(some, found, strict=True)
                    break
                except RuntimeError as error:
                    batch = _in_smaller_chunks(batch, error)
            self.chunk = batch.chunk_size
            arrays = {i: results[i].stored() for i in missing}  # waits for the device
            seconds = state.clock() - start
            for i, values in arrays.items():
                steps = self._steps(self.specs[i])
                if "bf16" in steps:
                    steps = (*steps, *(f"fp32-{name}" for name in self.specs[i].in_float32))
                totals = {"seconds": seconds, **results[i].totals}
                parts[i] = OutcomeRows(values, totals, [self.device.type], steps, [self.place])
                if results[i].images is not None and self.save is not None:
                    self.save(self.specs[i], ids, results[i])
        state.finished(parts)
        return tile, parts

    def seconds_per_pass(self) -> float:
        """The time per image of a forward pass of the network that attacks run on, from the second of two
        passes of a batch, because the first one also prepares memory and kernels."""
        batch = self._batch(self.examples.order[: self.chunk], {})
        for _ in range(2):
            start = time.perf_counter()
            batch.outputs(self.fast.model, batch.images).sum().item()
        return (time.perf_counter() - start) / len(batch.ids)

    def status(self, outcomes: Sequence[Outcomes]) -> StatusLine:
        """The status line of an evaluation in this process."""
        line = StatusLine(
            self.title, len(self.examples.order), self.specs, outcomes, self.settings.seed, self.report
        )
        self.watch = line.inside
        return line

    def _after(self, tile: Tile) -> Tensor:
        """The examples of the next tile. If images are streamed, they are read in the meantime."""
        stop = tile.examples.stop
        return self.examples.order[stop : stop + len(tile.examples)]

    def _known(self, tile: Tile, parts: Mapping[int, OutcomeRows], begin: int) -> dict[Any, Tensor]:
        """The outcomes of the tile's examples from position `begin` on, by spec, if they are complete."""
        known = {}
        for i, spec in enumerate(self.specs):
            stored = tile.known.get(i, np.empty(0, np.int32))[begin - tile.examples.start :]
            if i in parts:
                stored = np.concatenate([stored, parts[i].values]) if len(stored) else parts[i].values
            if len(stored) == tile.examples.stop - begin:
                known[spec] = torch.from_numpy(stored).to(self.device)
        return known

    def _batch(self, ids: Tensor, precomputed: Mapping[Any, Tensor]) -> Batch:
        begins = bool(ids[0] == self.examples.order[0]) and all(spec.verdicts for spec in self.specs)
        images = self.pixels[ids].to(self.device)
        images = images.float().div(255) if images.dtype == torch.uint8 else images.float()
        ids = ids.to(self.device)
        return Batch(
            self.model,
            images,
            self.labels[ids],
            ids,
            seed=self.settings.seed,
            chunk_size=self.chunk,
            fast_model=self.fast.model,
            first=self.first if begins and not self.randomised else None,
            precomputed=precomputed,
            draw=0 if self.randomised else None,
            watch=self.watch,
            load=self.load,
        )


def together(specs: Sequence[Spec], device: Any, shape: Sequence[int]) -> int:
    """The number of images (C, H, W) that are attacked together; only the `type` of the device matters."""
    if any(spec.batch_dependent for spec in specs):
        return REFERENCE_BATCH
    return max(batch_size(device, shape) // max(spec.copies for spec in specs), 1)


def _in_smaller_chunks(batch: Batch, error: RuntimeError) -> Batch:
    """Halve the chunk size if memory ran out; otherwise raise `error`. Raises RbError if it was a single
    image."""
    if not out_of_memory(error):
        raise error
    if batch.chunk_size == 1:
        raise RbError(
            "Memory ran out with one image at a time. Use a GPU with more memory, or --device cpu."
        ) from error
    if torch.cuda.is_available():
        graphs.lasting_pool.cache_clear()
        torch.cuda.empty_cache()
    return replace(batch, chunk_size=max(batch.chunk_size // 2, 1))


class StatusLine:
    """The status line: the number of finished images, the speed, the time left, and the accuracies so far.

    The time left is estimated from the passes. The remaining images are expected to need the same share of
    the largest number of passes as the finished images. Before the first images are finished, the time is an
    upper bound. For evaluations that count no passes, it is estimated from the number of images.
    """

    def __init__(
        self,
        title: str,
        n: int,
        specs: Sequence[Spec],
        outcomes: Sequence[Outcomes],
        seed: int,
        report: Report,
    ) -> None:
        self.title = f"{title} seed {seed}" if any(spec.random for spec in specs) else title
        self.n, self.specs, self.outcomes, self.report = n, specs, outcomes, report
        self.pace = Pace(n, min(map(len, outcomes)))
        self.most = sum(spec.most_passes for spec in specs)
        self.done, self.finished, self.running, self.last = self.pace.first, 0, 0, 0
        self.kept = 0  # passes of an earlier process
        self.words: list[str] = []

    def inside(self, words: str, passes: int) -> None:
        """Report the progress of the current attack, which has made this number of passes. If `words` is
        empty, an earlier process made them, or there are none."""
        self.report.check_cancelled()
        if passes:
            more = passes - self.last if passes >= self.last else passes
            self.running, self.last = self.running + more, passes
        if words:
            self._say(words)
        elif passes:
            self.kept += more

    def __call__(self, done: int) -> None:
        self.report.check_cancelled()
        if done > self.done:
            self.done, self.finished, self.running = done, self.finished + self.running, 0
        self.words = []
        for spec, known in zip(self.specs, self.outcomes, strict=True):
            if done and spec.under_attack and len(known) >= done:
                value = spec.findings(known.values(done), known.totals)["value"]
                self.words.append(f"{spec.name()} {value:.3f}")
        self._say()

    def _say(self, *more: str) -> None:
        expected = self._expected()
        pace = self.pace.words(self.done, self.finished + self.running - self.kept, expected)
        parts = [self.title, f"image {self.done}/{self.n}", pace, *self.words, *more]
        self.report.progress(" · ".join(filter(None, parts)))

    def _expected(self) -> float:
        """The number of passes that are still expected."""
        images = self.done - self.pace.first
        share = self.finished / (images * self.most) if images and self.finished else 1.0
        return max((self.n - self.done) * self.most * share - self.running, 0.0)
