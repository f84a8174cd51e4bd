"""The columns of the leaderboard page, with a group and a heading for each metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rbtools.evaluation.attack_names import attack_of
from rbtools.measures import MEASURES
from rbtools.records import metric_name
from rbtools.records.results import is_number

Record = Mapping[str, Any]

GROUPS = {
    "accuracy": "Accuracy",
    "adversarial": "Adversarial",
    "probabilistic": "Probabilistic",
    "generalisation": "Generalisation",
    "corruptions": "Corruptions",
    "severities": "Single severities",
    "measures": "Measures",
    "cost": "Cost",
    "other": "Other",
    "splits": "Other splits",
}
_GROUP_OF = {
    "acc": "accuracy",
    "pr": "probabilistic",
    "probacc": "probabilistic",
    "pr-all": "probabilistic",
    "probacc-all": "probabilistic",
    "pfail": "probabilistic",
    "ge": "generalisation",
    "test_minus_train": "generalisation",
    "corrupt": "corruptions",
    "params": "cost",
    "macs": "cost",
    "flops": "cost",
}
ARCH_COUNTS = {"arch.params": "parameters", "arch.macs": "multiply-adds"}


class PageColumn(NamedTuple):
    name: str
    title: str
    group: str
    higher: bool


class Curve(NamedTuple):
    """Metrics whose names differ in one number, which form one line of the chart."""

    title: str
    x: str
    points: list[tuple[float, str]]


def columns(records: Sequence[Record]) -> list[PageColumn]:
    """The columns of all metrics except the score, sorted by group, then by family, then by number."""
    names = [name for name in metric_name.names(records) if name != "score"]
    counted = [
        name
        for name in ARCH_COUNTS
        if name not in names and any(_count(record, name) is not None for record in records)
    ]
    attacked = {
        entry.get("metric") for record in records for entry in record.get("evals") or () if "attack" in entry
    }
    families: dict[str, int] = {}
    for name in names:
        families.setdefault(_family(name), len(families))
    names.sort(key=lambda name: (families[_family(name)], _numbers(name)))
    page_columns = [_column(name, name in attacked) for name in [*names, *counted]]
    groups = list(GROUPS)
    return sorted(page_columns, key=lambda column: groups.index(column.group))


def _column(name: str, attacked: bool) -> PageColumn:
    title = ARCH_COUNTS.get(name) or metric_name.heading(name)
    return PageColumn(name, title, _group(name, attacked), metric_name.higher_is_better(name))


def _group(name: str, attacked: bool) -> str:
    parts = metric_name.parse(name)
    if parts.split != "test":
        return "splits"
    if parts.over == "severity" and not parts.prefixes:
        return "severities"
    first = parts.words[name in ARCH_COUNTS]
    if first in _GROUP_OF:
        return _GROUP_OF[first]
    if first in MEASURES:
        return "measures"
    if first == "seconds" or first.startswith("seconds_"):
        return "cost"
    return "adversarial" if attacked or attack_of(first) is not None else "other"


def value(record: Record, name: str) -> float | None:
    number = _count(record, name) if name in ARCH_COUNTS else (record.get("metrics") or {}).get(name)
    return number if is_number(number) else None


def _count(record: Record, name: str) -> Any:
    return (record.get("arch") or {}).get(name.removeprefix("arch."))


def _family(name: str) -> str:
    parts = metric_name.parse(name)
    return parts._replace(number=parts.number and "#", rho=parts.rho and "#").build()


def _numbers(name: str) -> list[float]:
    parts = metric_name.parse(name)
    return [float(text) for text in (parts.number, parts.rho) if text]


def curves(names: Iterable[str]) -> list[Curve]:
    """The curves of the chart, which are families with at least two metrics; PR over gamma is first."""
    families: dict[tuple[int, str, str], list[tuple[float, str]]] = {}
    for name in names:
        parts = metric_name.parse(name)
        if parts.prefixes:
            continue
        title = metric_name.heading(name)
        if parts.over == "gamma" and not parts.rho:
            order = 3 if parts.stem == "pfail" else 0
            key = (order, f"{title.rpartition(', γ')[0]} over γ", "radius γ")
        elif parts.over == "gamma":
            key = (1, f"{title.partition(', ρ')[0]} over ρ", "tolerated failure rate ρ")
        elif parts.attacked and not parts.stem.startswith("cert"):
            over = parts.form.axes_of(parts)[parts.over]
            key = (2, f"{parts.form.heading(parts, parts.over)} over {over.partition(' ')[0]}", over)
        else:
            continue
        families.setdefault(key, []).append((float(parts.rho or parts.number), name))
    lines = sorted((key, sorted(points)) for key, points in families.items() if len(points) > 1)
    return [Curve(title, x, points) for (_, title, x), points in lines]
