"""Runs searches on a published table and compares the results with the papers (NAS-RobBench-201's table 2,
Jung et al.'s table 1).

The table of accuracies is converted by rb-convert, and the metrics in the table determine the paper. For any
other table of NAS-Bench-201, the searches use the table's own metrics, and no published values are shown.
Repeated queries count towards the budget, and the other settings follow NASLib, as far as the papers report
them. Our random numbers differ from those of the papers, so a value may differ by about the standard
deviation of single runs divided by the square root of the number of runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click

from rbtools.cli import python_calls
from rbtools.cli.streams import MemoryStreams
from rbtools.papers import estimates, printed
from rbtools.papers import sidebyside as side
from rbtools.plain_files import streamed

SEARCHES = {"RS": "random", "RE": "evolution", "LS": "local", "BANANAS": "bananas"}


class SearchTable(NamedTuple):
    """The search table of a paper: its columns with their metrics, the metrics that searches optimise, the
    number of queries, and the file with the printed values, which are fractions or percentages."""

    name: str
    columns: Mapping[str, str]
    objectives: Mapping[str, str]
    budget: int
    printed: str = ""
    percent: bool = False


ROBBENCH = SearchTable(
    "NAS-RobBench-201, tables 2 and 7",
    {"Clean": "acc", "FGSM3": "fgsm.3", "PGD3": "pgd20.3", "FGSM8": "fgsm.8", "PGD8": "pgd20.8"},
    {"clean": "acc", "FGSM8": "fgsm.8", "PGD8": "pgd20.8"},
    150,
    printed="nas-robbench-201-table-2",
)
JUNG = SearchTable(
    "Jung et al., table 1",
    {
        "Clean": "acc",
        "FGSM": "fgsm.1",
        "PGD": "pgd40.1",
        "APGD": "apgd-ce.1",
        "Square": "square.1",
        "CIFAR-10-C": "corrupt.mean",
    },
    {"clean": "acc", "FGSM": "fgsm.1"},
    300,
    printed="jung2023-table-1",
    percent=True,
)


def printed_values(paper: SearchTable) -> side.Values:
    if not paper.printed:
        return {}
    return printed.fractions(paper.printed) if paper.percent else printed.read(paper.printed)


def paper_of(names: Sequence[str]) -> SearchTable:
    """The paper's search table for these metrics; if there is none, a table without the paper's values."""
    for paper in (ROBBENCH, JUNG):
        if set(paper.objectives.values()) <= set(names):
            return paper
    chosen = {name: name for name in names[:6]}
    return SearchTable("no published table", chosen, dict(list(chosen.items())[:2]), 150)


def rows(
    paper: SearchTable, records: side.Records, algorithms: Sequence[str], **options: object
) -> dict[str, Any]:
    """For each row and column, the mean of the metric over the results of the searches, and the optimum.
    `options` contains further options for rb-search. Raises RbError if a search fails."""
    found: dict[str, Any] = {}
    options = {"budget": paper.budget, "charge_repeats": True, "table": records, **options}
    for label, objective in paper.objectives.items():
        for name in algorithms:
            asked = {"objective": objective, **options}
            (record,) = python_calls.call("search", [SEARCHES[name]], asked, MemoryStreams())
            section = record["search"]["looked_up"]["table"]
            found.setdefault("best there is", columns_of(paper, section["optima"]))
            means = {
                metric: estimates.WithInterval(one["mean"], *one.get("ci95", [one["mean"]] * 2))
                for metric, one in section["metrics"].items()
            }
            found[f"{name} on {label}"] = columns_of(paper, means)
            click.echo(f"{name} on {label}: {objective} {means[objective]:.4f}", err=True)
    return found


def columns_of(paper: SearchTable, values: Mapping[str, float]) -> dict[str, float]:
    return {column: values[metric] for column, metric in paper.columns.items() if metric in values}


def claims(paper: SearchTable, ours: Mapping[str, Mapping[str, float]]) -> list[side.Claim]:
    """The papers' claims on searches: local search is the best, and random search is the worst."""
    made = []
    for label, metric in paper.objectives.items():
        column = next(name for name, one in paper.columns.items() if one == metric)
        for better, worse in (("LS", "RE"), ("RE", "RS")):
            tests = {column: [f"{better} on {label} > {worse} on {label}"]}
            made.append(side.tested(f"on {label}, {better} finds better networks than {worse}", tests, ours))
    return made


def on_records(
    paper: SearchTable, columns: Mapping[str, str], records: side.Records, scale: str, title: str
) -> side.PaperTable:
    """The search table, computed on the records of the first data set; `columns` maps columns to metrics. At
    full scale, each search has 100 runs with the paper's budget. At other scales, each search has ten runs of
    ten queries, and BANANAS is omitted because it trains networks between queries."""
    shown = printed_values(paper)
    some = [
        record for record in side.of_first_set(records) if set(columns.values()) <= record["metrics"].keys()
    ]
    if not some:
        return side.PaperTable(title, shown, {}, list(paper.columns))
    metric = {other: columns[column] for column, other in paper.columns.items()}
    objectives = {name: metric[other] for name, other in paper.objectives.items()}
    paper = paper._replace(columns=columns, objectives=objectives)
    algorithms = [name for name in SEARCHES if f"{name} on clean" in shown]
    runs = 100
    if scale != "full":
        paper, runs = paper._replace(budget=min(10, len(some))), 10
        algorithms = [name for name in algorithms if name != "BANANAS"]
    return side.PaperTable(title, shown, rows(paper, some, algorithms, runs=runs), list(paper.columns))


def report(table: str, runs: str = "100", where: str | None = None) -> str:
    """Search the records of a file or of standard input ("-"), and compare the results with the paper."""
    with sys.stdin.buffer if table == "-" else streamed(table) as stream:
        records = list(side.each(stream))
    paper = paper_of(list(dict.fromkeys(name for record in records for name in record.get("metrics", {}))))
    ours = rows(paper, records, list(SEARCHES), runs=runs, where=where)
    shown = side.PaperTable(paper.name, printed_values(paper), ours, list(paper.columns))
    return shown.text() + side.told(claims(paper, ours))
