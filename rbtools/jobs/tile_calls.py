"""Measures the tiles (parts) of a record's evaluation, in this process or with the engine's workers.

The inputs are resolved before they are sent, because the same options might select other images in a worker.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from rbtools.attacks import ATTACKS
from rbtools.errors import RbError
from rbtools.evaluation import model_checks
from rbtools.evaluation.accuracy import Attacked
from rbtools.evaluation.base import Outcomes
from rbtools.evaluation.evaluate import Evaluator, Examples, StatusLine, together
from rbtools.evaluation.randomised import Randomness, controlled
from rbtools.evaluation.spec import Spec
from rbtools.evaluation.tiles import Tile, complete, stored_parts
from rbtools.execution import device, precision, resources
from rbtools.execution.engine import Call
from rbtools.execution.run import Run
from rbtools.inputs import queried
from rbtools.inputs.resolve import Inputs
from rbtools.jobs import transfer

T = TypeVar("T")


@dataclass(frozen=True)
class RecordEvaluation:
    """Specs on a record's model, with everything that a process needs to measure their tiles."""

    inputs: Inputs
    title: str
    specs: Sequence[Spec]
    look: Randomness

    @contextlib.contextmanager
    def opened(self, save: Any = None) -> Iterator[Evaluator]:
        """Yields the evaluator, with the network on this process's device. `save` is that of `Evaluator`."""
        inputs, run = self.inputs, self.inputs.run
        with device.taken(run, inputs.threads()) as place:
            with run.report.clock.stage("model"):
                model = controlled(inputs.load_model(place), self.look)
            dataset = inputs.data.load()
            yield Evaluator(
                model,
                Examples(dataset.images, dataset.labels, inputs.data.order(dataset.labels)[: inputs.n]),
                self.title,
                self.specs,
                settings=replace(run.settings, precision=precision.resolve(run)),
                device=place,
                report=run.report,
                store=run.store,
                save=save,
                load=partial(transfer.loaded, run),
            )

    def checks(self, evaluator: Evaluator) -> dict[str, Any] | None:
        """The checks of the model on its first images, or None for a model that rb-train trained."""
        inputs = self.inputs
        with inputs.run.report.clock.stage("look"):
            found = model_checks.check_outputs(
                evaluator.model, inputs.record, inputs.data, inputs.n, evaluator.device, inputs.run
            )
        if found is None:
            return None
        summary, evaluator.first = found
        return summary


def measure(
    evaluation: RecordEvaluation,
    outcomes: list[Outcomes],
    *,
    checked: bool,
    saving: Callable[[], contextlib.AbstractContextManager[Any]] | None = None,
) -> dict[str, Any] | None:
    """Complete the outcomes. Returns the checks of the model if `checked` is true. `saving` opens the context
    of a function that saves images; this process then measures all images again."""
    inputs, run = evaluation.inputs, evaluation.inputs.run
    if run.pool is not None and saving is None:
        with run.store.working():
            return _measured_by_workers(evaluation, outcomes, checked)
    with run.store.working(), contextlib.ExitStack() as stack:
        save = None if saving is None else stack.enter_context(saving())
        evaluator = stack.enter_context(evaluation.opened(save))
        checks = evaluation.checks(evaluator) if checked else None
        stack.enter_context(run.report.clock.stage(evaluation.title))
        complete(
            outcomes,
            inputs.n,
            evaluator.size,
            partial(map, evaluator.measure),
            evaluator.status(outcomes),
            store=evaluator.store,
            shard=run.placement.shard if save is None else (1, 1),
        )
    return checks


def seconds_per_pass(inputs: Inputs) -> float:
    """The time of one forward pass of an image on this process's device, measured on one batch of the first
    images, by the network that attacks run on. A dry run measures each model once."""
    paces = {} if inputs.run.plan is None else inputs.run.plan.paces
    if inputs.checkpoint not in paces:
        work = RecordEvaluation(inputs, "", [Attacked(method=ATTACKS.build("pgd"))], Randomness())
        with work.opened() as evaluator:
            paces[inputs.checkpoint] = evaluator.seconds_per_pass()
    return paces[inputs.checkpoint]


