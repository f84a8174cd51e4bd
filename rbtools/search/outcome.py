"""The records that a search writes: the best architectures with a field `search`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from rbtools import registry
from rbtools.records import metric_name
from rbtools.search import front, summary
from rbtools.search.driver import Algorithm, Rules, Trace
from rbtools.search.objective import SearchObjective
from rbtools.search.result_table import ResultTable, TableEntry
from rbtools.search.search_space import SearchSpace
from rbtools.search.sources import Source

Record = dict[str, Any]


class Searched(NamedTuple):
    """A finished search. `tables` contains the searched table ("table") and tables of further results."""

    algorithm: Algorithm
    objectives: tuple[SearchObjective, ...]
    rules: Rules
    source: Source
    traces: list[Trace]
    tables: Mapping[str, ResultTable]

    @property
    def field(self) -> SearchSpace:
        return self.source.field

    def record(self, arch: int, found: Record) -> Record:
        """Returns the record of an architecture with the settings, the cost and `found` in `search`."""
        about = {
            "algorithm": self.algorithm.name,
            "version": self.algorithm.version,
            "config": registry.config(self.algorithm),
            "objectives": [{"objective": one.text, "better": one.direction} for one in self.objectives],
            "seed": self.rules.seed,
            "runs": len(self.traces),
            "budget": self.rules.budget,
            "charge_repeats": self.rules.charge_repeats,
            "architectures": self.field.size,
            "queries": summary.queries(self.traces),
        }
        return {**self.source.record(arch), "search": {**about, **found}}


def summed_up(done: Searched) -> list[Record]:
    """Returns one record with the best architecture of all runs and a summary of the runs in `search`.

    With several objectives, there is one record for each point of the front over all runs.
    """
    if len(done.objectives) > 1:
        return _front(done)
    (objective,) = done.objectives
    bests = [(trace, best) for trace in done.traces for best in summary.found(trace)]
    if not bests:
        return []
    top = max((best for _, best in bests), key=attrgetter("values"))
    section = {
        **_placed(done, top.arch, top.values),
        **_reached(done, [best.values for _, best in bests]),
        "looked_up": _looked_up(done, [best.arch for _, best in bests]),
        "trajectory": summary.trajectory(done.traces, objective, done.rules.budget),
        "each": [
            {
                "run": trace.number,
                "found": done.field.name(best.arch),
                "value": objective.upward(best.values[0]),
                "found_at": best.query,
                **_cost(trace),
            }
            for trace, best in bests
        ],
    }
    return [done.record(top.arch, section)]


def each(done: Searched) -> list[Record]:
    """Returns one record for the result of each run, or for each point of the run's front."""
    records = []
    for trace in done.traces:
        more: Record = {"queries": _cost(trace)}
        if len(done.objectives) == 1:
            upward, steps = done.objectives[0].upward, summary.incumbents(trace)
            more["trajectory"] = [[step.query, upward(step.values[0])] for step in steps]
        for query, arch, values in summary.found(trace):
            own = {"run": trace.number, **_placed(done, arch, values), "found_at": query}
            records.append(done.record(arch, {**own, **more}))
    return records


def derived(done: Searched, cells: Sequence[Record]) -> list[Record]:
    """Returns a record for each cell that a differentiable search derived, with a summary of the runs."""
    found = [trace.log[0] for trace in done.traces]
    section: Record = {"looked_up": _looked_up(done, [arch for arch, _ in found])}
    if values := [value for _, value in found if value is not None]:
        section |= _reached(done, values)
    records = []
    for run, ((arch, value), cell) in enumerate(zip(found, cells, strict=True)):
        own = {"run": run, "found": done.field.name(arch), "searched_on": cell["dataset"]}
        own |= {} if value is None else _placed(done, arch, value)
        own |= {"alphas": cell["alphas"], "history": cell["history"]}
        records.append(done.record(arch, {**section, **own}))
    return records


def _cost(trace: Trace) -> Record:
    return {"charged": len(trace.log), "new": trace.new, "free_repeats": trace.free, "ended": trace.ended}


