"""Writes the output of rb-search: a summary, a table, or records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rbtools.cli import tables
from rbtools.cli.output import RecordWriter
from rbtools.cli.sink import counted
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError, UsageError
from rbtools.records import dumps, expr, metric_name
from rbtools.records.results import interval
from rbtools.scoring import rank_order, table

if TYPE_CHECKING:
    from rbtools.search.outcome import Searched

Record = dict[str, Any]


def print_summary(done: Searched, screen: Terminal) -> None:
    """Report the searched architectures, missing and averaged results, and too large a budget."""
    field, size = done.field, counted(done.field.size, "architecture")
    wanted = " and ".join(f"{one.text} ({one.direction} is better)" for one in done.objectives)
    if done.source.known is None:
        new = len({field.keys[index] for trace in done.traces for index, _ in trace.log})
        screen.say(f"{new} of {field.size} architectures were evaluated for {wanted}.")
        return
    screen.say(f"{size} {'has' if field.size == 1 else 'have'} {wanted}.")
    if field.size < field.of_space:
        screen.say(
            f"{field.of_space - field.size} of {field.of_space} architectures of the space are missing; the"
            " search uses the others."
        )
    searched = done.tables["table"]
    if searched.lacking:
        screen.say(f"{searched.lacking} values of the objective are missing in the records.")
    if several := [entry for entry in searched.results.values() if len(entry.samples) > 1]:
        known = sorted(set().union(*(entry.seeds for entry in several)))
        seeds = f", seeds {', '.join(map(str, known[:8]))}" if known else ""
        screen.say(
            f"{counted(len(several), 'architecture')} with several records"
            f" ({sum(len(entry.samples) for entry in several)} in all{seeds}): each metric is averaged."
        )
    if done.rules.budget > field.size:
        then = "repeats make up the rest" if done.rules.charge_repeats else "a run ends after all of them"
        screen.say(f"the budget of {done.rules.budget} queries is larger than the table with {size}: {then}.")


def print_result(done: Searched, records: list[Record], screen: Terminal) -> None:
    section = records[0]["search"] if records else {}
    if "objective" in section:
        text = _in_words(section["objective"])
        if "gap" in section:
            best, gap = section["optimum"], section["gap"]
            named = f" ({best['name']})" if best.get("name") else ""
            text += (
                f"; the optimum, {table.figure(best['value'])}{named}, was found by {gap['reached']} of"
                f" {gap['n']} runs, and the mean gap is {table.figure(gap['mean'])}"
            )
        text = f"{done.objectives[0].text} {text}"
    elif "hypervolume" in section:
        share = section["hypervolume"]
        text = f"{counted(len(records), 'architecture')} on the front of all runs;"
        text += f" a run covers {_in_words(share)} of"
        text += " the table's hypervolume" if share["of"] == "table" else " the hypervolume of all queries"
    else:
        text = counted(len(records), "record") if records else "nothing was found: every evaluation failed"
    of = "" if "alphas" in section else f" of {done.rules.budget} queries"
    screen.say(f"{done.algorithm.name}, {counted(len(done.traces), 'run')}{of}: {text}.")


def _in_words(spread: Record) -> str:
    text = table.figure(spread["mean"])
    if "ci95" not in spread:
        return text
    low, high = map(table.figure, spread["ci95"])
    return f"{text} ± {table.figure(spread['std'])}, 95 % interval of the mean [{low}, {high}]"


def write(
    done: Searched, records: list[Record], form: str | None, shown: str | None, output: RecordWriter
) -> None:
    form = form or ("table" if output.is_terminal() else "jsonl")
    if form == "jsonl":
        for record in records:
            output.line(dumps(record))
    elif records:
        summed_up = "objective" in records[0]["search"]
        built = _summary(done, records[0]["search"], shown) if summed_up else _ranked(done, records, shown)
        tables.write(built, done.objectives[0].text, form, output)


def _ranked(done: Searched, records: list[Record], shown: str | None) -> table.Table:
    key, higher = done.objectives[0].text, done.objectives[0].higher

    def reached(record: Record) -> Record:
        values: Record = record["search"].get("values", {})  # a derived cell that the table lacks has none
        return values

    records = [{**one, "metrics": {**reached(one), **one.get("metrics", {})}} for one in records]
    ranked = rank_order.rank(records, lambda record: reached(record).get(key), higher=higher)
    return table.build(ranked, key, metrics=_chosen(shown, metric_name.names(records)))


def _summary(done: Searched, section: Record, shown: str | None) -> table.Table:
    key = done.objectives[0].text
    tables = section["looked_up"] or {"table": {"metrics": {}, "optima": {}}}
    known = [key, *(metric for one in tables.values() for metric in one["metrics"])]
    metrics = list(dict.fromkeys([key, *_chosen(shown, list(dict.fromkeys(known)))]))
    rows = []
    for place, one in tables.items():
        spreads, optima = one["metrics"], one["optima"]
        if place in ("table", next(iter(tables))):
            spreads = {**spreads, key: section["objective"]}
            optima = {**optima, key: section.get("optimum", {}).get("value")}
        of = "" if place == "table" else f" on {place}"
        runs, name = table.TableCell(section["runs"]), f"{done.algorithm.name}{of}"
        shown_spreads = [spreads.get(metric, {}) for metric in metrics]
        means = [table.TableCell(entry.get("mean"), interval(entry)) for entry in shown_spreads]
        rows.append([runs, table.TableCell(name), *means])
        deviations = [table.TableCell(entry.get("std")) for entry in shown_spreads]
        rows.append([runs, table.TableCell(f"{name}: spread"), *deviations])
        bests = [optima.get(metric) for metric in metrics]
        if any(value is not None for value in bests):
            words = table.TableCell(f"best there is{of}")
            rows.append([table.TableCell(None), words, *map(table.TableCell, bests)])
    headings = [table.Heading("runs", True), table.Heading("search", False)]
    headings += [table.Heading(metric, True, words=metric_name.heading(metric)) for metric in metrics]
    return table.Table(headings, rows)


def _chosen(text: str | None, known: list[str]) -> list[str]:
    try:
        return known if text is None else expr.select(known, text)
    except RbError as wrong:
        raise UsageError(f"--metric: {wrong}") from None
