"""Five tests for masked gradients (NAS-RobBench-201, tables 4 and 5)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rbtools.evaluation.accuracy import Attacked, Clean
from rbtools.evaluation.spec import Evaluation
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.jobs import SplitJob, evaluate_record, randomness
from rbtools.records import metric_name, results

if TYPE_CHECKING:
    from rbtools.attacks.base import Attack

BEYOND = (16.0, 32.0, 64.0, 128.0, 255.0)
METRIC = "obfuscation.failed"
_RARE = 0.01  # of a randomised model: the share of images that a decision by draws may get wrong


@dataclass(frozen=True, kw_only=True)
class MaskingChecklist(SplitJob):
    """FGSM, PGD from this eps up to the whole range, Square and random points, on the same images.

    draws: of a randomised model, for each verdict.
    """

    eps: float
    pgd: Any
    fgsm: Any
    square: Any
    noise: Any
    draws: int = 0

    @property
    def distances(self) -> tuple[float, ...]:
        """The eps of PGD: this one, and those of 16, 32, 64, 128 and 255 /255 that are larger."""
        return (self.eps, *(level / 255 for level in BEYOND if level / 255 > self.eps))

    def evaluation(self) -> Evaluation:
        """The accuracies that the tests compare: of PGD at each distance, FGSM, Square and random points."""
        methods = [replace(self.pgd, eps=eps) for eps in self.distances]
        methods += [replace(method, eps=self.eps) for method in (self.fgsm, self.square, self.noise)]
        return Evaluation(
            title="obfuscation checklist",
            specs=tuple(Attacked(method=method, draws=self.draws) for method in methods),
            along=(Clean(draws=self.draws),),
        )

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        """The record with the accuracies that the tests compare, and `obfuscation.failed`: how many fail."""
        inputs = resolve_inputs(record, run)
        checklist, look = self, randomness.found(inputs)
        if look.randomised and run.settings.draws > 1:
            draws = run.settings.draws
            randomness.tell(inputs, draws)
            methods = {name: getattr(checklist, name) for name in ("pgd", "fgsm", "square", "noise")}
            means = {name: replace(method, eot=draws) for name, method in methods.items()}
            checklist = replace(self, draws=draws, **means)
        evaluation = checklist.evaluation()
        expected = evaluate_record.expected_entries(inputs, evaluation)
        evaluate_record.check_entries(
            inputs.record, [*expected, _checklist_entry(checklist, expected[0], run)], run
        )
        record, (requested, along, rows) = evaluate_record.measured_entries(inputs, evaluation)
        for entry in along:
            record = results.add_implicit(record, entry)
        record = evaluate_record.add_entries(record, requested, run)
        pgd, noise = evaluation.specs[0], evaluation.specs[-1]
        missed = float((pgd.correct(rows(pgd, again=True)) & ~noise.correct(rows(noise, again=True))).mean())
        values = {entry["metric"]: entry["value"] for entry in requested}
        errors = {entry["metric"]: entry.get("draws_error", 0.0) for entry in requested}
        tests = list(_tests(checklist, values, errors, missed, run.selection.split))
        failed = [test for test in tests if not test["holds"]]
        for test in failed:
            run.report.notify(f"obfuscation check {test['test']} fails: {test['says']}.")
        entry = _checklist_entry(checklist, requested[0], run) | {"value": len(failed), "tests": tests}
        return results.add(record, entry, replace=run.replace)


def _checklist_entry(checklist: MaskingChecklist, first: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """The checklist's own entry without its results; shared fields come from the `first` of the others."""
    shared = ("n", "split", "seed", "draws", "defend", "backward")
    shared_costs = ("device", "precision", "environment", "prepared")
    return {
        **run.labels,
        "metric": metric_name.split_name(METRIC, run.selection.split),
        **{key: first[key] for key in (*shared, *shared_costs) if key in first},
        "eps": checklist.eps,
    }


def _tests(
    checklist: MaskingChecklist,
    value: Mapping[str, float],
    error: Mapping[str, float],
    missed: float,
    split: str,
) -> list[dict[str, Any]]:
    """Each test, whether it holds, and its margin (positive if it holds).

    error: the standard errors of values of a randomised model by its draws; a difference within two of them
    is noise.
    """

    def named(method: Attack, eps: float) -> str:
        return metric_name.split_name(metric_name.attack_name(method.stem, eps), split)

    def noise(*metrics: str) -> float:
        return 2 * math.hypot(*(error[metric] for metric in metrics))

    pgd = named(checklist.pgd, checklist.eps)
    fgsm, square = named(checklist.fgsm, checklist.eps), named(checklist.square, checklist.eps)
    ladder = [named(checklist.pgd, eps) for eps in checklist.distances]
    steps = list(itertools.pairwise(ladder))
    rises = [(value[later] - value[sooner], noise(sooner, later)) for sooner, later in steps]
    steepest, chance = max(rises, key=lambda rise: rise[0] - rise[1], default=(0.0, 0.0))
    return [
        _test("a", f"{fgsm} >= {pgd}", value[fgsm] - value[pgd], noise(fgsm, pgd)),
        _test("b", f"{square} >= {pgd}", value[square] - value[pgd], noise(square, pgd)),
        _test("c", f"{ladder[-1]} is 0", -value[ladder[-1]], _RARE if checklist.draws else 0),
        _test("d", f"PGD's accuracy never rises with the distance ({', '.join(ladder)})", -steepest, chance),
        _test("e", "random points break nothing that PGD leaves", -missed, _RARE if checklist.draws else 0),
    ]


def _test(name: str, says: str, margin: float, noise: float) -> dict[str, Any]:
    holds = margin >= -noise
    short = "" if holds else f", but it is not so by {-margin:.4g}"
    within = {"noise": round(noise, 6)} if noise else {}
    return {"test": name, "says": f"{says}{short}", "holds": holds, "by": round(margin, 6) + 0.0, **within}
