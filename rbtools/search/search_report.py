"""The output of rb-search: a summary for people, a table, or records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rbtools.cli import tables
from rbtools.cli.output import RecordWriter
from rbtools.cli.sink import counted
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError, UsageError
from rbtools.records import dumps, expr
from rbtools.scoring import metric_words, table

if TYPE_CHECKING:
    from rbtools.search.outcome import Searched

Record = dict[str, Any]


def print_summary(done: Searched, screen: Terminal) -> None:
    """Report what was searched, what is missing or averaged, and a budget beyond the table."""
    searched = done.tables.get("table")
    field = done.field
    wanted = [f"{one.text} ({one.direction} is better)" for one in done.objectives]
    if done.known is None:
        new = len({field.key(index) for trace in done.traces for index, _ in trace.log})
        screen.say(f"{new} of {field.size} architectures were evaluated for {' and '.join(wanted)}.")
    else:
        have = "has" if field.size == 1 else "have"
        screen.say(f"{counted(field.size, 'architecture')} {have} {' and '.join(wanted)}.")
    if searched is None or done.known is None:
        return
    if field.size < field.of_space:
        screen.say(
            f"{field.of_space - field.size} of {field.of_space} architectures of the space are missing; the"
            " search goes on over those there."
        )
    if searched.lacking:
        screen.say(f"{searched.lacking} values of the objective are missing in the records.")
    several = searched.duplicates()
    if several.architectures:
        seeds = f", seeds {', '.join(map(str, several.seeds[:8]))}" if several.seeds else ""
        screen.say(
            f"{counted(several.architectures, 'architecture')} with several records ({several.records} in"
            f" all{seeds}): each metric is their mean."
        )
    if done.rules.budget > field.size:
        then = "repeats make up the rest" if done.rules.charge_repeats else "a run ends when it has seen all"
        screen.say(
            f"the budget of {done.rules.budget} queries is larger than the"
            f" {counted(field.size, 'architecture')}: {then}."
        )


def print_result(done: Searched, records: list[Record], screen: Terminal) -> None:
    """Report the result in one line."""
    section = records[0]["search"] if records else {}
    if "objective" in section:
        text = _in_words(section["objective"])
        if "gap" in section:
            best, gap = section["optimum"], section["gap"]
            named = f" ({best['name']})" if best.get("name") else ""
            text += (
                f"; the best there is, {table.figure(best['value'])}{named}, was found by {gap['reached']} of"
                f" {gap['n']} runs, the mean gap is {table.figure(gap['mean'])}"
            )
        text = f"{done.objectives[0].text} {text}"
    elif "hypervolume" in section:
        share = section["hypervolume"]
        text = f"{counted(len(records), 'architecture')} on the front of all runs;"
        text += f" a run covers {_in_words(share)} of"
        text += " the hypervolume there is" if share["of"] == "table" else " the hypervolume that was met"
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
    """Write the records, or a table of them."""
    form = form or ("table" if output.is_terminal() else "jsonl")
    if form == "jsonl":
        for record in records:
            output.line(dumps(record))
        return
    if not records:
        return
    built, key = as_table(done, records, shown)
    tables.write(built, key, form, output)


def as_table(done: Searched, records: list[Record], shown: str | None) -> tuple[table.Table, str]:
    """The table of the findings, and the title of its main column."""
    key = done.objectives[0].text
    if "objective" in records[0]["search"]:
        return _summary(done, records[0]["search"], shown), key
    from rbtools.records import metric_name
    from rbtools.scoring import rank_order

    records = [{**one, "metrics": {**one["search"]["values"], **one.get("metrics", {})}} for one in records]
    higher = done.objectives[0].higher
    ranked = rank_order.rank(records, lambda record: record["search"]["values"][key], higher=higher)
    chosen = None if shown is None else _chosen(shown, metric_name.names(records))
    return table.build(ranked, key, metrics=chosen), key


def _summary(done: Searched, section: Record, shown: str | None) -> table.Table:
    """Mean (with its interval), spread and optimum of the objective and of every metric, table by table."""
    key, name = done.objectives[0].text, done.algorithm.name
    known = [metric for one in section["looked_up"].values() for metric in one["metrics"]]
    others = [metric for metric in dict.fromkeys(known) if metric != key]
    if shown is not None:
        others = [metric for metric in _chosen(shown, [key, *others]) if metric != key]
    rows = []
    tables = section["looked_up"] or {"table": {"metrics": {}, "optima": {}}}
    for place, one in tables.items():
        own = section["objective"] if place in ("table", next(iter(tables))) else one["metrics"].get(key)
        searched = own is section["objective"]
        best = section.get("optimum", {}).get("value") if searched else one["optima"].get(key)
        of = "" if place == "table" else f" on {place}"
        entries = [own, *(one["metrics"].get(metric) for metric in others)]
        runs = table.TableCell(section["runs"])
        rows.append([runs, table.TableCell(f"{name}{of}"), *map(_mean, entries)])
        spreads = [table.TableCell(entry and entry.get("std")) for entry in entries]
        rows.append([runs, table.TableCell(f"{name}{of}: spread"), *spreads])
        optima = [best, *(one["optima"].get(metric) for metric in others)]
        if any(value is not None for value in optima):
            rows.append(
                [table.TableCell(None), table.TableCell(f"best there is{of}"), *map(table.TableCell, optima)]
            )
    headings = [table.Heading("runs", True), table.Heading("search", False)]
    headings += [table.Heading(title, True, words=metric_words.heading(title)) for title in (key, *others)]
    return table.Table(headings, rows)


def _mean(values: Record | None) -> table.TableCell:
    if values is None:
        return table.TableCell(None)
    return table.TableCell(values["mean"], tuple(values["ci95"]) if "ci95" in values else None)


def _chosen(text: str, known: list[str]) -> list[str]:
    try:
        return expr.select(known, text)
    except RbError as wrong:
        raise UsageError(f"--metric: {wrong}") from None
