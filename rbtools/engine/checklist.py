"""Is a model robust, or are its gradients only masked? Five tests (NAS-RobBench-201, tables 4 and 5)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rbtools.engine.questions import Clean, Column, Survived
from rbtools.records import metrics, results

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from rbtools.engine.run import Run
    from rbtools.engine.tiles import Found, Tile

BEYOND = (16.0, 32.0, 64.0, 128.0, 255.0)
METRIC = "obfuscation.failed"


@dataclass(frozen=True)
class Missed(Column):
    """Which examples random points break and gradients do not."""

    noise: Survived
    pgd: Survived
    byproduct = True
    leans = True

    def what(self) -> dict[str, Any]:
        return {"kind": "missed", "noise": self.noise.what(), "pgd": self.pgd.what()}

    @property
    def searches(self) -> bool:
        return True

    def asked(self) -> list[dict[str, Any]]:
        return [{"metric": "obfuscation.missed"}]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        n = len(outcomes)
        return [entry | {"n": n, "value": int(outcomes.sum()) / n} for entry in self.asked()]


@dataclass(frozen=True)
class Checklist:
    """FGSM, PGD from this distance up to the whole range, Square and random points, on the same images."""

    eps: float
    pgd: Any
    fgsm: Any
    square: Any
    noise: Any
    title = "obfuscation checklist"

    @property
    def distances(self) -> tuple[float, ...]:
        """Where PGD runs: here, and at 16, 32, 64, 128 and 255 /255 where these are larger."""
        return (self.eps, *(one / 255 for one in BEYOND if one / 255 > self.eps))

    def columns(self) -> Sequence[Column]:
        pgd = [Survived(replace(self.pgd, eps=eps)) for eps in self.distances]
        single = [Survived(replace(one, eps=self.eps)) for one in (self.fgsm, self.square, self.noise)]
        return [Clean(), *pgd, *single, Missed(single[-1], pgd[0])]

    def measure(self, tile: Tile, wanted: Sequence[Column]) -> Sequence[Tensor | Found]:
        from rbtools.engine import verdict
        from rbtools.engine.tiles import Found

        found: dict[Any, Any] = dict(tile.known)
        for column in wanted:
            if isinstance(column, Survived):
                seen = verdict.attacked(tile, column.method)
                found[column] = Found(seen.survived, seen.totals)
            elif isinstance(column, Missed):
                noise, pgd = (_bits(found[one]) for one in (column.noise, column.pgd))
                found[column] = pgd & ~noise
            else:
                found[column] = tile.clean
        return [found[column] for column in wanted]


def _bits(found: Any) -> Tensor:
    from rbtools.engine.tiles import Found

    values: Tensor = found.values if isinstance(found, Found) else found
    return values.bool()


def ask(record: dict[str, Any], question: Checklist, run: Run) -> dict[str, Any]:
    """The record with the accuracies that the tests compare, and `obfuscation.failed`: how many fail."""
    from rbtools.engine import checkpoints, evaluate

    record = checkpoints.prepared(record, run)
    wanted = evaluate.expected(record, question, run)
    evaluate.check(record, [*wanted, _verdict(question, wanted[0], run)], run)
    record, asked, byproducts = evaluate.answered(record, question, run)
    for entry in byproducts:
        if entry["metric"] == "acc":
            record = results.add_byproduct(record, entry)
    record = evaluate.put(record, asked, run)
    missed = next(one for one in byproducts if one["metric"].endswith("obfuscation.missed"))
    value = {one["metric"]: one["value"] for one in asked}
    tests = list(_tests(question, value, missed["value"], run.split))
    failed = [test for test in tests if not test["holds"]]
    for test in failed:
        run.remark(f"obfuscation check {test['test']} fails: {test['says']}.")
    entry = _verdict(question, asked[0], run) | {"value": len(failed), "tests": tests}
    return results.add(record, entry, replace=run.replace)


def _verdict(question: Checklist, first: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """The checklist's own entry without what was found; the `first` of the others tells the rest."""
    shared = ("n", "split", "seed", "draws", "device", "precision")
    return {
        "tool": run.tool,
        "metric": metrics.split_name(METRIC, run.split),
        **{key: first[key] for key in shared if key in first},
        "eps": question.eps,
    }


def _tests(
    question: Checklist, value: Mapping[str, float], missed: float, split: str
) -> list[dict[str, Any]]:
    """Each test with whether it holds, and by how much (above 0: so much to spare)."""

    def named(method: Any, eps: float) -> str:
        return metrics.split_name(metrics.attack_name(method.stem, eps), split)

    pgd = named(question.pgd, question.eps)
    fgsm, square = named(question.fgsm, question.eps), named(question.square, question.eps)
    ladder = [named(question.pgd, eps) for eps in question.distances]
    rises = [value[later] - value[sooner] for sooner, later in itertools.pairwise(ladder)]
    steepest = max(rises, default=0.0)
    end = ladder[-1]
    return [
        _test("a", f"{fgsm} >= {pgd}", value[fgsm] - value[pgd]),
        _test("b", f"{square} >= {pgd}", value[square] - value[pgd]),
        _test("c", f"{end} is 0", -value[end]),
        _test("d", f"PGD's accuracy never rises with the distance ({', '.join(ladder)})", -steepest),
        _test("e", "random points break nothing that PGD leaves", -missed),
    ]


def _test(name: str, says: str, margin: float) -> dict[str, Any]:
    holds = margin >= 0
    short = "" if holds else f", but it is not so by {-margin:.4g}"
    return {"test": name, "says": f"{says}{short}", "holds": holds, "by": round(margin, 6) + 0.0}
