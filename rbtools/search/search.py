"""rb-search: search algorithms over a table of results, or live."""

from __future__ import annotations

from typing import Any

from rbtools.cli import options, shared
from rbtools.search import SEARCHES, search_command


@shared.command(choose=SEARCHES)
@shared.takes("options", search_command.SearchOptions)
@options.sink_options
@options.seeking_options
def main(
    search: str,
    params: dict[str, Any],
    options: search_command.SearchOptions,
    source: shared.RecordSource,
    work: shared.CommandContext,
) -> int:
    """Search a table of results, or live, for the best architecture.

    Every run queries architectures until its budget is spent. The output is the record of the best
    architecture found, with "search": for every metric the mean, spread and 95 % interval over the findings
    of all runs, the incumbent after each query, and the gap to the optimum. With several objectives it is the
    Pareto front, a record for each point.

    With --live each new architecture goes through the given pipe, --jobs of them at once, and earlier results
    are taken from the store. Only a command line can name such a pipe. With --measure, freshly initialised
    networks are measured on --dataset, and the findings are looked up in --table.

    darts, advrush and nasi query no architectures: they derive a cell from a supernet on --dataset, which is
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
    algorithm = shared.build(SEARCHES, search, params)
    with shared.opened_output(source, work.screen) as output:
        work = work.changed(check_cancelled=output.poll)
        return search_command.SearchCommand(algorithm, options, source, work, output)()


if __name__ == "__main__":
    main()
