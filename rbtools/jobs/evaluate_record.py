"""Plans, and the execution of a plan on a record: the check before the work, the work, and the results.

A plan is a function that asks for the results of evaluations and returns entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson

from rbtools.evaluation import model_checks
from rbtools.evaluation.accuracy import Clean
from rbtools.evaluation.spec import Evaluation, Spec
from rbtools.execution.run import Run
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
    unknown,
)
from rbtools.records import answers, dumps, results


class Ask:
    """The argument of a plan. `ask(evaluation)` returns the results of an evaluation, which are read from the
    store or measured.

    A plan is called once with `before`, when results are only partly known (`expected_entries`), and once to
    do the work. `inputs` is the record on the split that the run names. `draws` is the number of passes over
    which verdicts on a randomised model are averaged, and 0 for other models. `along` contains additional
    results, which are added to the record unless the record has other results of the same names.
    """

    def __init__(self, inputs: Inputs, *, before: bool) -> None:
        self.inputs, self.before = inputs, before
        self.draws = randomness.draws_of(inputs)
        self.along: Entries = []
        self.asked: list[tuple[Inputs, Results]] = []

    def __call__(self, evaluation: Evaluation, *places: Inputs) -> Any:
        """The results of the evaluation, or a list of its results on the images of each of `places`."""
        judged = randomness.judged(self.inputs, evaluation, tell=not self.before)
        run, found = self.inputs.run, list[Results]()
        if self.before:
            found = [
                Results(expected_entries(inputs, judged), [], unknown) for inputs in places or [self.inputs]
            ]
        elif run.plan is not None:
            found = run.plan.each(
                [partial(task_entries, inputs, judged) for inputs in places or [self.inputs]]
            )
        else:
            for inputs in places or [self.inputs]:
                found.append(task_entries(inputs, judged))
        if not self.before:
            self.asked += zip(places or [self.inputs], found, strict=True)
            self.along += [entry for results in found for entry in results.along]
        return found if places else found[0]


Plan = Callable[[Ask], Entries]


class PlanJob(SplitJob):
    """A job that runs some plans, one after another, and adds their entries to a record."""

    def plans(self) -> Sequence[Plan]:
        raise NotImplementedError

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        """The record with the entries of the plans. Raises RbError if the model or the data are missing, or
        if the record has a result of the same name with another protocol."""
        plans = self.plans()
        if run.plan is not None and len(plans) > 1:
            run.plan.each([partial(_SinglePlan(plan), record, run) for plan in plans])
        for plan in plans:
            inputs = resolve_inputs(record, run)
            _check_entries(inputs.record, plan(Ask(inputs, before=True)), run)
            ask = Ask(inputs, before=False)
            entries = plan(ask)
            record = beside(record, _with_entries(ask, entries))
        return record


@dataclass(frozen=True)
class _SinglePlan(PlanJob):
    plan: Plan

    def plans(self) -> Sequence[Plan]:
        return [self.plan]


def _with_entries(ask: Ask, entries: Entries) -> dict[str, Any]:
    """The record with the entries of a plan, and with the results that were measured along."""
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
    """A job that makes some evaluations of the record's model, one after another."""

    evaluations: tuple[Evaluation, ...]

    def plans(self) -> Sequence[Plan]:
        return [partial(evaluated, evaluation=one) for one in self.evaluations]


def evaluated(ask: Ask, evaluation: Evaluation) -> Entries:
    """The plan that asks for one evaluation."""
    among = ask.inputs.data.about.present
    if among and evaluation.specs[0].is_clean and not ask.draws:
        evaluation = replace(evaluation, specs=(Clean(among=among), *evaluation.specs))
    entries = ask(evaluation).entries
    for spec in evaluation.specs if not ask.before else ():
        if (real := spec.without_grid()) is not None and not ask.draws:
            _report_grid(ask.inputs, spec, real)
    return entries


def _report_grid(inputs: Inputs, spec: Spec, real: Spec) -> None:
    """Report how an attack's pixel grid changes the accuracy, if the store has the result without a grid."""
    value, of_real = (stored_value(inputs, one) for one in (spec, real))
    if value is not None and of_real is not None:
        more = value - of_real
        side = f"{abs(more):.4f} {'below' if more < 0 else 'above'}"
        inputs.run.report.notify(
            f"{spec.name()} on 8-bit images: {value:.4f}, {side} the one on real-valued images."
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
