"""rb-search: search algorithms over a table of results, or live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rbtools.cli import shared
from rbtools.cli.sink import direction_option, form_option, where_option
from rbtools.errors import UsageError
from rbtools.registry import param
from rbtools.search import SEARCHES


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The options of a search, as typed."""

    objective: tuple[str, ...] = param(
        (),
        "What to find the best of: a metric, or an expression such as 'mean(fgsm.*, pgd20.*)'; several"
        " with commas.",
        metavar="EXPR[:lower|higher]",
    )
    lower: bool | None
    budget: int = param(150, "Queries of a run.", bounds="[1, inf)")
    runs: int | None = param(
        None, "Independent repetitions.  [default: 100 in a table, 1 live]", bounds="[1, inf)"
    )
    charge_repeats: bool = param(
        False,
        "Charge a query of an architecture that the run knows already.  [default: it is free]",
        flags=("--charge-repeats",),
    )
    table: tuple[str, ...] = param((), "Records to search in; as good as FILE.", metavar="FILE")
    report_table: tuple[str, ...] = param(
        (),
        "Look what was found up in these records, too: of another data set, say.",
        metavar="FILE",
    )
    where: str | None
    share: bool = param(True, "Isomorphic architectures share a result, and are one architecture.")
    live: str | None = param(
        None,
        "Find out what an architecture is worth by this pipe: 'rb-train ... | rb-attack ...'.",
        metavar="COMMAND",
    )
    measure: str | None = param(
        None,
        "Search without training, by what rb-measure says of fresh networks: ntk.robust.fro.pgd.8,"
        " naswot ...; --objective is then this metric.",
        metavar="METRIC",
    )
    time_limit: float | None = param(
        None, "Seconds that the pipe of --live may take for an architecture.", bounds="(0, inf)"
    )
    channels: int | None = param(None, "Live: width of the networks.  [default: 16]", bounds="[1, inf)")
    cells: int | None = param(None, "Live: cells of a stage.  [default: 5]", bounds="[1, inf)")
    each: bool = param(False, "Write what each run found, not what all have in common.", flags=("--each",))
    shown: str | None = param(
        None, "Columns of the table: names and globs.", metavar="LIST", flags=("--metric", "--metrics")
    )
    form: str | None


@shared.command(choose=SEARCHES)
@shared.spec("asked", SearchOptions, lower=direction_option, where=where_option, form=form_option)
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
