"""Records compared with a reference on the images that both were evaluated on (`rb-rank --paired`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.records import metric_name, results
from rbtools.records.answers import HOW, Answers
from rbtools.scoring import bootstrap, paired

Record = Mapping[str, Any]
Counted = Callable[[Record, Mapping[str, Any]], Answers | None]
_IMAGES = ("dataset", "split", "indices", "class_map", "n")


class _MemberAnswers(NamedTuple):
    """A metric of a record, or of the members of a mean. right: bool (M, N), whether each image counts for
    each member. examples: the digests of the lists of images, as far as known.
    """

    right: np.ndarray
    images: dict[str, Any]
    examples: set[str]

    @property
    def value(self) -> float:
        return float(self.right.mean())


class PairedComparison:
    """Compares records with a reference, one after the other.

    reference: the members of the reference, one or those of a mean. counted: which images count in an entry's
    value. draws: for means over several members. needed: the metrics of
    which answers of other images are an error. Raises RbError if the reference lacks answers of those.
    """

    def __init__(
        self,
        reference: Sequence[Record],
        counted: Counted,
        draws: bootstrap.BootstrapDraws,
        needed: Sequence[str] = (),
    ) -> None:
        self._reference, self._counted, self._draws = list(reference), counted, draws
        found = {name: self._measured(reference, name) for name in reference[0].get("metrics") or {}}
        self._of_reference = {name: one for name, one in found.items() if one is not None}
        self._needed = [name for name in needed if metric_name.is_share(name) or name in self._of_reference]
        for name in [*self._needed, *([] if self._of_reference else ["any metric"])]:
            if name not in self._of_reference:
                raise RbError(_why_not(name, results.last_entry(reference[0], name)))
        self._rows: list[dict[str, dict[str, Any]]] = []
        self._changed: dict[str, list[tuple[int, int, int, int]]] = {}
        self._drawn: dict[str, np.ndarray] = {}

    def _measured(self, members: Sequence[Record], name: str) -> _MemberAnswers | None:
        """What the members have of a metric; None if one lacks its answers, or theirs are of other images."""
        every, about, examples = [], [], set()
        for member in members:
            entry = results.last_entry(member, name)
            known = self._counted(member, entry) if entry.get("value") is not None else None
            if known is None:
                return None
            every.append(known.right)
            about.append(
                {"dataset": member.get("dataset")} | {key: entry.get(key) for key in _IMAGES if key in entry}
            )
            examples |= {known.examples} - {""}
        if len(examples) > 1 or any(one != about[0] for one in about):
            return None
        return _MemberAnswers(np.stack(every), about[0], examples)

    def add(self, name: str, members: Sequence[Record]) -> bool:
        """Compare the next record, or mean of members. Return whether the needed metrics have answers.

        Raises RbError, which names the record, where these are of other images: it has no comparison.
        """
        row: dict[str, dict[str, Any]] = {}
        for metric, reference in self._of_reference.items():
            ours = self._measured(members, metric)
            if ours is None:
                continue
            if differs := _difference(ours, reference):
                if metric in self._needed:
                    self._rows.append({})
                    raise RbError(
                        f"{metric} of {name} and of the reference is of different images: {differs}."
                    )
                continue
            row[metric] = self._compared(metric, ours, reference, members)
        self._rows.append(row)
        return bool(row) and all(metric in row for metric in self._needed)

    def _compared(
        self, metric: str, ours: _MemberAnswers, reference: _MemberAnswers, members: Sequence[Record]
    ) -> dict[str, Any]:
        images = ours.right.shape[1]
        if len(ours.right) == len(reference.right) == 1:
            counts = paired.changed(ours.right[0], reference.right[0])
            self._changed.setdefault(metric, []).append((len(self._rows), *counts, images))
            return {"images": images, "changed": list(counts)}
        if metric not in self._drawn:
            self._drawn[metric] = self._draws_of(metric, self._reference, "reference")
        drawn = np.concatenate([self._draws_of(metric, members, "members"), self._drawn[metric]])
        rows = [range(len(members)), range(len(members), len(drawn))]
        means, between, freedom = bootstrap.over_members(drawn, rows, np.zeros(len(drawn), bool), 0)
        found = paired.of_means(ours.value - reference.value, means[0] - means[1], between, freedom)
        return {**found._asdict(), "images": images}

    def _draws_of(self, metric: str, members: Sequence[Record], whose: str) -> np.ndarray:
        """Draws (M, B) of the members, for the same other test images."""
        return np.stack([self._draws.number(member, metric, whose) for member in members])

    def results(self, *, raw: bool = False) -> list[dict[str, dict[str, Any]]]:
        """For each record the comparison of each metric; p is Holm's, and with `raw` p_raw McNemar's."""
        for metric, counts in self._changed.items():
            places, gained, lost, images = np.array(counts).T
            low, high = paired.interval(gained, lost, images)
            p = paired.mcnemar(gained, lost)
            every = zip(
                places,
                ((gained - lost) / images).tolist(),
                low.tolist(),
                high.tolist(),
                p.tolist(),
                strict=True,
            )
            for place, difference, least, most, chance in every:
                found = paired.Comparison(difference, (least, most), chance)
                self._rows[place][metric] = {**found._asdict(), **self._rows[place][metric]}
        for metric in self._of_reference:
            rows = [row[metric] for row in self._rows if metric in row]
            corrected = paired.holm(np.array([row["p"] for row in rows])).tolist()
            for row, p in zip(rows, corrected, strict=True):
                row |= {"p": p, "p_raw": row["p"]} if raw else {"p": p}
        return self._rows


def _why_not(name: str, entry: Mapping[str, Any]) -> str:
    """Why a metric of the reference cannot be compared."""
    parts = metric_name.parse(metric_name.without_split(name))
    if parts.is_ge or parts.stem in ("pr", "pr-all"):
        return f"{name} has no paired comparison: it is no share of images that count."
    if entry.get("denominator") == "correct":
        return (
            f"{name} has no paired comparison: each model's value is over the images that it classifies"
            " correctly without noise."
        )
    return f"The reference has no answers of single images for {name}. {HOW}"


def _difference(ours: _MemberAnswers, reference: _MemberAnswers) -> str:
    """How the images of two metrics differ; empty if they are the same."""
    for key in _IMAGES:
        one, other = ours.images.get(key), reference.images.get(key)
        if one != other:
            return f"{key} is {one} and {other}"
    if len(ours.examples | reference.examples) > 1:
        return "their lists of examples differ"
    return ""
