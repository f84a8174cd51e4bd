"""The intervals of a card's entries, which hold for all planned looks together (`probabilistic.looks`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rbtools.lazy import np
from rbtools.probabilistic import looks
from rbtools.probabilistic.estimate import interval_name
from rbtools.probabilistic.looks import AnytimeInterval
from rbtools.records import answers, metric_name

Entry = dict[str, Any]


class LookIntervals:
    """The entries of one look, whose intervals hold for all looks of the part together."""

    def __init__(self, result: Mapping[str, Any], planned: int, n: int, total: int) -> None:
        """result: the record of the look; planned: the number of looks; n: its images, of `total`."""
        self.evals: list[Entry] = list(result.get("evals") or ())
        self.by_name = {entry["metric"]: entry for entry in self.evals}
        self.planned, self.sure = planned, looks.confidence(planned)
        self.seen, self.total = n / total, total

    def entries(self) -> Iterator[Entry]:
        for entry in self.evals:
            bare = {name: value for name, value in entry.items() if not _is_interval(name, self.sure)}
            both = self.of(entry)
            if both is None:
                yield bare
                continue
            of_source, of_all = ([float(end) for end in ends] for ends in both)
            about = {"looks": self.planned, "confidence": round(self.sure, 6)}
            yield {
                **bare,
                "ci95": of_source,
                "anytime": {**about, "images": self.total, "interval": of_all},
            }

    def of(self, entry: Entry) -> AnytimeInterval | None:
        """The intervals of an entry; None where it is no mean of values in [0, 1]."""
        value, n, sure = entry.get("value"), entry.get("n", 0), self.sure
        own = entry.get(interval_name(sure))
        if value is None:
            return None
        if own is not None and "gamma" in entry:  # made at this confidence
            if "rho" in entry:
                return looks.of_interval(value, tuple(own), self.seen)
            return looks.of_copies(value, tuple(own), n, entry["samples"], self.seen, sure)
        if "ci95" not in entry:
            return None
        if isinstance(n, list):
            return self._difference(entry)
        if "two_phase" in entry:
            return looks.of_sample(entry["two_phase"]["strata"], value, n, self.seen, sure)
        if (found := values_of(entry, self.by_name)) is not None:
            return looks.of_mean(found, self.seen, sure)
        return looks.of_share(value, n, self.seen, sure) if 0 <= value <= 1 else None

    def _difference(self, entry: Entry) -> AnytimeInterval | None:
        train, test = (self.by_name.get(name, {}) for name in metric_name.sides_of_ge(entry["metric"]))
        of_train, of_test = self.of(train), self.of(test)
        if of_train is None or of_test is None:
            return None
        return looks.difference(train["value"], of_train, test["value"], of_test)


def _is_interval(name: str, sure: float) -> bool:
    return name in ("ci95", interval_name(sure))


def values_of(entry: Mapping[str, Any], entries: Mapping[str, Entry]) -> np.ndarray | None:
    """The value of each image (n,), in [0, 1]: of a mean of corruptions the share of them under which it is
    correct. None where the entries have none."""
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
