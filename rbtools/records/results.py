"""Putting results into a record: one entry a metric, and no silent change of protocol."""

from __future__ import annotations

import math
import re
from typing import Any

from rbtools.errors import RbError

# What a run found out or cost. Everything else in an entry is the protocol: it says what was asked.
FOUND = frozenset(
    "value ci95 reason seconds device stored warnings undecided draws_spent passes detail broken_by sanity"
    " prepared distance tool quantiles draws_saved confirmed images below_floor se se_over layers"
    " negative tests estimate estimator".split()
)
LATER: Any = object()
"""Stands in an entry for what only the work will tell."""
_INTERVAL = re.compile(r"ci\d")  # ci95, ci99.9


def protocol(entry: dict[str, Any]) -> dict[str, Any]:
    """The part of an entry that says what was measured, without what came out."""
    return {key: value for key, value in entry.items() if key not in FOUND and not _INTERVAL.match(key)}


def add(record: dict[str, Any], entry: dict[str, Any], *, replace: bool = False) -> dict[str, Any]:
    """Return the record with this entry in `evals` and its value in `metrics`.

    A metric of that name with the same protocol is replaced. With another protocol it is an error
    that shows the difference, unless `replace`. An entry whose value is None leaves `metrics`.
    """
    name = entry["metric"]
    evals, metrics = list(record.get("evals", [])), dict(record.get("metrics", {}))
    if not replace:
        refuse(record, entry)
    evals = [old for old in evals if old.get("metric") != name] + [entry]
    metrics.pop(name, None)
    if entry["value"] is not None:
        metrics[name] = entry["value"]
    return {**record, "metrics": metrics, "evals": evals}


def refuse(record: dict[str, Any], entry: dict[str, Any]) -> None:
    """Raise RbError where the record has this metric with another protocol than the entry.

    Before the work an entry may have LATER in the place of a value: then any is right.
    """
    for old in record.get("evals", []):
        if old.get("metric") == entry["metric"] and (how := difference(old, entry)):
            raise RbError(
                f"The record already has '{entry['metric']}', measured differently: {how}."
                " Keep both with --as NAME, or overwrite with --replace."
            )


def add_implicit(record: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """Like `add`, but a metric that is already there under another protocol stays as it is.

    More examples of the same are welcome: clean accuracy on fifty images gives way to that on all, so
    that it stands on the same images as the attack that came last.
    """
    for old in record.get("evals", []):
        if old.get("metric") != entry["metric"] or protocol(old) == protocol(entry):
            continue
        alike = {**protocol(old), "n": 0} == {**protocol(entry), "n": 0}
        if not (alike and isinstance(old.get("n"), int) and entry.get("n", 0) > old["n"]):
            return record
    return add(record, entry, replace=True)


def difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Say in which fields two entries' protocols differ, such as "steps 20 there, 40 here"."""
    before, after = protocol(old), protocol(new)
    fields = [
        key
        for key in {**before, **after}
        if (key in before) != (key in after) or before.get(key) != after.get(key)
        if after.get(key) is not LATER
    ]
    return ", ".join(f"{key} {before.get(key)!r} there and {after.get(key)!r} here" for key in fields)


def edited(record: dict[str, Any]) -> dict[str, Any] | None:
    """The first entry that does not say what its metric is in `metrics`; None where all do."""
    metrics = record.get("metrics") or {}
    for entry in record.get("evals") or ():
        here, value = metrics.get(entry["metric"]), entry.get("value")
        if here is None or value is None:
            continue
        if not math.isclose(here, value, rel_tol=1e-6, abs_tol=1e-9):
            return dict(entry)
    return None


def forget_evaluations(record: dict[str, Any]) -> dict[str, Any]:
    """The record without results that belong to its former weights: a training makes new ones.

    An entry with a `split` was measured on trained weights, unless it says that it was `on` fresh ones;
    seconds per epoch tell of their training, and a score is made of such results; a measure of the
    architecture is none of these.
    """
    stale = {entry.get("metric") for entry in record.get("evals", []) if _of_weights(entry)}
    if not stale:
        return record
    kept = [entry for entry in record["evals"] if not _of_weights(entry)]
    metrics = {name: value for name, value in record.get("metrics", {}).items() if name not in stale}
    return {**record, "metrics": metrics, "evals": kept}


def _of_weights(entry: dict[str, Any]) -> bool:
    if entry.get("on") == "init":
        return False
    return "split" in entry or entry.get("metric") == "seconds_per_epoch" or entry.get("tool") == "rb-score"
