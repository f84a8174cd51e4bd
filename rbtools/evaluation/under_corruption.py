"""Accuracy on corrupted images, and its means over severities and corruptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rbtools import registry
from rbtools.corruptions import CORRUPTIONS
from rbtools.evaluation.accuracy import Accuracy, Clean, kept_of
from rbtools.evaluation.base import Batch
from rbtools.evaluation.spec import Entry, Evaluation, RowsOf, Summary, method_key, rebuilt
from rbtools.lazy import np
from rbtools.probabilistic import estimate, intervals
from rbtools.records import metric_name
from rbtools.records.name_forms import NameForm
from rbtools.scoring import corruptions as sums

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

_SUMMARIES = {
    "corrupt.mean": "mean over corruptions",
    "corrupt.mce": "mCE",
    "corrupt.relative_mce": "relative mCE",
}


class _CorruptionName(NameForm):
    def is_share(self, parts: metric_name.MetricName) -> bool:
        return parts.suffix == "mean" or super().is_share(parts)

    def settings(self, parts: metric_name.MetricName) -> Entry:
        known = parts.of in CORRUPTIONS and parts.over
        return {"corruption": parts.of, "severity": int(parts.number)} if known else {}


def _corruption(parts: metric_name.MetricName) -> str:
    words = f"{parts.of} {parts.suffix}".replace("_", " ").replace(".", " ").strip()
    return words or parts.build()


@dataclass(frozen=True, kw_only=True)
class Corrupted(Accuracy):
    """Accuracy under one corruption at one severity."""

    names = (
        _CorruptionName(
            r"(?P<stem>corrupt)(?:\.(?P<of>[^.]+)(?=\.))?(?:\.(?P<number>[1-5])(?=\.|$))?(?:\.(?P<suffix>.+))?",
            "images",
            {"severity": "severity"},
            lambda parts: _SUMMARIES.get(parts.build()) or _corruption(parts),
        ),
    )

    corruption: Any
    severity: int

    @property
    def random(self) -> bool:
        return bool(self.corruption.random) or self.draws > 0

    def name(self) -> str:
        return metric_name.corrupt_name(self.corruption.name, self.severity)

    def column(self) -> Entry:
        key = method_key("corruption", "corruption", self.corruption)
        return {**key, "severity": self.severity, **self.kept()}

    def about(self) -> Entry:
        about = {"corruption": self.corruption.name, "severity": self.severity}
        return {**about, **registry.config(self.corruption)}

    def settings_for(self, shape: Sequence[int]) -> Entry:
        return {"constants": self.corruption.constants_for(shape[1:])}

    def images(self, batch: Batch) -> tuple[Tensor, Mapping[str, float]]:
        draws = batch.draws(f"corruption.{self.corruption.name}")
        return self.corruption(batch.images, self.severity, draws), {}

    @classmethod
    def summary(cls) -> Summary:
        return partial(corruption_means, None)

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Self | None:
        if type(entry.get("severity")) is not int or "archive" in entry:
            return None
        corruption = rebuilt(CORRUPTIONS, entry.get("corruption"), entry)
        if corruption is None:
            return None
        return cls(corruption=corruption.resolved(), severity=entry["severity"], **kept_of(entry))


def corrupted(
    corruptions: Sequence[Any],
    severities: Sequence[int],
    reference: sums.Reference | None = None,
    detail: bool = False,
) -> Evaluation:
    """Accuracy under each corruption at each severity, with means over severities and corruptions, mCE if
    there is a reference, and clean accuracy. With `detail`, the logits of each example are kept."""
    specs = tuple(
        Corrupted(corruption=corruption, severity=severity, detail=detail)
        for corruption in (one.resolved() for one in corruptions)
        for severity in severities
    )
    means = partial(corruption_means, reference)
    return Evaluation(title="corruptions", specs=specs, along=(Clean(detail=detail),), summary=means)


def mean_over(
    correct: Mapping[tuple[str, int], np.ndarray], parts: Sequence[Mapping[str, Any]]
) -> intervals.Interval | None:
    """The interval of the mean of accuracies under corruptions, or None if `correct` is incomplete.

    `correct` maps (corruption, severity) to a mask (n,) of the correct images. The images are the
    sampling units: the share of corruptions under which an image is classified correctly is one observation.
    Correlation between corruptions therefore does not affect the interval.
    """
    rows = [correct.get((part["corruption"], part["severity"]), ()) for part in parts]
    if any(len(row) != part["n"] for row, part in zip(rows, parts, strict=True)):
        return None
    return estimate.pr_d(np.sum(rows, axis=0, dtype=int).tolist(), len(rows)).interval


def corruption_means(
    reference: sums.Reference | None,
    specs: Sequence[Any],
    entries: Sequence[Entry],
    along: Sequence[Entry],
    rows: RowsOf | None,
) -> list[Entry]:
    """Means of the accuracies over severities and corruptions, and mCE if there is a reference."""
    places = {
        (entry["corruption"], entry["severity"]): spec for entry, spec in zip(entries, specs, strict=True)
    }

    def interval(parts: Sequence[Mapping[str, Any]]) -> intervals.Interval | None:
        if rows is None:
            return None
        asked = [(part["corruption"], part["severity"]) for part in parts]
        counted = {place: places[place].counts(rows(places[place])) for place in asked}
        return mean_over({place: bits for place, bits in counted.items() if bits is not None}, parts)

    acc = next((entry for entry in along if metric_name.without_split(entry["metric"]) == "acc"), None)
    return sums.summary(entries, acc, CORRUPTIONS.all, reference, interval)
