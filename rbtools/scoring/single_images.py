"""Answers of single images, or why an entry has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rbtools.errors import RbError
from rbtools.records import answers, metric_name


class NoAnswers(RbError):
    """An entry says nothing of single images."""


def needed(entry: Mapping[str, Any], metric: str) -> answers.Answers:
    """The answers that an entry of this metric holds.

    Raises NoAnswers, which says why, if it has none, and RbError as `answers.of` does.
    """
    found = answers.of(entry)
    if found is not None:
        return found
    parts = metric_name.parse(metric_name.without_split(metric))
    if "two_phase" in entry:
        why = (
            "is an estimate: not all images were attacked. Attack all of them (--two-phase all, or without"
            " it)."
        )
    elif parts.stem in ("pr", "pr-all"):
        why = "is a share of noisy copies, so no image counts or not. ProbAcc (--rho) does."
    elif "records" in entry:
        why = (
            "is a mean over records, so no image has one answer. Add what needs them to each record before,"
            " by rb-score --add."
        )
    elif "expression" in entry and "union" not in entry:
        why = f"is computed: {entry['expression']}. Expected a metric that was measured."
    elif parts.is_ge or (entry and type(entry.get("n")) is not int):
        why = "is no share of images that count."
    else:
        raise NoAnswers(f"There are no answers of single images for {metric}. {answers.HOW}")
    raise NoAnswers(f"{metric} {why}")
