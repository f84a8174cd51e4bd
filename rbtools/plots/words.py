"""Names in figures: of metrics on axes, and of records in legends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rbtools.records import metric_name
from rbtools.records.results import short_dataset
from rbtools.scoring.metric_words import AXES as AXES
from rbtools.scoring.metric_words import attack, distance, radius
from rbtools.scoring.metric_words import axis_of as axis_of

Record = dict[str, Any]
ELLIPSIS = "…"
LONGEST = 30  # the most characters of a record's name
_FIXED = {
    "acc": "clean accuracy",
    "acc-among": "clean accuracy among the classes of the images",
    "score": "composite score",
    "corrupt.mean": "mean accuracy under corruptions",
    "corrupt.mce": "mCE",
    "corrupt.relative_mce": "relative mCE",
    "seconds_per_epoch": "training time [seconds per epoch]",
    "params": "parameters",
    "arch.params": "parameters",
    "macs": "multiply-adds",
    "arch.macs": "multiply-adds",
    "wci": "weight-curvature index",
}
_SPLITS = {"train": "training images", "valid": "validation", "val": "validation"}


def with_number(name: str) -> metric_name.MetricName | None:
    """The parts of a metric that has a distance, severity or radius; None for others, and for measures."""
    parts = metric_name.parse(name)
    return parts if parts.over and {"ge", *_SPLITS}.issuperset(parts.prefixes) else None


def describe(name: str) -> str:
    """A metric as the label of an axis, with its unit; an expression or another name is unchanged."""
    parts = metric_name.parse(name)
    if parts.split in _SPLITS:
        return f"{describe(parts.rest().build())}, {_SPLITS[parts.split]}"
    if name in _FIXED:
        return _FIXED[name]
    if parts.is_ge:
        return f"generalisation error: {describe(parts.rest().build())}"
    if parts.stem == "corrupt" and parts.suffix == "mean" and not parts.prefixes:
        return f"mean accuracy under {parts.of.replace('_', ' ')}"
    return tidy(name) if with_number(name) is None else _described(parts)


def _described(parts: metric_name.MetricName) -> str:
    if parts.rho:
        return f"ProbAcc, {parts.of} noise, γ = {radius(parts.number)}, ρ = {parts.rho}"
    if parts.over == "gamma":
        quantity = "PR" if parts.stem == "pr" else "failure probability"
        return f"{quantity}, {parts.of} noise, γ = {radius(parts.number)}"
    if parts.over == "severity":
        return f"accuracy under {parts.of.replace('_', ' ')}, severity {parts.number}"
    if parts.stem == "cert.smooth":
        return f"certified accuracy after smoothing, σ = {parts.of}, {distance(parts)}"
    return f"accuracy under {attack(parts)}, {distance(parts)}"


def setting(name: str) -> str:
    """The setting of an accuracy: "fgsm, ε = 8/255", "clean images"."""
    text = describe(name)
    return "clean images" if name == "acc" else text.removeprefix("accuracy under ")


def axis(names: Sequence[str]) -> str:
    """The label of an axis for one metric, or for the common quantity of several, with the unit."""
    label = describe(names[0]) if len(names) == 1 else quantity(names)
    return f"{label} [share of images]" if {_quantity(name) for name in names} <= _SHARES else label


def quantity(names: Sequence[str]) -> str:
    """The common quantity of metrics, for an axis that they share: accuracy, PR ..., else "value"."""
    kinds = {_quantity(name) for name in names}
    return kinds.pop() if len(kinds) == 1 else "value"


_PR = "probabilistic robustness (PR)"
_SHARES = {"accuracy", "ProbAcc", _PR}
_OF_STEM = {"probacc": "ProbAcc", "pr": _PR, "pfail": "failure probability"}


def _quantity(name: str) -> str:
    bare = metric_name.without_split(name)
    parts = metric_name.parse(bare)
    if parts.is_ge:
        return "generalisation error"
    if parts.over == "gamma" and not parts.prefixes and parts.stem in _OF_STEM:
        return _OF_STEM[parts.stem]
    if bare == "acc" or (parts.stem == "corrupt" and not parts.prefixes and not parts.suffix.endswith("mce")):
        return "accuracy"
    return "accuracy" if with_number(bare) is not None else describe(name)


def is_share(names: Sequence[str]) -> bool:
    """Whether all these metrics are shares of images, for which guessing has a known accuracy."""
    return all(_quantity(name) == "accuracy" for name in names)


def tidy(text: object) -> str:
    """Untrusted text on one line, without unprintable characters."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text)).strip()


