"""Plans, and the execution of a plan on a record: the check before the work, the work, and the results.

A plan is a generator that yields its entries twice. It first yields what is known before the work, so that
conflicts with earlier results of the same name are found. It then requests the results, and yields the
measured entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson

from rbtools.evaluation import model_checks
from rbtools.evaluation.accuracy import Clean
from rbtools.evaluation.attacking import CannotRun
from rbtools.evaluation.spec import Evaluation, Spec
from rbtools.execution.run import Run
from rbtools.inputs import queried
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.inputs.data import beside
from rbtools.inputs.resolve import Inputs
from rbtools.jobs import SplitJob, randomness
from rbtools.jobs.stored_results import (
    NO_FAST_MODEL,
    Entries,
    Entry,
    Results,
    examples_digest,
    expected_entries,
    renamed,
    stored_value,
    task_entries,
)
from rbtools.records import answers, dumps, results
from rbtools.scoring.derived import derived


class Ask:
    """The argument of a plan. `ask.expected(evaluation)` returns what is known about the entries of an
    evaluation before the work, and `ask(evaluation)` reads its results from the store or measures them.

    `inputs` is the record on the split that the run names. For a randomised model, verdicts are means over
    `draws` passes; for other models, `draws` is 0. `along` contains additional results, which are added to
    the record unless the record has other results of the same names.
    """

    def __init__(self, inputs: Inputs) -> None:
        self.inputs, self.draws = inputs, randomness.draws_of(inputs)
        self.along: Entries = []
        self.asked: list[tuple[Inputs, Results]] = []

    def able(self, evaluation: Evaluation) -> Evaluation:
        return able(evaluation, self.inputs.record, self.inputs.run)

    def expected(self, evaluation: Evaluation, place: Inputs | None = None) -> Entries:
        """The expected entries of the evaluation on the images of `place`, or of the record."""
        judged = randomness.judged(self.inputs, self.able(evaluation), tell=False)
        return expected_entries(place or self.inputs, judged)

    def __call__(self, evaluation: Evaluation, *places: Inputs) -> Any:
        """The results of the evaluation, or a list of its results on the images of each of `places`."""
        able, plan = self.able(evaluation), self.inputs.run.plan
        judged = randomness.judged(self.inputs, able, tell=True)
        calls = [partial(task_entries, inputs, judged) for inputs in places or [self.inputs]]
        found: list[Results] = [call() for call in calls] if plan is None else plan.each(calls)
        self.asked += zip(places or [self.inputs], found, strict=True)
        self.along += [entry for results in found for entry in results.along]
        return found if places else found[0]


Plan = Callable[[Ask], Iterator[Entries]]


class PlanJob(SplitJob):
    """A job that runs some plans, one after another, and adds their entries to a record."""

    def plans(self, record: dict[str, Any], run: Run) -> Sequence[Plan]:
        """The plans for a record. Raises RbError if none can run on its model."""
        raise NotImplementedError

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        """The record with the entries of the plans. Raises RbError if the model or the data are missing, or
        if the record has a result of the same name with a different protocol."""
        plans = self.plans(record, run)
        if run.plan is not None and len(plans) > 1:
            run.plan.each([partial(_SinglePlan(plan), record, run) for plan in plans])
        for plan in plans:
            ask = Ask(resolve_inputs(record, run))
            steps = plan(ask)
            _check_entries(ask.inputs.record, next(steps), run)
            record = beside(record, _with_entries(ask, next(steps)))
        return record


@dataclass(frozen=True)
class _SinglePlan(PlanJob):
    plan: Plan

    def plans(self, record: dict[str, Any], run: Run) -> Sequence[Plan]:
        return [self.plan]


def _with_entries(ask: Ask, entries: Entries) -> dict[str, Any]:
    """The record with the entries of a plan, and with the results that were measured with them."""
    inputs, run = ask.inputs, ask.inputs.run
    record = randomness.marked(inputs.record_with_data(), inputs)
    added = [*ask.along, *entries]
    for place, (requested, along, _) in ask.asked:
        found = [one for one in (*requested, *along) if any(one is entry for entry in added)]
        if place is inputs:
            model_checks.report_checks(inputs.record, found, run)
        record = _with_classes(record, place, found)
    for entry in entries:
        for warning in entry.get("warnings", ()):
            if warning != NO_FAST_MODEL:  # its reason is already reported
                run.report.notify(f"{entry['metric']}: {warning}")
    for entry in ask.along:
        record = results.add_implicit(record, entry)
    return add_entries(record, entries, run)


@dataclass(frozen=True)
class EvaluateJob(PlanJob):
    """A job that runs several evaluations on the record's model, one after another."""

    evaluations: tuple[Evaluation, ...]

    def plans(self, record: dict[str, Any], run: Run) -> Sequence[Plan]:
        running, left_out = self.able(record, run)
        if left_out and not running:
            raise CannotRun(left_out[0])
        for text in left_out:
            run.report.notify(f"Left out: {text}")
        return [partial(evaluated, evaluation=one) for one in running]

    def able(self, record: dict[str, Any], run: Run) -> tuple[list[Evaluation], list[str]]:
        """The evaluations that can run on the record's model, and a description of what is left out."""
        running, left_out = list[Evaluation](), list[str]()
        for one in self.evaluations:
            try:
                remaining = able(one, record, run)
            except CannotRun as wrong:
                left_out.append(str(wrong))
                continue
            running.append(one)
            names = dict.fromkeys(name for spec in remaining.specs for name in getattr(spec, "left_out", ()))
            if names:
                left_out.append(f"{', '.join(names)} of {one.title}, which need more than a model's answers.")
        return running, left_out


