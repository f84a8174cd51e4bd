"""Five tests for masked gradients (NAS-RobBench-201, tables 4 and 5)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from rbtools.evaluation.accuracy import Attacked, Clean
from rbtools.evaluation.spec import Evaluation
from rbtools.execution.run import Run
from rbtools.inputs import queried
from rbtools.jobs.evaluate_record import Ask, Entries, Entry, Plan, PlanJob
from rbtools.records import metric_name

BEYOND = (16.0, 32.0, 64.0, 128.0, 255.0)
METRIC = "obfuscation.failed"
_RARE = 0.01  # the tolerated share of images that random passes may misjudge


@dataclass(frozen=True, kw_only=True)
class MaskingChecklist(PlanJob):
    """Evaluates FGSM, PGD (with `eps` and larger distances), Square and random points on the same images. The
    result also contains `obfuscation.failed`, the number of tests that fail."""

    eps: float
    pgd: Any
    fgsm: Any
    square: Any
    noise: Any

    @property
    def distances(self) -> tuple[float, ...]:
        """The eps values of PGD: `eps` and each of 16/255, 32/255, 64/255, 128/255 and 1 that is larger."""
        return (self.eps, *(level / 255 for level in BEYOND if level / 255 > self.eps))

    def plans(self, record: dict[str, Any], run: Run) -> Sequence[Plan]:
        return [self._tested]

    def _tested(self, ask: Ask) -> Iterator[Entries]:
        run = ask.inputs.run
        only_answers = queried.answers_of(ask.inputs.record, run) in ("logits", "labels")
        ladder, others = (self.square, ()) if only_answers else (self.pgd, (self.fgsm, self.square))
        methods = [replace(ladder, eps=eps) for eps in self.distances]
        methods += [replace(method, eps=self.eps) for method in (*others, self.noise)]
        asked = ask.able(
            Evaluation(
                title="obfuscation checklist",
                specs=tuple(Attacked(method=method) for method in methods),
                along=(Clean(),),
            )
        )
        if only_answers:
            run.report.notify("Tests a and b are left out: PGD needs gradients, but the model has none.")
        specs, expected = asked.specs, ask.expected(asked)
        yield [*expected, _checklist_entry(self, expected[0], run)]
        found = ask(asked)
        pgd, *_, noise = (spec.by_draws(ask.draws) if ask.draws else spec for spec in specs)
        missed = pgd.correct(found.rows(pgd, again=True)) & ~noise.correct(found.rows(noise, again=True))
        tests = _tests(found.entries, float(missed.mean()), rare=_RARE if ask.draws else 0)
        failed = [test for test in tests if not test["holds"]]
        for test in failed:
            run.report.notify(f"obfuscation check {test['test']} fails: {test['says']}.")
        entry = _checklist_entry(self, found.entries[0], run)
        left_out = {"left_out": ["a", "b"]} if only_answers else {}
        yield [*found.entries, entry | {"value": len(failed), "tests": tests, **left_out}]


def _checklist_entry(checklist: MaskingChecklist, first: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """The checklist's entry without results, with the fields that `first`, another entry, shares."""
    shared = ("n", "image_list", "split", "seed", "draws", "defend", "backward")
    shared_costs = ("device", "precision", "environment", "versions", "prepared")
    return {
        **run.labels,
        "metric": metric_name.split_name(METRIC, run.selection.split),
        **{key: first[key] for key in (*shared, *shared_costs) if key in first},
        "eps": checklist.eps,
    }


def _tests(entries: Sequence[Entry], missed: float, rare: float) -> list[Entry]:
    """Each test, whether it holds, and its margin, which is positive if the test holds.

    `entries` are the entries of PGD at each distance, FGSM, Square and random points, or for a model that
    can only be queried, of Square at each distance and of random points. For a randomised model,
    the entries contain standard errors over repeated passes, and a difference of at most two standard errors
    counts as noise. `missed` is the share of images that random points break and PGD does not break. `rare`
    is the share of images that is tolerated as chance.
    """

    def compared(name: str, weak: Entry) -> Entry:
        says = f"{weak['metric']} >= {pgd['metric']}"
        return _test(name, says, weak["value"] - pgd["value"], noise(weak, pgd))

    def noise(*some: Entry) -> float:
        return 2 * math.hypot(*(entry.get("draws_error", 0.0) for entry in some))

    ladder = [entry for entry in entries[:-1] if entry["attack"] == entries[0]["attack"]]
    others = entries[len(ladder) : -1]
    attack = "PGD" if entries[0]["attack"] == "pgd" else "Square"
    pgd, farthest, names = ladder[0], ladder[-1], [entry["metric"] for entry in ladder]
    rises = [(later["value"] - sooner["value"], noise(sooner, later)) for sooner, later in pairwise(ladder)]
    steepest, chance = max(rises, key=lambda rise: rise[0] - rise[1], default=(0.0, 0.0))
    says = f"{attack}'s accuracy never rises with the distance ({', '.join(names)})"
    return [
        *(compared(name, weak) for name, weak in zip("ab", others, strict=False)),
        _test("c", f"{farthest['metric']} is 0", -farthest["value"], rare),
        _test("d", says, -steepest, chance),
        _test("e", f"random points fool the model on no image that {attack} left correct", -missed, rare),
    ]


def _test(name: str, says: str, margin: float, noise: float) -> Entry:
    holds = margin >= -noise
    short = "" if holds else f": violated by {-margin:.4g}"
    within = {"noise": round(noise, 6)} if noise else {}
    return {"test": name, "says": f"{says}{short}", "holds": holds, "by": round(margin, 6) + 0.0, **within}
