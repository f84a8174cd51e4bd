"""rb-search: search algorithms over a table of results, or live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from rbtools.cli import shared
from rbtools.cli.sink import direction_option, form_option, where_option
from rbtools.errors import UsageError
from rbtools.search import SEARCHES


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search, as typed."""

    objective: tuple[str, ...]
    lower: bool | None
    budget: int
    runs: int | None
    charge_repeats: bool
    table: tuple[str, ...]
    report_table: tuple[str, ...]
    where: str | None
    share: bool
    live: str | None
    measure: str | None
    time_limit: float | None
    channels: int | None
    cells: int | None
    each: bool
    form: str | None
    shown: str | None


_options = shared.bundle(
    "asked",
    SearchOptions,
    click.option(
        "--objective",
        multiple=True,
        metavar="EXPR[:lower|higher]",
        help="What to find the best of: a metric, or an expression such as 'mean(fgsm.*, pgd20.*)'; several"
        " with commas.",
    ),
    direction_option,
    click.option("--budget", default=150, type=click.IntRange(1), help="Queries of a run."),
    click.option(
        "--runs",
        default=None,
        type=click.IntRange(1),
        help="Independent repetitions.  [default: 100 in a table, 1 live]",
    ),
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
    where_option,
    click.option(
        "--share/--no-share",
        default=True,
        help="Isomorphic architectures share a result, and are one architecture.",
    ),
    click.option(
        "--live",
        default=None,
        metavar="COMMAND",
        help="Find out what an architecture is worth by this pipe: 'rb-train ... | rb-attack ...'.",
    ),
    click.option(
        "--measure",
        default=None,
        metavar="METRIC",
        help="Search without training, by what rb-measure says of fresh networks: ntk.robust.fro.pgd.8,"
        " naswot ...; --objective is then this metric.",
    ),
    click.option(
        "--time-limit",
        default=None,
        type=click.FloatRange(0, min_open=True),
        help="Seconds that the pipe of --live may take for an architecture.",
    ),
    click.option(
        "--channels", default=None, type=click.IntRange(1), help="Live: width of the networks.  [default: 16]"
    ),
    click.option(
        "--cells", default=None, type=click.IntRange(1), help="Live: cells of a stage.  [default: 5]"
    ),
    click.option("--each", is_flag=True, help="Write what each run found, not what all have in common."),
    click.option(
        "--metric",
        "--metrics",
        "shown",
        default=None,
        metavar="LIST",
        help="Columns of the table: names and globs.",
    ),
    form_option,
)


@shared.command(choose=SEARCHES)
@_options
@shared.sink_options
@shared.seeking_options
def main(
    search: str, params: dict[str, Any], asked: SearchOptions, source: shared.RecordSource, work: Any
) -> int:
    """Search a table of results, or live, for the best architecture.

    Every run asks for architectures until its budget is spent. What comes out is the record of the best
    architecture found, with "search": mean, spread and 95 % interval over the runs of every metric at what
    each run found, the incumbent after each query, and the gap to the best there is. With several objectives
    it is the Pareto front, a record for each point.

    With --live nothing is looked up: each new architecture goes through the given pipe, --jobs of it at once,
    and what it has done before is found in the store. Only a command line given here is run so. With
    --measure fresh networks are measured on --dataset, and what was found is looked up in --table.

    darts, advrush and nasi ask for no values: they make a cell out of a supernet on --dataset, and that is
    looked up in --table and --report-table. Each of --runs has the next seed.

    \b
    Examples:
      rb-search random --objective pgd20.8 --budget 150 --runs 100 --table results.jsonl
      rb-search local --objective 'mean(fgsm.*, pgd20.*)' --format table results.jsonl
      rb-search bananas --objective acc --runs 10 --report-table results.jsonl results.jsonl
      rb-search nsga2 --objective pgd20.8,params:lower --table results.jsonl
      rb-search random --measure naswot --budget 2 --cells 1 --table results.jsonl
      rb-search nasi --steps 2 --cells 1 --channels 4 --table results.jsonl
    """
    from rbtools.cli import search_command

    if source.in_place:
        raise UsageError("--in-place would lose what a search leaves out. Write to another file.")
    algorithm = shared.build(SEARCHES, search, params)
    with shared.opened_output(source, work.screen) as output:
        work.run.check_cancelled = output.poll
        seeker = search_command.SearchCommand(algorithm, asked, source, work, output)
        if getattr(algorithm, "supernet", False):
            return seeker.by_supernet()
        if asked.measure is not None:
            return seeker.measured()
        return seeker.live() if asked.live is not None else seeker.in_a_table()


if __name__ == "__main__":
    main()
