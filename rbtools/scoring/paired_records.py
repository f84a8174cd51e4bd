"""Comparison of records with a reference on the same images (`rb-rank --paired`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.records import answers, metric_name, results, schema
from rbtools.scoring import bootstrap, paired

Record = Mapping[str, Any]
Counted = Callable[[Record, Mapping[str, Any]], answers.Answers | None]


class _MemberAnswers(NamedTuple):
    """The answers for a metric of a record, or of all members of a mean. `right` is bool (M, N), true if an
    image counts for a member. `examples` contains the digests of the lists of images, if known."""

    members: Sequence[Record]
    right: np.ndarray
    images: dict[str, Any]
    examples: set[str]

    @property
    def value(self) -> float:
        return float(self.right.mean())


def compare(
    reference: Sequence[Record],
    others: Sequence[tuple[str, Sequence[Record]]],
    counted: Counted,
    draws: bootstrap.BootstrapDraws,
    needed: Sequence[str] = (),
    *,
    raw: bool = False,
    warn: Callable[[str], None] = lambda message: None,
) -> tuple[list[dict[str, dict[str, Any]]], int]:
    """Compare records, or means of several members, with a reference (the members of the mean, or one
    record).

    `others` contains names and members. `counted` returns which images count in the value of an entry.
    `draws` is used for means of several members. `needed` contains the metrics whose answers must be for the
    reference's images; if they are for other images, `warn` is called, and the record has no comparison.
    Returns the comparisons of each record by metric, and the number of records without answers of the needed
    metrics. A comparison contains p after Holm's correction and, with `raw`, also the uncorrected p_raw.
    Raises RbError if the reference lacks answers of the needed metrics.
    """
    measure = partial(_measured, counted=counted)
    found = {name: measure(reference, name) for name in reference[0].get("metrics") or {}}
    known = {name: one for name, one in found.items() if one is not None}
    needed = [name for name in needed if metric_name.is_share(name) or name in known]
    for name in [*needed, *([] if known else ["any metric"])]:
        if name not in known:
            raise RbError(_why_not_comparable(name, results.last_entry(reference[0], name)))
    measured: list[dict[str, _MemberAnswers]] = []
    lacking = 0
    for name, members in others:
        row = {metric: one for metric in known if (one := measure(members, metric)) is not None}
        differ = {metric: why for metric, one in row.items() if (why := _difference(one, known[metric]))}
        if wrong := next((metric for metric in differ if metric in needed), None):
            warn(f"{wrong} of {name} and of the reference are for different images: {differ[wrong]}.")
            row = {}
        row = {metric: one for metric, one in row.items() if metric not in differ}
        lacking += not wrong and not (row and all(metric in row for metric in needed))
        measured.append(row)
    rows: list[dict[str, dict[str, Any]]] = [{} for _ in measured]
    for metric, theirs in known.items():
        places = [place for place, row in enumerate(measured) if metric in row]
        ours = [measured[place][metric] for place in places]
        compared = _compared(metric, ours, theirs, draws)
        corrected = paired.holm(np.array([one["p"] for one in compared])).tolist()
        for place, fields, p in zip(places, compared, corrected, strict=True):
            rows[place][metric] = {**fields, "p": p, **({"p_raw": fields["p"]} if raw else {})}
    return rows, lacking


def _measured(members: Sequence[Record], name: str, counted: Counted) -> _MemberAnswers | None:
    """The answers of all members for a metric; None if a member has no answers or other images."""
    every, about, examples = [], [], set()
    for member in members:
        entry = results.last_entry(member, name)
        known = counted(member, entry) if entry.get("value") is not None else None
        if known is None:
            return None
        every.append(known.right)
        fields = {key: entry[key] for key in schema.of_images() if key in entry}
        about.append({"dataset": member.get("dataset")} | fields)
        examples |= {known.examples} - {""}
    if len(examples) > 1 or any(one != about[0] for one in about):
        return None
    return _MemberAnswers(members, np.stack(every), about[0], examples)


def _compared(
    metric: str, every: Sequence[_MemberAnswers], reference: _MemberAnswers, draws: bootstrap.BootstrapDraws
) -> list[dict[str, Any]]:
    """Single records are compared on the images whose answers differ, and means are compared by samples."""

    def drawn(one: _MemberAnswers, whose: str) -> np.ndarray:
        """Samples (M, B) of the members, as if all of them had used the same other test images."""
        return np.stack([draws.number(member, metric, whose) for member in one.members])

    single = [len(ours.right) == len(reference.right) == 1 for ours in every]
    counts = [paired.changed(ours.right[0], reference.right[0]) for ours in every]
    images = [ours.right.shape[1] for ours in every]
    gained, lost, of = np.array([*zip(*counts, strict=True), images]).reshape(3, len(every))
    low, high = paired.interval(gained, lost, of) if any(single) else (of, of)
    p = paired.mcnemar(gained, lost)
    theirs = None if all(single) else drawn(reference, "reference")
    found = []
    for at, ours in enumerate(every):
        if theirs is None or single[at]:
            difference, ends = (gained[at] - lost[at]) / of[at], (low[at].item(), high[at].item())
            one = paired.Comparison(difference.item(), ends, p[at].item())
            found.append({**one._asdict(), "images": images[at], "changed": list(counts[at])})
            continue
        both = np.concatenate([drawn(ours, "members"), theirs])
        rows = [range(len(ours.right)), range(len(ours.right), len(both))]
        means, between, freedom = bootstrap.over_members(both, rows, np.zeros(len(both), bool), 0)
        one = paired.of_means(ours.value - reference.value, means[0] - means[1], between, freedom)
        found.append({**one._asdict(), "images": images[at]})
    return found


def _why_not_comparable(name: str, entry: Mapping[str, Any]) -> str:
    try:
        answers.needed(entry, name)
    except answers.NoAnswers as why:
        return str(why)
    return (
        f"{name} has no paired comparison: each model's value is over the images that it classifies correctly"
        " without noise, or the members of the reference have different images."
    )


def _difference(ours: _MemberAnswers, reference: _MemberAnswers) -> str:
    """The difference between the images of two metrics in words; "" if the images are the same."""
    for key in sorted(ours.images.keys() | reference.images.keys()):
        one, other = ours.images.get(key), reference.images.get(key)
        in_files = all(":" in str(name) for name in (one, other))
        if key == "dataset" and in_files and len(ours.examples | reference.examples) == 1:
            continue  # the same images in another folder
        if one != other:
            return f"{key} is {one} and {other}"
    if len(ours.examples | reference.examples) > 1:
        return "their lists of examples differ"
    return ""
