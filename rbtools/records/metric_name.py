"""Metric names: how they are built, which way is better, which one a record was evaluated for last.

Names go from the general to the particular, `pgd20.8`, `corrupt.fog.3`, `pr.uniform.0.08`; numbers in
them are written `%g`. A split other than test stands in front: `train.pgd20.8`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rbtools.errors import RbError

SPLIT_PREFIXES = ("train.", "valid.", "val.")

# Less is better for a name that begins with one of these, or has one of these as a part.
_LOWER_FAMILIES = frozenset(
    ("ge", "wci", "jacobian", "hessian", "sharpness", "nu", "params", "macs", "flops", "pfail")
)
_LOWER_PART = re.compile(r"seconds(_.*)?$|(.*_)?(loss|error|gap|mce|seconds|cond|bound)$")
_OVER = {"correct": "", "all": "-all"}  # which images a probabilistic metric is over
_SUMMARY = re.compile(r"(?:mean|median|min|max|sum)\((.*)\)")


def eps_name(eps: float, norm: str = "linf") -> str:
    """A distance in pixel units of [0, 1] as names have it: L-infinity in 1/255 (8/255 is "8"), L2 as is."""
    return f"{eps * 255:g}" if norm == "linf" else f"{eps:g}"


def attack_name(stem: str, eps: float, norm: str = "linf") -> str:
    """`pgd20.8` for eps 8/255; the stem of an attack in another norm says so itself (`pgd20.l2`)."""
    return f"{stem}.{eps_name(eps, norm)}"


def corrupt_name(corruption: str, severity: int | str) -> str:
    """`corrupt.fog.3`, or with "mean" for the severity `corrupt.fog.mean`."""
    return f"corrupt.{corruption}.{severity}"


def pr_name(noise: str, gamma: float, denominator: str = "correct") -> str:
    """`pr.uniform.0.08`, over the images that are right without noise; over all, `pr-all.uniform.0.08`."""
    return f"pr{_OVER[denominator]}.{noise}.{gamma:g}"


def prob_acc_name(noise: str, gamma: float, rho: float, denominator: str = "correct") -> str:
    """`probacc.uniform.0.0313725.0.05`: the radius, then the tolerated failure rate; see `pr_name`."""
    return f"probacc{_OVER[denominator]}.{noise}.{gamma:g}.{rho:g}"


def ge_name(metric: str) -> str:
    """`ge.pgd20.8`: the generalisation error of `pgd20.8`."""
    return f"ge.{metric}"


def gap_name(metric: str) -> str:
    """`test_minus_train.loss.pgd20.8`: of what grows with overfitting, where the name says the direction."""
    return f"test_minus_train.{metric}"


def is_gap(name: str) -> bool:
    """Whether it is test - train, also by its old name (`loss_gap.pgd20.8`)."""
    return name.startswith(("test_minus_train.", "loss_gap.", "error_gap."))


def split_name(metric: str, split: str) -> str:
    """The metric as measured on that split; `test` is the split that goes without saying."""
    return metric if split == "test" else f"{split}.{metric}"


def without_split(metric: str) -> str:
    """The metric without the split in front."""
    for prefix in SPLIT_PREFIXES:
        metric = metric.removeprefix(prefix)
    return metric


def higher_is_better(metric: str) -> bool:
    """Whether more of this metric is better; True for a name that says nothing.

    Also understands `mean(ge.*, wci)` and its like: less is better if it is for every name inside.
    """
    summary = _SUMMARY.fullmatch(metric.strip())
    if summary:
        return any(higher_is_better(part) for part in summary[1].split(","))
    parts = without_split(metric.strip()).removeprefix("arch.").split(".")
    if parts[:2] == ["bound", "robbench2"]:  # from below, on the smallest eigenvalue
        return True
    return parts[0] not in _LOWER_FAMILIES and not any(_LOWER_PART.match(part) for part in parts)


def last_evaluated(record: Mapping[str, Any]) -> str | None:
    """The metric of the last entry of `evals` that has a value; without entries, the last of `metrics`."""
    metrics = record.get("metrics") or {}
    for entry in reversed(record.get("evals") or []):
        if entry.get("metric") in metrics:
            return str(entry["metric"])
    return next(reversed(metrics), None)


def default_rank_key(records: Iterable[Mapping[str, Any]]) -> str:
    """What to rank by when nobody says: `score` if there is one, else the metric evaluated last.

    Where records differ in that, the one that is last in most of them (of equals, the first met).
    Raises RbError where no record has a metric.
    """
    last: Counter[str] = Counter()
    for record in records:
        if "score" in (record.get("metrics") or {}):
            return "score"
        name = last_evaluated(record)
        if name is not None:
            last[name] += 1
    if not last:
        raise RbError(
            "No record has a metric to rank by. Evaluate the models first, for example with"
            " rb-attack pgd --eps 8."
        )
    return last.most_common(1)[0][0]


def names(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """All metrics of these records, in the order in which they are first met."""
    met: dict[str, None] = {}
    for record in records:
        met.update(dict.fromkeys(record.get("metrics") or ()))
    return list(met)
