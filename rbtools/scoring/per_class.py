"""Accuracies of single classes, computed from a model's per-image results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.proportions import wilson
from rbtools.records import answers, expr, results


def counts(record: Mapping[str, Any], metric: str) -> dict[int, tuple[int, int]]:
    """Map each class to two numbers: its images that count in the metric, and all its images. Raises
    MissingName if the metric is missing, NoAnswers if there are no per-image results, and RbError if the
    answers are damaged."""
    if metric not in (record.get("metrics") or {}):
        raise expr.MissingName(metric, {"metrics": record.get("metrics") or {}})
    entry = results.last_entry(record, metric)
    answered = answers.needed(entry, metric)
    if len(answered.right) != entry["n"]:
        raise RbError(
            f"{metric} only counts images that the model classifies correctly, so it has no classes."
        )
    labels = answers.labels_of(record, answered)
    images, right = np.bincount(labels), np.bincount(labels, answered.right)
    return {label: (int(right[label]), int(images[label])) for label in np.flatnonzero(images).tolist()}


def described(record: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """The field `per_class` of a record: the accuracy of each class with its interval, and the worst class.
    Raises the same errors as `counts`."""
    every = counts(record, metric)
    worst = min(every, key=lambda label: every[label][0] / every[label][1])
    classes = {
        str(label): {"value": right / n, "ci95": list(wilson(right, n)), "n": n}
        for label, (right, n) in every.items()
    }
    return {"metric": metric, "worst": worst, "classes": classes}


def worst(record: Mapping[str, Any], metrics: Sequence[str]) -> float:
    """The lowest accuracy of any class in a metric, written `class.min(pgd20.8)` in expressions."""
    (metric,) = metrics
    return min(right / n for right, n in counts(record, metric).values())