def _placed(done: Searched, index: int, values: Sequence[float]) -> Record:
    pairs = zip(done.objectives, values, strict=True)
    return {
        "found": done.field.name(index),
        "values": {objective.text: objective.upward(value) for objective, value in pairs},
    }


def _looked_up(done: Searched, indices: list[int]) -> Record:
    """Returns, for each table, the metrics of these architectures and the best value of each metric."""
    sections = {}
    for place, table in done.tables.items():
        entries = [table.results.get(table.key(index, done.field)) for index in indices]
        every = _columns(table, table.results.values())
        sections[place] = {
            "metrics": {name: summary.spread(values) for name, values in _columns(table, entries).items()},
            "missing": sum(entry is None for entry in entries),
            "optima": {
                name: max(values) if metric_name.higher_is_better(name) else min(values)
                for name, values in every.items()
            },
        }
    return sections


def _columns(table: ResultTable, entries: Iterable[TableEntry | None]) -> dict[str, list[float]]:
    known = [entry.metrics for entry in entries if entry is not None]
    columns = {name: [metrics[name] for metrics in known if name in metrics] for name in table.names}
    return {name: values for name, values in columns.items() if values}


def _reached(done: Searched, reached: Sequence[Sequence[float]]) -> Record:
    """Returns the values of the runs for a single objective and, with a table, the optimum and the gaps."""
    (objective,) = done.objectives
    values = [objective.upward(value) for (value,) in reached]
    section: Record = {"objective": summary.spread(values)}
    known = done.source.known
    if known:
        key = max(known, key=lambda key: known[key])
        best, entry = objective.upward(known[key][0]), done.tables["table"].results[key]
        gaps = [abs(best - value) for value in values]
        section["optimum"] = {
            "value": best,
            "name": entry.record()["arch"].get("name"),
            "metrics": dict(entry.metrics),
        }
        section["gap"] = {**summary.spread(gaps), "reached": gaps.count(0)}
    return section


# --- several objectives -------------------------------------------------------------------------------


def _front(done: Searched) -> list[Record]:
    known, keys = done.source.known, done.field.keys
    met = [success for trace in done.traces for success in summary.found(trace)]
    runs = Counter(keys[success.arch] for success in met)
    best = set(front.front(list((known or {}).values()), tuple))
    covered = _covered(done)
    records = []
    for _, arch, value in front.front(met, attrgetter("values")):
        own = {**_placed(done, arch, value), "in_fronts_of_runs": runs[keys[arch]]}
        if known is not None:
            own["optimal"] = value in best
        records.append(done.record(arch, {**covered, **own}))
    return records


def _covered(done: Searched) -> Record:
    """Returns the hypervolume of each run's front as a share of the table's hypervolume, and its growth.

    Objectives are scaled from the worst to the best value in the table or, without a table, in all queries.
    """
    known = done.source.known
    met = [success.values for trace in done.traces for success in summary.successes(trace)]
    points = met if known is None else list(known.values())
    if not points:
        return {}
    low, high = (tuple(map(end, zip(*points, strict=True))) for end in (min, max))
    whole = front.hypervolume(front.scaled(front.front(points, tuple), low, high)) or 1.0
    rows = [_growth(trace, low, high, whole, done.rules.budget) for trace in done.traces]
    means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    return {
        "hypervolume": {**summary.spread([row[-1] for row in rows]), "of": "table" if known else "met"},
        "trajectory": {"mean": means},
    }


def _growth(trace: Trace, low: front.Point, high: front.Point, whole: float, budget: int) -> list[float]:
    """Returns the share of the hypervolume after each query. A run that ended early keeps its last share."""
    points: list[front.Point] = []
    row = [0.0]
    for _, value in trace.log:
        before, points = points, points if value is None else front.front([*points, value], tuple)
        same = points == before
        row.append(row[-1] if same else front.hypervolume(front.scaled(points, low, high)) / whole)
    return row[1:] + row[-1:] * (budget - len(trace.log))
