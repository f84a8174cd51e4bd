"""The summary of a search: means, spreads and intervals over runs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from rbtools.lazy import special
from rbtools.search.driver import Trace, Value
from rbtools.search.objective import SearchObjective
from rbtools.search.result_table import ResultTable
from rbtools.search.search_space import SearchSpace

Entry = dict[str, Any]


def spread(values: Sequence[float]) -> Entry:
    """Mean, standard deviation (n - 1), Student's 95 % interval of the mean, least, greatest and n.

    One value has no deviation and no interval.
    """
    count, mean = len(values), math.fsum(values) / len(values)
    result: Entry = {"mean": mean}
    if count > 1:
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
        half = float(special.stdtrit(count - 1, 0.975)) * deviation / math.sqrt(count)
        result |= {"std": deviation, "ci95": [mean - half, mean + half]}
    return {**result, "min": min(values), "max": max(values), "n": count}


class Best(NamedTuple):
    """The incumbent at the end of a run: the charged query that found it (from 1), and its values."""

    query: int
    number: int
    values: tuple[float, ...]


def incumbents(trace: Trace) -> list[Best]:
    """Each new best architecture of a run with one objective, in order."""
    bests: list[Best] = []
    for query, (index, value) in enumerate(trace.log, start=1):
        if value is not None and (not bests or value > bests[-1].values):
            bests.append(Best(query, index, value))
    return bests


def best(trace: Trace) -> Best | None:
    """The first of the best architectures of a run with one objective; None where all failed."""
    return next(reversed(incumbents(trace)), None)


def trajectory(traces: Sequence[Trace], objective: SearchObjective, budget: int) -> Entry:
    """The incumbent after each charged query, its mean over runs with the interval of the mean.

    A run that ended early keeps its last incumbent. Before every run has one there is no number (null).
    """
    rows = []
    for trace in traces:
        reached: list[float | None] = [None] * budget
        for incumbent in incumbents(trace):
            start = incumbent.query - 1
            reached[start:] = [incumbent.values[0]] * (budget - start)
        rows.append(reached)
    curves: Entry = {"mean": [], "low": [], "high": []}
    for column in zip(*rows, strict=True):
        values = [objective.upward(value) for value in column if value is not None]
        of: Entry = spread(values) if len(values) == len(rows) else {"mean": None}
        ends = of.get("ci95") or [of["mean"], of["mean"]]
        for key, value in zip(("mean", "low", "high"), [of["mean"], *ends], strict=True):
            curves[key].append(value)
    return curves


def looked_up(indices: Sequence[int], field: SearchSpace, table: ResultTable) -> Entry:
    """Mean, spread and interval of every metric of the table at these architectures."""
    results = [table.results.get(table.key(index, field)) for index in indices]
    known = [entry.metrics for entry in results if entry is not None]
    metrics = {}
    for name in table.metrics():
        values = [entry[name] for entry in known if name in entry]
        if values:
            metrics[name] = spread(values)
    return {"metrics": metrics, "missing": sum(entry is None for entry in results)}


def optimum(values: Mapping[Hashable, Value], objective: SearchObjective) -> tuple[Hashable, float]:
    """The key of the best architecture of the table, and its value."""
    key, value = max(((k, v) for k, v in values.items() if v is not None), key=lambda pair: pair[1])
    return key, objective.upward(value[0])


def queries(traces: Sequence[Trace]) -> Entry:
    """The cost of the runs: charged queries, new architectures, free repeats."""
    return {
        "charged": spread([len(trace.log) for trace in traces]),
        "new": spread([trace.new for trace in traces]),
        "free_repeats": spread([trace.free for trace in traces]),
        "failed": sum(value is None for trace in traces for _, value in trace.log),
    }
