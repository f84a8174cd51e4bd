"""The looks of a card (its intermediate results), and intervals that hold for all looks together.

A card evaluates 16, 32, 64 ... images and may end after any of these looks, for any reason. With K looks,
each interval has error probability 0.05 / K. By Bonferroni's inequality, all intervals hold together with
probability 95 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rbtools.lazy import np
from rbtools.probabilistic import intervals
from rbtools.probabilistic.estimate import interval_name
from rbtools.proportions import Interval
from rbtools.records import answers, metric_name

Entry = dict[str, Any]
_FIRST = 16


def sizes(most: int) -> list[int]:
    """The numbers of images of the looks: 16, 32, 64 ... and at last `most`."""
    planned, size = [], _FIRST
    while size < most:
        planned.append(size)
        size *= 2
    return [*planned, most]


def confidence(looks: int) -> float:
    """The confidence of each interval so that the intervals of all `looks` hold together at 95 %."""
    return 1 - 0.05 / looks


class LookIntervals:
    """The entries of one look, with intervals that hold for all looks of the part together."""

    def __init__(self, result: Mapping[str, Any], looks: int) -> None:
        self.evals: list[Entry] = list(result.get("evals") or ())
        self.by_name = {entry["metric"]: entry for entry in self.evals}
        self.looks, self.sure = looks, confidence(looks)

    def entries(self) -> Iterator[Entry]:
        own = interval_name(self.sure)
        for entry in self.evals:
            bare = {name: value for name, value in entry.items() if name not in ("ci95", own)}
            found = self.of(entry)
            if found is not None:
                about = {"looks": self.looks, "confidence": round(self.sure, 6)}
                bare |= {"ci95": [float(end) for end in found], "anytime": about}
            yield bare

    def of(self, entry: Entry) -> Interval | None:
        """The interval of an entry, or None if its value is not a mean of values in [0, 1]."""
        value, n = entry.get("value"), entry.get("n", 0)
        if value is None:
            return None
        if "gamma" in entry and (own := entry.get(interval_name(self.sure))) is not None:
            return own[0], own[1]  # computed at this confidence
        if "ci95" not in entry:
            return None
        if isinstance(n, list):
            train, test = (self.by_name.get(name, {}) for name in metric_name.sides_of_ge(entry["metric"]))
            of_train, of_test = self.of(train), self.of(test)
            if of_train is None or of_test is None:
                return None
            return intervals.square_and_add(train["value"], of_train, test["value"], of_test)
        if (found := values_of(entry, self.by_name)) is not None:
            return intervals.mean_interval(found, confidence=self.sure)
        return intervals.clopper_pearson(value * n, n, self.sure) if 0 <= value <= 1 else None


def values_of(entry: Mapping[str, Any], entries: Mapping[str, Entry]) -> np.ndarray | None:
    """The value of each image (n,), in [0, 1], or None if the entries have no values of single images. For a
    mean over corruptions, the value is the share of corruptions under which the image is correct."""
    found = answers.of(entry)
    if found is not None:
        return found.right.astype(float)
    of_mean = [
        answers.of(other)
        for other in entries.values()
        if "severity" in other
        and other.get("corruption") in entry.get("corruptions", [entry.get("corruption")])
        and other["severity"] in entry.get("severities", ())
    ]
    if not of_mean or None in of_mean or "severities" not in entry:
        return None
    rows: np.ndarray = np.mean([one.right for one in of_mean if one is not None], axis=0)
    return rows if abs(float(rows.mean()) - entry["value"]) < 1e-6 else None
