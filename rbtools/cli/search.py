"""rb-search: search algorithms over a table of results, or live."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from rbtools.cli import shared
from rbtools.cli.found import FORMATS, tell, tell_result, write
from rbtools.cli.tables import Reading, read_table
from rbtools.errors import UsageError
from rbtools.search import SEARCHES

if TYPE_CHECKING:
    from rbtools.cli.output import Output


@dataclass(frozen=True)
class Asked:
    """The options of a search, as typed."""

    objective: tuple[str, ...]
    lower: bool | None
    budget: int
    runs: int
    seed: int
    charge_repeats: bool
    table: tuple[str, ...]
    report_table: tuple[str, ...]
    where: str | None
    share: bool
    each: bool
    form: str | None
    shown: str | None


_options = shared.bundle(
    "asked",
    Asked,
    click.option(
        "--objective",
        multiple=True,
        metavar="EXPR[:lower|higher]",
        help="What to find the best of: a metric, or an expression such as 'mean(fgsm.*, pgd20.*)'; several"
        " with commas.",
    ),
    click.option(
        "--lower/--higher", default=None, help="Which is better.  [default: the metric's own direction]"
    ),
    click.option("--budget", default=150, type=click.IntRange(1), help="Queries of a run."),
    click.option("--runs", default=100, type=click.IntRange(1), help="Independent repetitions."),
    click.option("--seed", default=0, type=click.IntRange(0), help="Seed of all random numbers."),
    click.option(
        "--charge-repeats",
        is_flag=True,
        help="Charge a query of an architecture that the run knows already.  [default: it is free]",
    ),
    click.option("--table", multiple=True, metavar="FILE", help="Records to search in; as good as FILE."),
    click.option(
        "--report-table",
        multiple=True,
        metavar="FILE",
        help="Look what was found up in these records, too: of another data set, say.",
    ),
    click.option("--where", default=None, metavar="EXPR", help="Only the records for which this holds."),
    click.option(
        "--share/--no-share",
        default=True,
        help="Isomorphic architectures share a result, and are one architecture.",
    ),
    click.option("--each", is_flag=True, help="Write what each run found, not what all have in common."),
    click.option(
        "--metrics", "shown", default=None, metavar="LIST", help="Columns of the table: names and globs."
    ),
    click.option(
        "--format",
        "form",
        default=None,
        type=click.Choice(FORMATS),
        help="How to write.  [default: table on a terminal, else jsonl]",
    ),
)


@shared.command(choose=SEARCHES)
@_options
@shared.stream_options
@shared.screen_options
def main(
    search: str, params: dict[str, Any], asked: Asked, source: shared.Source, screen: shared.Screen
) -> int:
    """Search a table of results for the best architecture, as a benchmark of search algorithms.

    Every run asks the table for architectures until its budget is spent. What comes out is the record of
    the best architecture found, with "search": mean, spread and 95 % interval over the runs of every metric
    at the best architecture of each run, the incumbent after each query, and the gap to the best there is.
    With several objectives it is the Pareto front, a record for each point.

    \b
    Examples:
      rb-search random --objective pgd20.8 --budget 150 --runs 100 --table results.jsonl
      rb-search local --objective 'mean(fgsm.*, pgd20.*)' --format table results.jsonl
      rb-search bananas --objective acc --runs 10 --report-table other.jsonl results.jsonl
      rb-search nsga2 --objective pgd20.8,params:lower --format table results.jsonl
    """
    if source.in_place:
        raise UsageError("--in-place would lose what a search leaves out. Write to another file.")
    source = dataclasses.replace(source, files=(*source.files, *asked.table))
    algorithm = shared.build(SEARCHES, search, params)
    with shared.opened_output(source, screen) as output:
        return _in_a_table(algorithm, asked, source, screen, output)


def _in_a_table(
    algorithm: Any, asked: Asked, source: shared.Source, screen: shared.Screen, output: Output
) -> int:
    from rbtools.search import driver, outcome
    from rbtools.search.objective import objectives
    from rbtools.search.sources import Looked

    wanted = objectives(asked.objective, asked.lower)
    if len(wanted) > 1 and not algorithm.many:
        raise UsageError(
            f"rb-search {algorithm.name} takes one objective, and there are {len(wanted)}. Make one of them,"
            f" such as 'mean({wanted[0].text}, {wanted[1].text})', or use rb-search nsga2."
        )
    reading = Reading(source, screen, output)
    table = read_table(reading, wanted, asked.where, share=asked.share)
    if not table.results:
        reading.tell()
        return reading.status()
    found = Looked(table)
    tables = {"table": table}
    for name in asked.report_table:
        of = dataclasses.replace(source, files=(name,), shard=None)
        tables[name] = read_table(Reading(of, screen, output), (), asked.where, share=asked.share)
    rules = driver.Rules(asked.budget, asked.charge_repeats)
    traces = driver.search(
        algorithm,
        found.field,
        found,
        rules,
        seed=asked.seed,
        runs=range(asked.runs),
        objectives=len(wanted),
    )
    done = outcome.Searched(algorithm, wanted, rules, asked.seed, found, traces, found.known, tables)
    records = outcome.each(done) if asked.each else outcome.summed_up(done)
    reading.tell()
    tell(done, screen)
    tell_result(done, records, screen)
    write(done, records, asked.form, asked.shown, output)
    return reading.status()


if __name__ == "__main__":
    main()
