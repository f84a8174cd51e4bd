"""Statistics of search runs: results of each run, and their means, standard deviations and intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

from rbtools.lazy import special
from rbtools.search import front
from rbtools.search.driver import Trace
from rbtools.search.objective import SearchObjective

Entry = dict[str, Any]


def spread(values: Sequence[float]) -> Entry:
    """Returns mean, standard deviation (with n - 1), Student's 95 % interval, minimum, maximum and n.

    A single value has no standard deviation and no interval.
    """
    count, mean = len(values), math.fsum(values) / len(values)
    result: Entry = {"mean": mean}
    if count > 1:
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
        half = float(special.stdtrit(count - 1, 0.975)) * deviation / math.sqrt(count)
        result |= {"std": deviation, "ci95": [mean - half, mean + half]}
    return {**result, "min": min(values), "max": max(values), "n": count}


class Success(NamedTuple):
    """The number (from 1) of a charged query with a result, its architecture, and its values."""

    query: int
    arch: int
    values: tuple[float, ...]


def successes(trace: Trace) -> list[Success]:
    log = enumerate(trace.log, start=1)
    return [Success(query, index, value) for query, (index, value) in log if value is not None]


def found(trace: Trace) -> list[Success]:
    """Returns the non-dominated queries of a run, or, for one objective, the first of the best ones."""
    return front.front(successes(trace), attrgetter("values"))


def incumbents(trace: Trace) -> list[Success]:
    """Returns the successive best architectures of a run with one objective, in order."""
    bests: list[Success] = []
    for success in successes(trace):
        if not bests or success.values > bests[-1].values:
            bests.append(success)
    return bests


def trajectory(traces: Sequence[Trace], objective: SearchObjective, budget: int) -> Entry:
    """Returns the mean over runs of the best value after each charged query, and the mean's interval.

    A run that ended early keeps its last best value. The mean is null while any run has no value.
    """
    rows = []
    for trace in traces:
        reached = [-math.inf if value is None else value[0] for _, value in trace.log]
        rows.append(accumulate(reached + [-math.inf] * (budget - len(reached)), max))
    columns = [
        spread([*map(objective.upward, column)]) if min(column) > -math.inf else {"mean": None}
        for column in zip(*rows, strict=True)
    ]
    ends = [column.get("ci95") or [column["mean"]] * 2 for column in columns]
    return {
        "mean": [column["mean"] for column in columns],
        "low": [low for low, _ in ends],
        "high": [high for _, high in ends],
    }


def queries(traces: Sequence[Trace]) -> Entry:
    return {
        "charged": spread([len(trace.log) for trace in traces]),
        "new": spread([trace.new for trace in traces]),
        "free_repeats": spread([trace.free for trace in traces]),
        "failed": sum(value is None for trace in traces for _, value in trace.log),
    }
