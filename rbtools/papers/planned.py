"""The sum of what the stages of a dry run say: the `plan` events of their log."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from rbtools.errors import RbError
from rbtools.execution.dry_run import MOST, about
from rbtools.store import Store, listing


def in_words(log: Path) -> str:
    """The results that the store has and lacks, the hours of one worker, and the files and bytes to come."""
    if not log.exists():
        return "no stage ran."
    with log.open("rb") as lines:  # among them is one for each record of each stage
        events = [event for event in map(orjson.loads, lines) if event["event"] in ("plan", "end")]
    failed = sum(event["event"] == "end" and event["status"] != 0 for event in events)
    left_out = f" Stages that failed, whose work is not in it: {failed}." if failed else ""
    return _total(event for event in events if event["event"] == "plan") + left_out


def _total(plans: Iterable[dict[str, Any]]) -> str:
    sums: Counter[str] = Counter()
    files: Counter[tuple[str | None, str]] = Counter()
    for plan in plans:
        sums.update({name: plan[name] for name in ("found", "missing", "seconds", "unknown")})
        files.update({(plan["store"], kind): count for kind, count in plan["files"].items()})
    if not sums["missing"]:
        return f"in all: {sums['found']:,} results in the store, none to compute."
    size = _bytes(files)
    return (
        f"in all: {sums['found']:,} results in the store, {sums['missing']:,} to compute; {_time(sums)};"
        f" {sum(files.values()):,} new files,"
        f" {'bytes not known yet' if size is None else f'about {size / 1e6:,.1f} MB'}."
    )


def _time(sums: Counter[str]) -> str:
    known = f"{about(sums['seconds'])} of one worker"
    if not sums["unknown"]:
        return known
    unknown = f"{sums['unknown']:,} pieces of work whose time is not known yet"
    return f"{known} without {unknown}" if sums["seconds"] else unknown


def _bytes(files: Counter[tuple[str | None, str]]) -> float | None:
    """The bytes of new files, by the mean size of the store's files of each kind; None where it has none."""
    total = 0.0
    for (store, kind), count in files.items():
        mean = None if store is None else _mean_size(Store(store), kind)
        if mean is None:
            return None
        total += count * mean
    return total


def _mean_size(store: Store, kind: str) -> float | None:
    """Of the first files, which are a random sample, since keys are hashes."""
    sizes = []
    with contextlib.suppress(RbError):  # no store yet
        for path in itertools.islice(listing.paths(store, kind), MOST):
            with contextlib.suppress(OSError):
                sizes.append(os.stat(path).st_size)
    return sum(sizes) / len(sizes) if sizes else None
