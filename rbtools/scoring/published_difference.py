"""Compares a record's metrics with published values, and tests if sampling error explains the differences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rbtools.records import consistency, metric_name, results, schema

Record = Mapping[str, Any]
Entry = Mapping[str, Any]

LEVEL = 0.05
"""A difference with a smaller p-value is larger than the sampling error (1.96 standard errors)."""
_EPS = 0.02  # relative; RobustBench lists models attacked at 0.031 together with those at 8/255
# Fields of a published entry that are not settings of its measurement.
_APART = ("n", "source", "definition", "norm")
_GROUPS = ("publication", "calculation", "random numbers", "arithmetic")
_NOT_COMPARED = frozenset(_APART) | {field.name for field in schema.EVALS if field.group in _GROUPS}


def compared(record: Record, published: Record, images: int | None) -> dict[str, dict[str, Any]]:
    """Map each metric that both records have to the published value, the difference (ours minus published),
    and whether the difference is within the sampling error.

    `images` is the number of test images of the published numbers, or None if unknown. If our protocol
    differs from the published protocol, the metric has only a `reason`. If the metric has no standard errors,
    a `reason` replaces the verdict.
    """
    ours, theirs = map(results.by_metric, (record, published))
    metrics, theirs_by_name = record.get("metrics") or {}, published.get("metrics") or {}
    compared: dict[str, dict[str, Any]] = {}
    for name, value in metrics.items():
        if name not in theirs_by_name or not results.is_number(value):
            continue
        if words := difference(ours.get(name), theirs.get(name, {})):
            compared[name] = {"reason": f"measured differently: {words}"}
            continue
        entry = {**theirs.get(name, {}), "metric": name}
        if images is not None:
            # PR and ProbAcc count only images that the model classifies correctly.
            clean, of_correct = theirs_by_name.get("acc"), metric_name.parse(name).stem in ("pr", "probacc")
            share = clean if of_correct and isinstance(clean, float) else 1
            entry["n"] = max(round(images * share), 1)
        compared[name] = _judged(name, value, ours.get(name), theirs_by_name[name], entry)
    return compared


def difference(ours: Entry | None, theirs: Entry) -> str:
    """Describe the fields in which our protocol differs from the published one. Returns "" if there are none.
    A switch (true) that our entry lacks counts as off; other fields that our entry lacks are not compared."""
    if ours is None:
        return ""
    words = []
    for name, value in results.protocol(theirs).items():
        if name in _NOT_COMPARED:
            continue
        mine = ours.get(name, False if value is True else value)
        numbers = isinstance(mine, int | float) and isinstance(value, int | float)
        if not (math.isclose(mine, value, rel_tol=_EPS, abs_tol=1e-9) if numbers else mine == value):
            words.append(f"{name} {value!r} there and {mine!r} here")
    if "dataset" in ours:
        words.append(f"on {ours['dataset']} here")
    return ", ".join(words)


def _judged(name: str, value: float, ours: Entry | None, published: float, theirs: Entry) -> dict[str, Any]:
    result: dict[str, Any] = {"value": published, "difference": value - published}
    result |= {"n": theirs["n"]} if "n" in theirs else {}
    errors = [
        consistency.standard_error(number, entry) if consistency.MeasuredEntry.of(entry).share else None
        for number, entry in ((value, ours or {}), (published, theirs))
    ]
    if ours is None or errors[0] is None:
        return {**result, "reason": "our number has neither n nor an interval"}
    if errors[1] is None:
        return {**result, "reason": "the published number is not a share of a known number of images"}
    error = math.hypot(errors[0], errors[1])
    rounding = theirs.get("rounding", 0) / 2
    off = max(abs(result["difference"]) - rounding, 0.0)
    p = math.erfc(off / error / math.sqrt(2))
    return {**result, "standard_error": error, "p": p, "within": p >= LEVEL}
