"""Accuracy on the images that are still correct under several evaluations, such as `union(aa.8, aa.l2.0.5,
corrupt.fog.3)`.

An image counts if it counts in every part. The value is the accuracy against an adversary who chooses the
attack or corruption for each image (Tramer and Boneh 2019, arXiv:1904.13000, the union of perturbation sets).
The value is at most the minimum over the parts, which is `min(...)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.proportions import wilson
from rbtools.records import answers, expr, metric_name, results, schema

Record = Mapping[str, Any]
FUNCTIONS = frozenset({"union", "union.common"})  # names in expressions
_MOST_SECONDS = 10.0  # time limit of the search for the smallest set


class Union(NamedTuple):
    """The parts of a union, and a mask bool (P, N) of the images that count in each part."""

    names: list[str]
    right: np.ndarray
    examples: str

    @property
    def survived(self) -> np.ndarray:
        """The mask (N,) of the images that count in every part."""
        survived: np.ndarray = np.logical_and.reduce(self.right)
        return survived


def union(record: Record, names: Sequence[str]) -> float:
    """The share of images that count in all these metrics. A glob selects only metrics that are shares of
    images. Raises MissingName if the record lacks a metric, and RbError if a metric has no per-image
    results, or if the parts differ in weights, examples or the number of examples."""
    return float(union_of(record, names).survived.mean())


def common_union(record: Record, names: Sequence[str]) -> float:
    """Like `union`, but only on the images that all parts have in common, which are the first images."""
    return float(union_of(record, names, common=True).survived.mean())


def union_of(record: Record, names: Sequence[str], *, common: bool = False) -> Union:
    entries = [{"metric": name, **results.last_entry(record, name)} for name in _metrics(record, names)]
    parts = [(entry, answers.needed(entry, entry["metric"])) for entry in entries]
    (first, given), *others = parts
    for entry, answer in others:
        problem = f"union() needs the same images and weights, but {first['metric']} and {entry['metric']}"
        if answer.examples != given.examples:
            split = first.get("split") != entry.get("split")
            fields = {"split"} if split else schema.of_images() - {"n"}
            differ = [
                f"{name} {first.get(name)} and {entry.get(name)}"
                for name in sorted(fields)
                if first.get(name) != entry.get(name)
            ]
            raise RbError(f"{problem} have different examples{': ' if differ else ''}{', '.join(differ)}.")
        if entry.get("on") != first.get("on"):
            raise RbError(f"{problem} have different weights: {first.get('on')} and {entry.get('on')}.")
        if len(answer.right) != len(given.right) and not common:
            raise RbError(
                f"{problem} have {len(given.right)} and {len(answer.right)} images. Use union.common(...) for"
                f" the {min(len(answer.right), len(given.right))} images that both have, or evaluate both"
                " with the same --n."
            )
    count = min(len(answer.right) for _, answer in parts)
    rows = np.stack([answer.right[:count] for _, answer in parts])
    return Union([entry["metric"] for entry in entries], rows, given.examples)


def _metrics(record: Record, names: Sequence[str]) -> list[str]:
    metrics = record.get("metrics") or {}
    chosen: dict[str, None] = {}
    for name in names:
        matching = expr.expand(name, metrics)
        if not matching:
            raise expr.MissingName(name, {"metrics": metrics})
        if expr.is_glob(name):
            shares = [one for one in matching if _judges_images(record, one)]
            if not shares:
                raise RbError(f"{name} does not match a share of images: {', '.join(matching[:4])}.")
            matching = shares
        chosen.update(dict.fromkeys(matching))
    return list(chosen)


def _judges_images(record: Record, metric: str) -> bool:
    """Whether the name of a metric or, with --as, its entry describes a share of images."""
    entry = results.last_entry(record, metric)
    return metric_name.is_share_of_images(metric) or (answers.FIELD in entry and "union" not in entry)


def entry(record: Record, expression: expr.Expression, *, explain: bool = False) -> dict[str, Any]:
    """The fields in the entry of a union: value, interval, parts, and per-image results. If `explain`
    is true, the images that each part breaks are added. Raises the same errors as `union`."""
    assert expression.union is not None
    whole = union_of(record, expression.union, common=expression.text.startswith("union.common"))
    survived = whole.survived
    n, right = len(survived), int(survived.sum())
    first = results.last_entry(record, whole.names[0])
    images = {name: first[name] for name in sorted(schema.of_images() - {"n"}) if name in first}
    return {
        **images,
        "n": n,
        "value": right / n,
        "ci95": list(wilson(right, n)),
        "union": {
            name: round(float(row.mean()), 6) for name, row in zip(whole.names, whole.right, strict=True)
        },
        **({"explained": explained(whole)} if explain else {}),
        answers.FIELD: answers.packed(survived, whole.examples),
    }


def among(texts: Iterable[str]) -> list[expr.Expression]:
    """Select the strings that are expressions of unions; any other string may be the name of a metric."""
    expressions = [expr.Expression(text, any_name=True) for text in dict.fromkeys(texts)]
    return [one for one in expressions if one.union is not None]


def with_entries(record: dict[str, Any], expressions: Sequence[expr.Expression]) -> dict[str, Any]:
    """A copy of the record in which each union is a metric, called by its expression, with an interval and
    per-image results. Unions without a value are left out."""
    for expression in expressions:
        if expression.text not in (record.get("metrics") or {}):
            try:
                fields = entry(record, expression)
            except RbError:
                continue
            about = {"tool": "rb-score", "metric": expression.text, "expression": expression.text}
            record = results.add(record, {**about, **fields}, replace=True)
    return record


def explained(whole: Union) -> dict[str, Any]:
    """Describes which images each part of a union breaks.

    `broken` is the number of images that the part breaks, and `only` the number that no other part breaks.
    `gain` lists the parts in the greedy order of `gains`, with numbers of images. `smallest` is the smallest
    set of parts with the same union. `proven` is false if the search for this set was stopped.
    """
    broken = ~whole.right
    alone = broken & (broken.sum(0) == 1)
    smallest, proven = smallest_set(broken)
    return {
        "broken": dict(zip(whole.names, broken.sum(1).tolist(), strict=True)),
        "only": dict(zip(whole.names, alone.sum(1).tolist(), strict=True)),
        "gain": [[whole.names[part], gain] for part, gain in gains(broken)],
        "smallest": [whole.names[part] for part in smallest],
        **({} if proven else {"proven": False}),
    }


def gains(broken: np.ndarray) -> list[tuple[int, int]]:
    """The parts and numbers of images in greedy order: each part breaks most of the remaining images.
    `broken` is bool (P, N)."""
    left, parts = np.ones(broken.shape[1], bool), list(range(len(broken)))
    order = []
    while parts:
        counts = [int((broken[part] & left).sum()) for part in parts]
        part = parts.pop(int(np.argmax(counts)))
        order.append((part, max(counts)))
        left &= ~broken[part]
    return order


def smallest_set(broken: np.ndarray) -> tuple[list[int], bool]:
    """The smallest set of parts that together break all broken images, and whether this is proven. `broken`
    is bool (P, N). In an integer program, a chosen part must break each kind of broken image."""
    from scipy.optimize import LinearConstraint, milp

    images = np.unique(broken[:, broken.any(0)], axis=1).T
    if not len(images):
        return [], True
    parts = len(broken)
    found = milp(
        np.ones(parts),
        integrality=np.ones(parts),
        bounds=(0, 1),
        constraints=LinearConstraint(images.astype(float), 1),
        options={"time_limit": _MOST_SECONDS},
    )
    if found.x is None:
        return np.flatnonzero(broken.any(1)).tolist(), False
    return np.flatnonzero(found.x > 0.5).tolist(), found.status == 0
