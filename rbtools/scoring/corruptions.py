"""Means of accuracies under corruptions, and errors relative to a reference model, mCE (Hendrycks and
Dietterich, ICLR 2019, arXiv:1903.12261, section 4)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rbtools.errors import RbError
from rbtools.records import metric_name, schema
from rbtools.units import SEVERITIES

Entry = dict[str, Any]
# Returns the interval of a mean accuracy; None if the outcomes of single images are missing.
Joint = Callable[[Sequence[Entry]], "tuple[float, float] | None"]


@dataclass(frozen=True)
class Reference:
    """The reference model of mCE. `errors` maps each corruption to the mean error over five severities."""

    name: str
    errors: tuple[tuple[str, float], ...]
    clean: float | None

    def described(self) -> dict[str, Any]:
        return {"name": self.name, "errors": dict(self.errors), "clean": self.clean}


def reference(record: Mapping[str, Any], names: Sequence[str]) -> Reference:
    """The errors of a record under these corruptions, computed from the five severities or from their mean.
    Raises RbError if the record lacks one of the corruptions, or if the error under a corruption is 0."""
    metrics = record.get("metrics") or {}
    errors, lacking = {}, []
    for name in names:
        five = [metrics.get(metric_name.corrupt_name(name, severity)) for severity in SEVERITIES]
        whole = [value for value in five if value is not None]
        mean = fmean(whole) if len(whole) == 5 else metrics.get(metric_name.corrupt_name(name, "mean"))
        if mean is None:
            lacking.append(name)
        else:
            errors[name] = 1 - mean
    if lacking:
        raise RbError(
            f"The reference record lacks results of {', '.join(lacking)}. Expected corrupt.NAME.1 to"
            " corrupt.NAME.5, or corrupt.NAME.mean, for every corruption. Run rb-corrupt all --severity 1-5."
        )
    perfect = [name for name, error in errors.items() if error <= 0]
    if perfect:
        raise RbError(
            f"The reference makes no errors under {', '.join(perfect)}, so its error cannot be a divisor."
            " Choose another."
        )
    arch = record.get("arch")
    name = str(arch.get("name")) if isinstance(arch, Mapping) else "unnamed"
    clean = metrics.get("acc")
    return Reference(name, tuple(errors.items()), None if clean is None else 1 - clean)


def summary(
    entries: Sequence[Entry],
    clean: Entry | None,
    benchmark: Sequence[str],
    base: Reference | None = None,
    joint: Joint = lambda parts: None,
) -> list[Entry]:
    """Compute the means and the mCE for which all accuracies are given. `corrupt.NAME.mean` needs all five
    severities of a corruption; `corrupt.mean` and mCE need all corruptions of the benchmark. `joint` computes
    the intervals of the means."""
    of: dict[str, dict[int, Entry]] = {}
    for entry in entries:
        of.setdefault(entry["corruption"], {})[entry["severity"]] = entry
    full = {
        name: [by_severity[severity] for severity in SEVERITIES]
        for name, by_severity in of.items()
        if len(by_severity) == len(SEVERITIES)
    }
    means = [
        _mean(metric_name.corrupt_name(name, "mean"), five, joint, corruption=name)
        for name, five in full.items()
    ]
    if not set(benchmark) <= full.keys():
        return means
    all_of = [entry for name in benchmark for entry in full[name]]
    means.append(_mean("corrupt.mean", all_of, joint, corruptions=list(benchmark)))
    if base is not None:
        means += _mce(all_of, clean, {name: full[name] for name in benchmark}, base)
    return means


def _mean(metric: str, parts: Sequence[Entry], joint: Joint, **more: object) -> Entry:
    """The mean of several accuracies on the same images. If outcomes of images are missing, the interval is
    the mean of the accuracies' intervals, which is too wide unless the accuracies fail on the same images."""
    interval = joint(parts) or [fmean(part["ci95"][side] for part in parts) for side in (0, 1)]
    value = fmean(part["value"] for part in parts)
    return {**_common(metric, parts, more), "value": value, "ci95": list(interval)}


def _common(metric: str, parts: Sequence[Entry], more: Mapping[str, Any]) -> Entry:
    """The metric, and each protocol field whose value is the same in all parts that have the field."""
    shared: Entry = {"metric": metric, **more, "severities": list(SEVERITIES)}
    for part in parts:
        for key, value in part.items():
            apart = key in ("metric", "corruption", "severity", "seconds") or schema.role(key) == "result"
            if not apart and all(other.get(key, value) == value for other in parts):
                shared[key] = value
    archives = "".join(part.get("archive", "") for part in parts)
    if archives:
        shared["archive"] = "sha256:" + hashlib.sha256(archives.encode()).hexdigest()
    shared["seconds"] = max(part.get("seconds", 0.0) for part in parts)  # they were measured together
    return shared


def _mce(
    all_of: Sequence[Entry], clean: Entry | None, full: Mapping[str, Sequence[Entry]], base: Reference
) -> list[Entry]:
    """mCE is the error divided by the reference's error; relative mCE uses the losses of accuracy instead."""
    theirs = dict(base.errors)
    wrong = {name: 1 - fmean(entry["value"] for entry in five) for name, five in full.items()}
    about = {"corruptions": list(full), "reference": base.described()}
    value = fmean(wrong[name] / theirs[name] for name in full)
    plain = {**_common("corrupt.mce", all_of, about), "value": value}
    relative: Entry = _common("corrupt.relative_mce", all_of, about)
    if clean is None or base.clean is None:
        side = "the reference" if base.clean is None else "this model"
        return [plain, {**relative, "value": None, "reason": f"the clean accuracy of {side} is not known"}]
    harmless = [name for name in full if theirs[name] <= base.clean]
    if harmless:
        reason = f"the reference loses no accuracy under {', '.join(harmless)}"
        return [plain, {**relative, "value": None, "reason": reason}]
    lost = {name: wrong[name] - (1 - clean["value"]) for name in full}
    value = fmean(lost[name] / (theirs[name] - base.clean) for name in full)
    return [plain, {**relative, "value": value}]
