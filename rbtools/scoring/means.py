"""The intervals and the numbers of images of means over metrics of a record, such as `mean(pgd20.*)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import isclose
from statistics import fmean
from typing import Any

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.probabilistic.intervals import mean_interval
from rbtools.records import answers, expr, results


def parts(record: Mapping[str, Any], compiled: expr.Expression) -> list[dict[str, Any]]:
    """The entries of the metrics in a mean. Returns [] for other expressions, or if an entry is missing."""
    metrics = record.get("metrics") or {}
    if not compiled.is_mean or compiled.text in metrics:
        return []
    names = dict.fromkeys(name for item in compiled.names for name in expr.expand(item, metrics) or [item])
    entries = [results.last_entry(record, name) for name in names]
    values = [metrics.get(name) for name in names]
    whole = all(entries) and all(map(results.is_number, values))
    try:
        return entries if whole and isclose(fmean(values), compiled(record)) else []  # type: ignore[arg-type]
    except RbError:
        return []


def interval(record: Mapping[str, Any], compiled: expr.Expression) -> tuple[float, float] | None:
    """The 95 % interval of a mean of metrics. None for other expressions, or if a metric lacks an interval.

    If all metrics have per-image results, one observation is the share of metrics in which an image
    counts, which takes correlation between metrics into account. Otherwise, the interval is the mean of the
    metrics' intervals, which is too wide unless the metrics fail on the same images.
    """
    entries = parts(record, compiled)
    ends = [pair for entry in entries if (pair := results.interval(entry)) is not None]
    if not entries or len(ends) < len(entries):
        return None
    try:
        known = [answer for entry in entries if (answer := answers.of(entry)) is not None]
    except RbError:  # damaged answers
        known = []
    examples = {(answer.examples, len(answer.right)) for answer in known}
    weights = {str(entry.get("on")) for entry in entries}
    if len(known) < len(entries) or len(examples) > 1 or len(weights) > 1:
        low, high = map(fmean, zip(*ends, strict=True))
        return low, high
    counts = Counter(np.sum([answer.right for answer in known], axis=0).tolist())
    return mean_interval([count / len(known) for count in counts], list(counts.values()))


def images(record: Mapping[str, Any], compiled: expr.Expression) -> int | None:
    """The number of images of a mean; None if the metrics have different numbers of images."""
    counts = {entry.get("n") if type(entry.get("n")) is int else None for entry in parts(record, compiled)}
    return counts.pop() if len(counts) == 1 else None
