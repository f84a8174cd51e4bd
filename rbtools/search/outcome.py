"""The records that a search writes: the architectures found, and the field `search` that describes it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from rbtools import registry
from rbtools.records import metric_name
from rbtools.search import front, summary
from rbtools.search.driver import Rules, Trace, Value
from rbtools.search.objective import SearchObjective
from rbtools.search.result_table import ResultTable
from rbtools.search.search_space import SearchSpace
from rbtools.search.sources import ValueSource

Record = dict[str, Any]


class Searched(NamedTuple):
    """A finished search. `known` has the values of the whole table, if there is one.

    `tables` are those to look the findings up in, by name ("table" for the one that was searched).
    """

    algorithm: Any
    objectives: tuple[SearchObjective, ...]
    rules: Rules
    seed: int
    source: ValueSource
    traces: list[Trace]
    known: Mapping[Hashable, Value] | None
    tables: Mapping[str, ResultTable]

    @property
    def field(self) -> SearchSpace:
        return self.source.field

    def about(self) -> Record:
        """The settings of the search, and its cost."""
        return {
            "algorithm": self.algorithm.name,
            "version": self.algorithm.version,
            "config": registry.config(self.algorithm),
            "objectives": [{"objective": one.text, "better": one.direction} for one in self.objectives],
            "seed": self.seed,
            "runs": len(self.traces),
            "budget": self.rules.budget,
            "charge_repeats": self.rules.charge_repeats,
            "architectures": self.field.size,
            "queries": summary.queries(self.traces),
        }


def summed_up(done: Searched) -> list[Record]:
    """One record with the best of all runs and, in its `search`, a summary of the runs.

    With several objectives one record for each point of the front over all runs.
    """
    if len(done.objectives) > 1:
        return _front(done)
    (objective,) = done.objectives
    bests = [(trace, best) for trace in done.traces if (best := summary.best(trace)) is not None]
    if not bests:
        return []
    _, top = max(bests, key=lambda pair: pair[1].values)
    values = [objective.upward(best.values[0]) for _, best in bests]
    section = {
        **done.about(),
        **_placed(done, top.number, top.values),
        "objective": summary.spread(values),
        **_gap(done, objective, values),
        "looked_up": _looked_up(done, [best.number for _, best in bests]),
        "trajectory": summary.trajectory(done.traces, objective, done.rules.budget),
        "each": [
            {
                "run": trace.number,
                "found": done.field.name(best.number),
                "value": objective.upward(best.values[0]),
                "found_at": best.query,
                **_cost(trace),
            }
            for trace, best in bests
        ],
    }
    return [{**done.source.record(top.number), "search": section}]


def each(done: Searched) -> list[Record]:
    """The result of each run: one record, with several objectives one for each point of its front."""
    records = []
    more: Record
    for trace in done.traces:
        if len(done.objectives) > 1:
            bests = _front_of(trace)
            more = {}
        else:
            (objective,) = done.objectives
            steps = summary.incumbents(trace)
            bests = steps[-1:]
            more = {"trajectory": [[step.query, objective.upward(step.values[0])] for step in steps]}
        for query, index, values in bests:
            own = {"run": trace.number, **_placed(done, index, values), "found_at": query, **more}
            section = {**done.about(), **own, "queries": _cost(trace)}
            records.append({**done.source.record(index), "search": section})
    return records


def derived(done: Searched, cells: Sequence[Record]) -> list[Record]:
    """A record for each cell that a differentiable search derived, with a summary of the runs."""
    section = {**done.about(), "looked_up": _looked_up(done, [trace.log[0][0] for trace in done.traces])}
    if done.objectives:
        (objective,) = done.objectives
        reached = [value for trace in done.traces if (value := trace.log[0][1]) is not None]
        values = [objective.upward(value[0]) for value in reached]
        if values:
            section |= {"objective": summary.spread(values), **_gap(done, objective, values)}
    records = []
    for trace, cell in zip(done.traces, cells, strict=True):
        index, value = trace.log[0]
        own = {"run": trace.number, "found": done.field.name(index), "searched_on": cell["dataset"]}
        own |= {} if value is None else _placed(done, index, value)
        own |= {"alphas": cell["alphas"], "history": cell["history"]}
        records.append({**done.source.record(index), "search": {**section, **own}})
    return records


def _cost(trace: Trace) -> Record:
    return {"charged": len(trace.log), "new": trace.new, "free_repeats": trace.free, "ended": trace.ended}


def _placed(done: Searched, index: int, values: Sequence[float]) -> Record:
    """The queried architecture, and its values."""
    pairs = zip(done.objectives, values, strict=True)
    return {
        "found": done.field.name(index),
        "values": {objective.text: objective.upward(value) for objective, value in pairs},
    }


def _looked_up(done: Searched, indices: list[int]) -> Record:
    """The metrics of these architectures in each table, and the best value of each metric there."""
    sections = {}
    for place, table in done.tables.items():
        optima = {}
        for name in table.metrics():
            values = [entry.metrics[name] for entry in table.results.values() if name in entry.metrics]
            if values:
                optima[name] = max(values) if metric_name.higher_is_better(name) else min(values)
        sections[place] = {**summary.looked_up(indices, done.field, table), "optima": optima}
    return sections


def _gap(done: Searched, objective: SearchObjective, values: list[float]) -> Record:
    """The optimum, and the gap of the runs to it."""
    if not done.known:
        return {}
    key, best = summary.optimum(done.known, objective)
    gaps = [abs(best - value) for value in values]
    top: Record = {"value": best}
    if "table" in done.tables:
        result = done.tables["table"].results[key]
        top |= {"name": result.record()["arch"].get("name"), "metrics": dict(result.metrics)}
    reached = sum(gap == 0 for gap in gaps)
    return {"optimum": top, "gap": {**summary.spread(gaps), "reached": reached}}


# --- several objectives -------------------------------------------------------------------------------


def _front_of(trace: Trace) -> list[summary.Best]:
    """The entries of a run's log that no other dominates."""
    numbered = enumerate(trace.log, start=1)
    successes = [summary.Best(query, index, value) for query, (index, value) in numbered if value is not None]
    return [successes[place] for place in front.front([success.values for success in successes])]


