"""Names for people: what a metric is called on an axis, what tells records apart in a legend."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from rbtools.records import metric_name

Record = dict[str, Any]
ELLIPSIS = "…"
LONGEST = 30  # letters of a record's name
_NUMBER = r"(\d+(?:\.\d+)?(?:e-?\d+)?)"
_RATE = r"(0(?:\.\d+)?|\d(?:\.\d+)?e-\d+|1)"
_WITH_RHO = re.compile(rf"((?:[a-z]+\.)*probacc(?:-all)?\.[a-z]+)\.{_NUMBER}\.{_RATE}")
_WITH_GAMMA = re.compile(rf"((?:[a-z]+\.)*(?:pr|pr-all|pfail)\.[a-z]+)\.{_NUMBER}")
_CORRUPTED = re.compile(r"((?:[a-z]+\.)*corrupt\.[^.]+)\.([1-5])")
_ATTACKED = re.compile(rf"((?:(?:ge|train|valid|val)\.)*[a-z][a-z-]*\d*(?:\.l2)?)\.{_NUMBER}")
_FIXED = {
    "acc": "clean accuracy",
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
AXES = {
    "eps": "ε [1/255]",
    "eps2": "ε in L2, on pixels in [0, 1]",
    "severity": "severity",
    "gamma": "noise radius γ, on pixels in [0, 1]",
    "rho": "tolerated failure rate ρ",
    "epoch": "epoch",
}


class Parted(NamedTuple):
    """A metric's name taken apart: `pgd20` over `eps` at 8.0, which is written "8"."""

    family: str
    over: str
    value: float
    shown: str
    rho: str | None = None


def parted(name: str) -> Parted | None:
    """The family of a metric and the distance, severity or radius at its end; None where it has none."""
    if found := _WITH_RHO.fullmatch(name):
        return Parted(found[1], "gamma", float(found[2]), found[2], found[3])
    if found := _WITH_GAMMA.fullmatch(name):
        return Parted(found[1], "gamma", float(found[2]), found[2])
    if found := _CORRUPTED.fullmatch(name):
        return Parted(found[1], "severity", float(found[2]), found[2])
    if found := _ATTACKED.fullmatch(name):
        over = "eps2" if found[1].endswith(".l2") else "eps"
        return Parted(found[1], over, float(found[2]), found[2])
    return None


def describe(name: str) -> str:
    """A metric as an axis calls it, with its unit; an expression or a name that says nothing as it is."""
    for prefix, words in (("train.", "training images"), ("valid.", "validation"), ("val.", "validation")):
        if name.startswith(prefix):
            return f"{describe(name.removeprefix(prefix))}, {words}"
    if name in _FIXED:
        return _FIXED[name]
    if name.startswith("ge."):
        return f"generalisation error: {describe(name.removeprefix('ge.'))}"
    if name.startswith("corrupt.") and name.endswith(".mean"):
        return f"mean accuracy under {name.split('.')[1].replace('_', ' ')}"
    part = parted(name)
    return tidy(name) if part is None else _described(part)


def _described(part: Parted) -> str:
    last = part.family.rpartition(".")[2]
    if part.rho is not None:
        return f"ProbAcc, {last} noise, γ = {_g(part.shown)}, ρ = {part.rho}"
    if part.over == "gamma":
        words = "PR" if ".pr." in f".{part.family}" else "failure probability"
        return f"{words}, {last} noise, γ = {_g(part.shown)}"
    if part.over == "severity":
        return f"accuracy under {last.replace('_', ' ')}, severity {part.shown}"
    unit = "" if part.over == "eps2" else "/255"
    return f"accuracy under {part.family.removesuffix('.l2')}, ε = {part.shown}{unit}"


def _g(shown: str) -> str:
    """A radius; 8/255 is known by that name."""
    return "8/255" if shown == "0.0313725" else shown


def setting(name: str) -> str:
    """What was done to the images of an accuracy: "fgsm, ε = 8/255", "clean images"."""
    text = describe(name)
    return "clean images" if name == "acc" else text.removeprefix("accuracy under ")


def axis(names: Sequence[str]) -> str:
    """The label of an axis for one metric, or for what several have in common, with the unit."""
    label = describe(names[0]) if len(names) == 1 else quantity(names)
    return f"{label} [share of images]" if {_quantity(name) for name in names} <= _SHARES else label


def quantity(names: Sequence[str]) -> str:
    """What metrics have in common, for an axis that several share: accuracy, PR ..., else "value"."""
    kinds = {_quantity(name) for name in names}
    return kinds.pop() if len(kinds) == 1 else "value"


_PR = "probabilistic robustness (PR)"
_SHARES = {"accuracy", "ProbAcc", _PR}


def _quantity(name: str) -> str:
    bare = metric_name.without_split(name)
    if bare.startswith("ge."):
        return "generalisation error"
    if bare.startswith("probacc."):
        return "ProbAcc"
    if bare.startswith("pr."):
        return _PR
    if bare.startswith("pfail."):
        return "failure probability"
    if bare == "acc" or (bare.startswith("corrupt.") and not bare.endswith("mce")):
        return "accuracy"
    part = parted(bare)
    return "accuracy" if part is not None else describe(name)


def is_share(names: Sequence[str]) -> bool:
    """Whether all these metrics are shares of images, for which guessing has a level."""
    return all(_quantity(name) == "accuracy" for name in names)


def tidy(text: Any) -> str:
    """Somebody's text on one line, without what would not print."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text)).strip()


def shortened(text: str, most: int = LONGEST) -> str:
    """A long name without its middle: both ends tell more."""
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return text[:half] + ELLIPSIS + text[len(text) - half :]


_PARTS = (("arch", "name"), ("dataset",), ("train", "method"), ("train", "seed"))


def _parts(record: Record) -> list[str | None]:
    found: list[str | None] = []
    for path in _PARTS:
        value: Any = record
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        found.append(None if value is None else tidy(value))
    return found


def differing(records: Sequence[Record]) -> list[tuple[str | None, ...]]:
    """Of name, data set, method and seed those that differ among the records, of each record."""
    rows = [_parts(record) for record in records]
    places = [place for place in range(len(_PARTS)) if len({row[place] for row in rows}) > 1]
    return [tuple(row[place] for place in places) for row in rows]


def tags(records: Sequence[Record]) -> list[str]:
    """What tells each record from the others: of name, data set, method and seed those that differ."""
    rows = [_parts(record) for record in records]
    differ = [place for place in range(len(_PARTS)) if len({row[place] for row in rows}) > 1]
    if not differ:
        differ = [0]
    words = ("", "", "", "seed ")
    named = [
        " ".join(words[place] + str(row[place]) for place in differ if row[place] is not None) or "unnamed"
        for row in rows
    ]
    return _numbered([shortened(name) for name in named])


def _numbered(names: list[str]) -> list[str]:
    """Names that stand for several records, with a number each."""
    total, met = Counter(names), Counter[str]()
    found = []
    for name in names:
        met[name] += 1
        found.append(name if total[name] == 1 else f"{name} #{met[name]}")
    return found


def common(records: Sequence[Record]) -> str:
    """What all records share of name, data set and method, for a title: "resnet18, cifar10"."""
    rows = [_parts(record) for record in records]
    shared = [
        str(rows[0][place])
        for place in (0, 1, 2)
        if rows[0][place] and len({row[place] for row in rows}) == 1
    ]
    return ", ".join(shortened(name) for name in shared)


def counted(number: int, noun: str = "record") -> str:
    """`6,466 records`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
