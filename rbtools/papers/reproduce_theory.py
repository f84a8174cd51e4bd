"""The theory of NAS-RobBench-201: its bounds, compared with the results of training.

Residual networks fcnn (theorems 1 and 2) and rescnn (corollary 1) are trained with algorithm 1 on two classes
of images, which are scaled to norm 1. The function f of the theory is the difference of the network's two
logits. The adversary of definition 1 moves an image on the sphere by an L2 distance of at most rho. The
tables show the errors of training beside the bounds, in which the constants of the theorem are omitted. The
paper prints no values. `make reproduce-prbench` and `make reproduce-wci` also print the bounds of the two
other papers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from rbtools.papers import items
from rbtools.papers import sidebyside as side

# Errors of training are measured under L-infinity attacks, but the bounds are for L2 on the sphere.
OTHER_BALL = "robust error in L-infinity"
THEOREM_1 = ("clean bound", "clean error", "robust bound", OTHER_BALL)
ALGORITHM_1 = ("step size", "iterations", "iterate drawn")
# Maps each column to the beginning of a metric's name; names of robust metrics end with the attack.
METRICS = {
    "theorem 1": {"clean bound": "bound.robbench1.clean", "robust bound": "bound.robbench1.robust"},
    "theorem 2": {
        "clean bound": "bound.robbench2.clean",
        "clean kernel": "ntk.clean.lmin",
        "robust bound": "bound.robbench2.robust",
        "robust kernel": "ntk.robust.lmin",
    },
}


def columns_of(record: dict[str, Any], theorem: str) -> side.Row:
    found: side.Row = {}
    metrics = record.get("metrics", {})
    for column, start in METRICS[theorem].items():
        names = [name for name in metrics if re.fullmatch(re.escape(start) + r"(\.pgd.*)?", name)]
        found[column] = metrics[names[0]] if names else None
    if theorem == "theorem 1":
        accuracy = metrics.get("acc")
        errors = record.get("train", {}).get("history", {}).get("test_robust_error") or [None]
        found |= {"clean error": None if accuracy is None else 1 - accuracy, OTHER_BALL: errors[-1]}
    return found


def training(record: dict[str, Any]) -> side.Row:
    train = record.get("train", {})
    output, rates = train.get("output", {}), train.get("history", {}).get("lr") or [None]
    return dict(zip(ALGORITHM_1, (rates[0], output.get("of"), output.get("step")), strict=True))


def tables(records: side.Records, scale: str) -> dict[str, side.PaperTable]:
    """One table for each theorem, for the corollary and for the algorithm, with one row for each network."""

    def table(title: str, columns: Sequence[str], space: str, values: Any) -> side.PaperTable:
        some = [one for one in records if one["arch"]["space"] in space.split()]
        rows = {f"{one['arch']['name']} {one['arch']['str']}": values(one) for one in some}
        return side.PaperTable(title, {}, rows, columns, lambda _, value: side.rounded(value))

    first, second = (partial(columns_of, theorem=theorem) for theorem in METRICS)
    bounds = "bounds of the expected errors, and errors of algorithm 1"
    return {
        "theorem 1": table(f"Theorem 1, {bounds}", THEOREM_1, "fcnn", first),
        "corollary 1": table(f"Corollary 1, {bounds}", THEOREM_1, "rescnn", first),
        "theorem 2": table(
            "Theorem 2, lower bounds of the smallest eigenvalue, and those of the kernels",
            tuple(METRICS["theorem 2"]),
            "fcnn",
            second,
        ),
        "algorithm 1": table("Algorithm 1, its trainings", ALGORITHM_1, "fcnn rescnn", training),
    }


def claims(records: side.Records, scale: str, made: side.Tables) -> list[side.Claim]:
    """Whether errors are below the bounds of theorem 1 and eigenvalues above the bounds of theorem 2; vacuous
    bounds are skipped."""
    rows = {f"{number} {name}": row for number, one in made.items() for name, row in one.ours.items()}
    told = {
        name: {column: _unless_vacuous(name, column, value) for column, value in row.items()}
        for name, row in rows.items()
    }
    found = []
    for words, tests in items.paper("theory", scale).claims:
        claim = side.tested(words, tests, told)
        vacuous = claim.holds is None and side.tested(words, tests, rows).holds is not None
        found.append(claim._replace(found="all bounds are vacuous") if vacuous else claim)
    return found


def _unless_vacuous(number: str, column: str, value: float | None) -> float | None:
    """The value; None for a vacuous bound: at least 1 for an error, or at most 0 for an eigenvalue."""
    if value is None or not column.endswith("bound"):
        return value
    vacuous = value <= 0 if number.startswith("theorem 2") else value >= 1
    return None if vacuous else value


def report(records: side.Records, scale: str) -> str:
    """The tables, the bounds with their inputs for each search space, and the claims."""
    made = tables(records, scale)
    texts = [table.text() for table in made.values()]
    for space in dict.fromkeys(record["arch"]["space"] for record in records):
        some = [record for record in records if record["arch"]["space"] == space]
        texts.append(f"{space}: {len(some)} networks\n\n{side.theory_text(some)}")
    return "\n".join([*texts, side.told(claims(records, scale, made))])