def shortened(text: str, most: int = LONGEST) -> str:
    """A long name without its middle."""
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return text[:half] + ELLIPSIS + text[len(text) - half :]


_PARTS = (
    ("arch", "name"),
    ("dataset",),
    ("train", "method"),
    ("train", "config", "regularize"),
    ("train", "seed"),
)


def _parts(record: Record) -> list[str | None]:
    parts: list[str | None] = []
    for path in _PARTS:
        value: Any = record
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        if path[-1] == "regularize" and isinstance(record.get("train"), dict):
            value = "+".join(map(str, value)) if isinstance(value, list) else value
            value = value or "none"
        if path == ("dataset",) and value is not None:
            value = short_dataset(str(value))
        parts.append(None if value is None else tidy(value))
    return parts


def _differ(rows: Sequence[Sequence[str | None]], apart: Iterable[Sequence[int]] | None) -> list[int]:
    """The places in which some of these rows differ; with `apart`, in which those of one part of them do."""
    parts = [range(len(rows))] if apart is None else apart
    return [
        place
        for place in range(len(_PARTS))
        if any(len({rows[number][place] for number in part}) > 1 for part in parts)
    ]


def differing(
    records: Sequence[Record], apart: Iterable[Sequence[int]] | None = None
) -> list[tuple[str | None, ...]]:
    """For each record, those of name, data set, method, regularisation and seed that differ among them.

    apart: parts of the records that are not compared with each other, by place.
    """
    rows = [_parts(record) for record in records]
    places = _differ(rows, apart)
    return [tuple(row[place] for place in places) for row in rows]


def tags(records: Sequence[Record], apart: Sequence[Sequence[int]] | None = None) -> list[str]:
    """A short name for each record, made of what differs of those in `_PARTS`; see `differing`."""
    rows = [_parts(record) for record in records]
    differ = _differ(rows, apart) or [0]
    words = ("", "", "", "", "seed ")
    named = [
        " ".join(words[place] + str(row[place]) for place in differ if row[place] is not None) or "unnamed"
        for row in rows
    ]
    names = [shortened(name) for name in named]
    for part in [range(len(rows))] if apart is None else apart:
        for place, name in zip(part, _numbered([names[place] for place in part]), strict=True):
            names[place] = name
    return names


def _numbered(names: list[str]) -> list[str]:
    """The names; equal names get numbers."""
    total, met = Counter(names), Counter[str]()
    numbered = []
    for name in names:
        met[name] += 1
        numbered.append(name if total[name] == 1 else f"{name} #{met[name]}")
    return numbered


def common(records: Sequence[Record]) -> str:
    """What all records share of name, data set and method, for a title: "resnet18, cifar10"."""
    rows = [_parts(record) for record in records]
    shared = [
        str(rows[0][place])
        for place in (0, 1, 2)
        if rows[0][place] and len({row[place] for row in rows}) == 1
    ]
    return ", ".join(shortened(name) for name in shared)


def titled(title: str, records: Sequence[Record]) -> str:
    """A title and, in brackets, what all records share."""
    shared = common(records)
    return f"{title} ({shared})" if shared else title


def counted(number: int, noun: str = "record") -> str:
    """`6,466 records`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
