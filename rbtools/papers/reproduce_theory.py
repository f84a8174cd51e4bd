"""The theory of NAS-RobBench-201: its bounds, compared with the results of training.

Residual networks fcnn (theorems 1 and 2) and rescnn (corollary 1) are trained with algorithm 1 on two classes
of images, which are scaled to norm 1. The function f of the theory is the difference of the network's two
logits. The adversary of definition 1 moves an image on the sphere by an L2 distance of at most rho. The
tables show the errors of training next to the bounds, in which the constants of the theorem are omitted. The
paper prints no values. `make reproduce-prbench` and `make reproduce-wci` also print the bounds of the two
other papers.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rbtools.papers import items
from rbtools.papers import sidebyside as side

ALGORITHM_1 = ("step size", "iterations", "iterate drawn")
# Maps each column to a metric, as a pattern: robust metrics end with their attack. A limit is in the
# entry of the metric. Errors are those of the drawn iterate.
_THEOREM_1 = {
    "clean bound": "bound.robbench1.clean.*",
    "clean error": "acc",
    "robust bound": "bound.robbench1.robust.*",
    "robust error": "pgd*.sphere.*",
}
METRICS = {
    "theorem 1": _THEOREM_1,
    "corollary 1": _THEOREM_1,
    "theorem 2": {
        "clean bound": "bound.robbench2.clean",
        "clean kernel": "ntk.clean.lmin*",
        "robust bound": "bound.robbench2.robust.*",
        "robust kernel": "ntk.robust.lmin*",
    },
    "lemma 1": {"zeta": "bound.singular", "zeta allowed": "limit bound.singular"},
    "lemma 2": {"spectral norm": "bound.spectral", "limit": "limit bound.spectral"},
    "lemma 9": {
        "spectral norm": "bound.spectral",
        "limit": "limit bound.spectral",
        "norm of the last layer": "bound.frobenius",
        "its limit": "limit bound.frobenius",
    },
}

_ERRORS = "bounds of the expected errors, and errors of algorithm 1"
# The search spaces and the title of each table.
TITLES = {
    "theorem 1": ("fcnn", _ERRORS),
    "corollary 1": ("rescnn", _ERRORS),
    "theorem 2": ("fcnn", "lower bounds of the smallest eigenvalues, and these eigenvalues"),
    "lemma 1": ("fcnn rescnn", "singular values of fresh weights, as the smallest zeta that holds"),
    "lemma 2": ("fcnn", "spectral norms of fresh weights"),
    "lemma 9": ("rescnn", "spectral norms of fresh weights, and the Frobenius norm of the last layer"),
}


def columns_of(record: dict[str, Any], columns: Mapping[str, str]) -> side.Row:
    metrics = dict(record.get("metrics", {}))
    for entry in record.get("evals", ()):
        metrics[f"limit {entry['metric']}"] = entry.get("inputs", {}).get("limit")
    found: side.Row = {}
    for column, pattern in columns.items():
        value = next((metrics[name] for name in fnmatch.filter(metrics, pattern)), None)
        found[column] = 1 - value if column.endswith("error") and value is not None else value
    return found


def training(record: dict[str, Any]) -> side.Row:
    train = record.get("train", {})
    output, rates = train.get("output", {}), train.get("history", {}).get("lr") or [None]
    return dict(zip(ALGORITHM_1, (rates[0], output.get("of"), output.get("step")), strict=True))


def tables(records: side.Records, scale: str) -> dict[str, side.PaperTable]:
    """One table for each theorem and lemma, for the corollary and for the algorithm, with one row for each
    network."""

    def table(title: str, space: str, columns: Sequence[str], values: Any) -> side.PaperTable:
        some = [one for one in records if one["arch"]["space"] in space.split()]
        rows = {f"{one['arch']['name']} {one['arch']['str']}": values(one) for one in some}
        if title.startswith("Lemma"):  # networks that differ in activations alone have the same fresh weights
            firsts = {tuple(row.values()): name for name, row in reversed(rows.items())}
            rows = {name: row for name, row in rows.items() if name in firsts.values()}
        return side.PaperTable(title, {}, rows, columns, lambda _, value: side.rounded(value))

    made = {}
    for number, (space, title) in TITLES.items():
        columns = METRICS[number]
        values = partial(columns_of, columns=columns)
        made[number] = table(f"{number.capitalize()}, {title}", space, tuple(columns), values)
    title = "Algorithm 1, training runs"
    return {**made, "algorithm 1": table(title, "fcnn rescnn", ALGORITHM_1, training)}


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
