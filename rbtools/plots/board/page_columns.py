"""The columns of the leaderboard page: in which group a metric stands, and what its heading says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rbtools.attacks import ATTACKS
from rbtools.measures import MEASURES
from rbtools.records import metric_name

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
    "loss_gap": "generalisation",
    "error_gap": "generalisation",
    "corrupt": "corruptions",
    "params": "cost",
    "macs": "cost",
    "flops": "cost",
}
_PROBABILISTIC = {"pr": "PR", "pr-all": "PR (all images)", "pfail": "P(fail)"}
_PROB_ACC = {"probacc": "ProbAcc", "probacc-all": "ProbAcc (all images)"}
# Names of this package's attacks, and of those that published results have besides.
_ATTACK = re.compile(rf"({'|'.join([*ATTACKS, 'kl-pgd', 'apgd', 'adv', 'autoattack', 'boundary'])})(?![a-z])")
_SEVERITY = re.compile(r"corrupt\.[^.]+\.\d$")
_NUMBER = re.compile(r"\.(\d+(?:\.\d+)?(?:e[-+]?\d+)?)")
ARCH_COUNTS = {"arch.params": "parameters", "arch.macs": "multiply-adds"}


class PageColumn(NamedTuple):
    """A metric as the page shows it."""

    name: str
    title: str
    group: str
    higher: bool


class Curve(NamedTuple):
    """Metrics that differ in one number of their name: one line of the chart."""

    title: str
    x: str
    points: list[tuple[float, str]]


def columns(records: Sequence[Record]) -> list[PageColumn]:
    """All metrics but the score, group by group; those of a family by the number in their name."""
    names = [name for name in metric_name.names(records) if name != "score"]
    counted = [
        name
        for name in ARCH_COUNTS
        if name not in names and any(_count(record, name) is not None for record in records)
    ]
    attacked = {
        entry.get("metric") for record in records for entry in record.get("evals") or () if "attack" in entry
    }
    met: dict[str, int] = {}
    for name in names:
        met.setdefault(_family(name), len(met))
    names.sort(key=lambda name: (met[_family(name)], _numbers(name)))
    found = [_column(name, name in attacked) for name in [*names, *counted]]
    place = list(GROUPS)
    return sorted(found, key=lambda column: place.index(column.group))


def _column(name: str, attacked: bool) -> PageColumn:
    title = ARCH_COUNTS.get(name) or label(name)
    return PageColumn(name, title, _group(name, attacked), metric_name.higher_is_better(name))


def _group(name: str, attacked: bool) -> str:
    if metric_name.without_split(name) != name:
        return "splits"
    if _SEVERITY.match(name):
        return "severities"
    head = name.removeprefix("arch.").split(".")[0]
    if head in _GROUP_OF:
        return _GROUP_OF[head]
    if head in MEASURES:
        return "measures"
    if re.match(r"seconds(_|$)", head):
        return "cost"
    return "adversarial" if attacked or _ATTACK.match(head) else "other"


def value(record: Record, name: str) -> float | None:
    """The number of a column for a record, None where it has none."""
    found = _count(record, name) if name in ARCH_COUNTS else (record.get("metrics") or {}).get(name)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def _count(record: Record, name: str) -> Any:
    return (record.get("arch") or {}).get(name.removeprefix("arch."))


def label(name: str) -> str:
    """A heading: `PR uniform, γ 0.08` for pr.uniform.0.08, `pgd20, ε 8` for pgd20.8."""
    split = name.removesuffix(metric_name.without_split(name)).removesuffix(".")
    text = _label(metric_name.without_split(name))
    return f"{split}: {text}" if split else text


def _label(name: str) -> str:
    head, _, rest = name.partition(".")
    numbers = _NUMBER.findall("." + rest)
    words = " ".join(part for part in _NUMBER.sub("", "." + rest).split(".") if part)
    if head == "ge":
        return f"GE {_label(rest)}"
    if head == "acc" and not rest:
        return "clean"
    if head in _PROBABILISTIC and len(numbers) == 1:
        return f"{_PROBABILISTIC[head]} {words}, γ {_radius(numbers[0])}"
    if head in _PROB_ACC and len(numbers) == 2:
        return f"{_PROB_ACC[head]} {words}, γ {_radius(numbers[0])}, ρ {numbers[1]}"
    if head == "corrupt":
        return " ".join([words.replace("_", " "), *numbers]).strip() or name
    if _ATTACK.match(head) and len(numbers) == 1:
        norm = {"l2": " L2", "": ""}.get(words, f" {words}")
        return f"{head}{norm}, ε {numbers[0]}"
    if name == "seconds_per_epoch":
        return "seconds per epoch"
    return name


def _radius(text: str) -> str:
    """A radius as it was meant: 0.0313725 is a fraction of 255, 0.08 is none."""
    of255 = float(text) * 255
    return f"{of255:.0f}/255" if len(text) > 6 and abs(of255 - round(of255)) < 1e-3 else text


def _family(name: str) -> str:
    return _NUMBER.sub(".#", name)


def _numbers(name: str) -> list[float]:
    return [float(text) for text in _NUMBER.findall(name)]


def curves(names: Iterable[str]) -> list[Curve]:
    """What the chart can show, PR over gamma first: families with at least two members."""
    families: dict[tuple[int, str, str], list[tuple[float, str]]] = {}
    for name in names:
        numbers = _NUMBER.findall(name)
        head = name.split(".")[0]
        if head in _PROBABILISTIC and len(numbers) == 1:
            key = (3 if head == "pfail" else 0, f"{_label(name).rpartition(', γ')[0]} over γ", "radius γ")
        elif head in _PROB_ACC and len(numbers) == 2:
            stem = _label(name).partition(", ρ")[0]
            key = (1, f"{stem} over ρ", "tolerated failure rate ρ")
        elif _ATTACK.match(head) and len(numbers) == 1:
            unit = "L2 distance ε" if ".l2." in name else "distance ε in 1/255"
            key = (2, f"{_label(name).rpartition(', ε')[0]} over ε", unit)
        else:
            continue
        families.setdefault(key, []).append((float(numbers[-1]), name))
    found = sorted((key, sorted(points)) for key, points in families.items() if len(points) > 1)
    return [Curve(title, x, points) for (_, title, x), points in found]