def by_workers(run: Run, units: Iterable[T], call: Callable[[T], Call]) -> Iterator[tuple[T, Any]]:
    """Yields each unit of work with the result of its call, in the order in which the workers finish."""
    taken: list[T] = []

    def calls() -> Iterator[Call]:
        for unit in units:
            taken.append(unit)
            yield call(unit)

    for number, report in run.pool.map(calls(), run.report.check_cancelled):
        yield taken[number], report.value(run)


def _measured_by_workers(
    evaluation: RecordEvaluation, outcomes: list[Outcomes], checked: bool
) -> dict[str, Any] | None:
    inputs, specs = evaluation.inputs, evaluation.specs
    # Resolved here, as for the keys: another machine might choose another precision.
    run = inputs.run.changed(precision=precision.resolve(inputs.run))
    arch, shard = inputs.record.get("arch"), run.placement.shard
    sent = pickle.dumps(replace(evaluation, inputs=replace(inputs, run=run)))
    size = together(specs, resources.kind(run), inputs.data.about.shape)
    others = any(spec.needs for spec in specs)
    checks: list[Any] = []
    # No two workers ask a model that can only be queried about the same images at the same time.
    last = queried.answers_of(inputs.record, run) is not None

    def call(tile: Tile | None) -> Call:
        if tile is None:
            return CheckCall(arch, sent)
        return TileCall(arch, sent, tile if others else tile._replace(known={}), size)

    def measured(tiles: Iterator[Tile]) -> Iterator[tuple[Tile, Any]]:
        first = [None] if checked and not last else []
        for tile, result in by_workers(run, itertools.chain(first, tiles), call):
            if tile is None:
                checks.append(result)
            else:
                yield tile, result

    with run.report.clock.stage(evaluation.title):
        complete(
            outcomes,
            inputs.n,
            size,
            measured,
            StatusLine(evaluation.title, inputs.n, specs, outcomes, run.settings.seed, run.report),
            store=run.store,
            shard=shard,
        )
    if checked and last:
        checks += [result for _, result in by_workers(run, [None], call)]
    return checks[0] if checks else None


# --- in a worker ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenedCall(Call):
    """A call on pickled work, which has the attributes `inputs` and `opened`. The object that `opened` yields
    stays loaded for the next call."""

    arch: Any
    sent: bytes

    @contextlib.contextmanager
    def opened(self, run: Run) -> Iterator[tuple[Any, Any]]:
        """Yields the work, and what its method `opened` yields in this process."""
        work = pickle.loads(self.sent)  # trusted: the driver of this run pickled it
        there = replace(work.inputs.run, placement=run.placement, report=run.report, kept=run.kept)
        work = replace(work, inputs=replace(work.inputs, run=there))
        if "opened" not in run.kept or run.kept["opened"][0] != self.sent:
            run.kept.pop("opened", None)  # free its memory before the next network is loaded
            with work.opened() as loaded:
                run.kept["opened"] = self.sent, loaded
        opened = run.kept["opened"][1]
        with device.taken(run, work.inputs.threads()):
            opened.report = run.report
            yield work, opened


@dataclass(frozen=True)
class CheckCall(OpenedCall):
    def __call__(self, run: Run) -> dict[str, Any] | None:
        with self.opened(run) as (evaluation, evaluator):
            return evaluation.checks(evaluator)


@dataclass(frozen=True)
class TileCall(OpenedCall):
    """Measure a tile, whose parts another shard or a call that was lost may have stored in the meantime.
    `size` is the size of tiles, which depends on the kind of device."""

    tile: Tile
    size: int

    def __call__(self, run: Run) -> Any:
        if (parts := stored_parts(run.store, self.tile.keys)) is not None:
            return parts
        with self.opened(run) as (evaluation, evaluator):
            if evaluator.size != self.size:
                raise RbError(
                    f"A worker on {evaluator.device} measures {evaluator.size} images together, but other"
                    f" workers measure {self.size}. Select the same device for all with --device."
                )
            first, stop = self.tile.examples[0] + 1, self.tile.examples.stop
            said = f"{evaluation.title} · images {first} to {stop}"
            evaluator.watch = lambda words, passes: run.report.progress(f"{said} · {words}".strip(" ·"))
            return evaluator.measure(self.tile)[1]