def able(evaluation: Evaluation, record: Mapping[str, Any], run: Run) -> Evaluation:
    """The evaluation, or the part that can run if the model can only be queried. Raises CannotRun."""
    answers = queried.answers_of(record, run)
    if answers is None:
        return evaluation
    return evaluation.for_answers(answers, eight_bit=queried.eight_bit(record))


@dataclass(frozen=True)
class UnionJob(EvaluateJob):
    """An `EvaluateJob` that also adds the metric `union`: the share of images that withstand all attacks."""

    union: str

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        record = super().__call__(record, run)
        if run.plan is not None:
            return record
        if self.able(record, run)[1]:
            run.report.notify(f"{self.union} is left out, because not all of its attacks can run.")
            return record
        names = ", ".join(spec.name() for one in self.evaluations for spec in one.specs)
        return derived(f"{self.union}=union({names})").added(record, replace=run.replace)


def evaluated(ask: Ask, evaluation: Evaluation) -> Iterator[Entries]:
    """The plan that requests one evaluation."""
    among = ask.inputs.data.about.present
    if among and evaluation.specs[0].is_clean and not ask.draws:
        evaluation = replace(evaluation, specs=(Clean(among=among), *evaluation.specs))
    yield ask.expected(evaluation)
    entries = ask(evaluation).entries
    for spec in evaluation.specs:
        if (real := spec.without_grid()) is not None and not ask.draws:
            _report_grid(ask.inputs, spec, real)
    yield entries


def _report_grid(inputs: Inputs, spec: Spec, real: Spec) -> None:
    """Report how an attack's pixel grid changes the accuracy, if the store has the result without a grid."""
    value, of_real = (stored_value(inputs, one) for one in (spec, real))
    if value is not None and of_real is not None:
        more = value - of_real
        side = f"{abs(more):.4f} {'below' if more < 0 else 'above'}"
        inputs.run.report.notify(
            f"{spec.name()} on 8-bit images: {value:.4f}, {side} the value on real-valued images."
        )


def _with_classes(record: dict[str, Any], inputs: Inputs, entries: Entries) -> dict[str, Any]:
    """The record with the classes of the images for which entries contain answers. The classes are cached in
    the store, so stored results need no images."""
    if not any(answers.FIELD in entry for entry in entries):
        return record
    examples = examples_digest(inputs.data)
    key = f"classes:{examples}:{inputs.n}"
    classes = inputs.run.store.get(key)
    if classes is None:
        labels = inputs.data.load().labels
        classes = dumps(answers.packed_labels(labels[inputs.data.order(labels)[: inputs.n]].numpy())).decode()
        inputs.run.store.put(key, classes)
    return answers.with_labels(record, examples, orjson.loads(classes))


def add_entries(record: dict[str, Any], entries: Sequence[Entry], run: Run) -> dict[str, Any]:
    """Add entries to the record under their own names or under `--as NAME`. Raises RbError if an entry
    conflicts with an earlier one."""
    for entry in renamed(entries, run):
        record = results.add(record, entry, replace=run.replace)
    return record


def _check_entries(record: dict[str, Any], entries: Sequence[Entry], run: Run) -> None:
    """Raise RbError before the computation if `add_entries` would raise it after the computation."""
    if (other := next(results.edited(record), None)) is not None:
        run.report.notify(
            f"warning: {other['metric']} of a record differs from its entry in evals."
            " Measuring it again replaces it."
        )
    for entry in renamed(entries, run):
        if not run.replace:
            results.refuse(record, entry)