def _front(done: Searched) -> list[Record]:
    met: dict[Hashable, tuple[int, front.Point]] = {}
    runs: dict[Hashable, int] = {}
    for trace in done.traces:
        for _, index, value in _front_of(trace):
            key = done.field.key(index)
            met.setdefault(key, (index, value))
            runs[key] = runs.get(key, 0) + 1
    points = list(met.values())
    nondominated = [points[place] for place in front.front([value for _, value in points])]
    known = [value for value in (done.known or {}).values() if value is not None]
    best = {known[place] for place in front.front(known)}
    section = {**done.about(), **_covered(done)}
    records = []
    for index, value in nondominated:
        own = {**_placed(done, index, value), "in_fronts_of_runs": runs[done.field.key(index)]}
        if done.known is not None:
            own["optimal"] = value in best
        records.append({**done.source.record(index), "search": {**section, **own}})
    return records


def _covered(done: Searched) -> Record:
    """The hypervolume of each run's front relative to that of the whole table, and its growth.

    Objectives are scaled from the worst to the best value of the table; without a table, of all queries.
    """
    every = [value for trace in done.traces for _, value in trace.log if value is not None]
    points = every if done.known is None else [value for value in done.known.values() if value is not None]
    if not points:
        return {}
    low, high = (tuple(map(end, zip(*points, strict=True))) for end in (min, max))
    nondominated = [points[place] for place in front.front(points)]
    whole = front.hypervolume(front.scaled(nondominated, low, high)) or 1.0
    rows = [_growth(trace, low, high, whole, done.rules.budget) for trace in done.traces]
    means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    return {
        "hypervolume": {**summary.spread([row[-1] for row in rows]), "of": "table" if done.known else "met"},
        "trajectory": {"mean": means},
    }


def _growth(trace: Trace, low: front.Point, high: front.Point, whole: float, budget: int) -> list[float]:
    points: list[front.Point] = []
    row: list[float] = []
    for _, value in trace.log:
        if value is not None and not any(point == value or front.dominates(point, value) for point in points):
            points = [point for point in points if not front.dominates(value, point)] + [value]
            row.append(front.hypervolume(front.scaled(points, low, high)) / whole)
        else:
            row.append(row[-1] if row else 0.0)
    return row + [row[-1] if row else 0.0] * (budget - len(row))
