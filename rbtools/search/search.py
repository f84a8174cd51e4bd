"""rb-search: search algorithms over a table of results or over live evaluations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools.cli import calls, options, shared
from rbtools.cli.output import RecordWriter
from rbtools.cli.sink import Sink, form_param, where_param
from rbtools.cli.source import has_input
from rbtools.cli.source import where as place_of
from rbtools.errors import RbError, UsageError
from rbtools.registry import param, rare_param
from rbtools.scoring.rank_order import Directions
from rbtools.search import SEARCHES, driver, outcome
from rbtools.search.driver import Algorithm, Rules, Trace
from rbtools.search.objective import SearchObjective, objectives
from rbtools.search.result_table import ResultTable
from rbtools.search.search_report import print_result, print_summary, write
from rbtools.search.sources import DerivedSource, Live, Source, Work
from rbtools.spaces import nasbench201

if TYPE_CHECKING:
    from rbtools.execution.run import Run

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SearchOptions(Directions):
    objective: tuple[str, ...] = param(
        (),
        "Objectives, separated by commas: metrics, or expressions such as 'mean(fgsm.*, pgd20.*)'.",
        metavar="LIST",
    )
    budget: int = param(150, "Number of queries in each run.", bounds="[1, inf)")
    runs: int | None = rare_param(
        None, "Number of independent runs.  [default: 100 for a table, otherwise 1]", bounds="[1, inf)"
    )
    charge_repeats: bool = param(
        False,
        "Count each query towards the budget, even if the architecture was queried before.  [default:"
        " repeats are free]",
        flags=("--charge-repeats",),
    )
    table: tuple[str, ...] = param((), "Records to search in, like the argument FILE.", metavar="FILE")
    report_table: tuple[str, ...] = param(
        (), "Also look up the results in these records, for example for another data set.", metavar="FILE"
    )
    where: str | None = where_param()
    share: bool = param(True, "Treat isomorphic architectures as the same architecture.")
    live: str | None = param(
        None, "Evaluate architectures with this pipe: 'rb-train ... | rb-attack ...'.", metavar="COMMAND"
    )
    measure: str | None = param(
        None,
        "Search without training, by a measure of freshly initialised networks, such as ntk.robust.fro.pgd.8"
        " or naswot. This option replaces --objective.",
        metavar="METRIC",
    )
    time_limit: float | None = param(
        None,
        "Time limit in seconds for each architecture that the command of --live evaluates.",
        bounds="(0, inf)",
    )
    channels: int = param(nasbench201.CHANNELS, "With --live: network width.", bounds="[1, inf)")
    cells: int = param(nasbench201.CELLS, "With --live: cells per stage.", bounds="[1, inf)")
    each: bool = param(False, "Write the result of each run instead of a summary.", flags=("--each",))
    shown: str | None = param(
        None,
        "Columns of the table, given as names or globs.",
        metavar="LIST",
        flags=("--metric", "--metrics"),
    )
    form: str | None = form_param()


@shared.command(choose=SEARCHES)
@shared.takes("options", SearchOptions)
@options.sink_options
@options.seeking_options
def main(
    search: str,
    params: dict[str, Any],
    options: SearchOptions,
    source: shared.RecordSource,
    work: shared.CommandContext,
) -> int:
    """Search a table of results, or live, for the best architecture.

    Every run queries architectures until its budget is spent. The output is the record of the best
    architecture that was found. The field "search" of this record contains, for every metric, the mean,
    standard deviation and 95 % interval over the results of all runs, the best value after each query, and
    the gap to the optimum. With several objectives the output is the Pareto front, with a record for each
    point.

    With --live each new architecture goes through the given pipe, --jobs of them at once, and earlier results
    are taken from the store. The pipe can only be given on the command line. With --measure, freshly
    initialised networks are measured on --dataset, and the results are looked up in --table. With --live,
    --measure or --table, only the architectures on standard input are searched, if there are any.

    darts, advrush and nasi do not query architectures: they derive a cell from a supernet on --dataset, and
    look up its results in --table and --report-table. Each run uses the next seed.

    \b
    Examples:
      rb-search random --objective pgd20.8 --budget 150 --runs 100 --table results.jsonl
      rb-search local --objective 'mean(fgsm.*, pgd20.*)' --format table results.jsonl
      rb-search bananas --objective acc --runs 10 --report-table results.jsonl results.jsonl
      rb-search nsga2 --objective pgd20.8,params --lower params --table results.jsonl
      rb-search random --measure naswot --budget 2 --cells 1 --table results.jsonl
      rb-search nasi --steps 2 --cells 1 --channels 4 --table results.jsonl
    """
    algorithm = shared.build(SEARCHES, search, params)
    with shared.opened_output(source, work.screen) as output:
        work = work.changed(check_cancelled=output.poll)
        return SearchCommand(algorithm, options, source, work, output)()


@dataclass
class SearchCommand:
    algorithm: Algorithm
    options: SearchOptions
    source: shared.RecordSource
    work: shared.CommandContext
    output: RecordWriter
    status: int = shared.DONE

    def __post_init__(self) -> None:
        algorithm, options = self.algorithm, self.options
        self.run, self.screen = self.work.run, self.work.screen
        self.space = nasbench201.NASBench201(channels=options.channels, cells=options.cells)
        texts = options.objective or (() if options.measure is None else (options.measure,))
        self.wanted = objectives(texts, options) if texts or not algorithm.supernet else ()
        if len(self.wanted) > 1 and not algorithm.many:
            first, second, *_ = self.wanted
            raise UsageError(
                f"rb-search {algorithm.name} takes one objective, but {len(self.wanted)} are given. Combine"
                f" them, such as 'mean({first.text}, {second.text})', or use rb-search nsga2."
            )
        seed = self.run.settings.seed
        charged = Rules(options.budget, options.charge_repeats, len(self.wanted), seed)
        self.rules = Rules(1, seed=seed) if algorithm.supernet else charged

    def __call__(self) -> int:
        options = self.options
        if self.algorithm.supernet:
            return self.derive()
        if options.measure is not None:
            if options.live is not None or options.time_limit is not None:
                raise UsageError("--measure and --live cannot be combined. Give only one of them.")
            from rbtools.search.live import measuring

            with measuring(options.measure, self.run, self.screen.warn) as work:
                return self.evaluate(work)
        if options.live is not None:
            from rbtools.search.live import LivePipe

            return self.evaluate(LivePipe(options.live, self.run, options.time_limit))
        if options.time_limit is not None:
            raise UsageError("--time-limit applies to the pipe of --live, but --live is not given.")
        return self.look_up()

    def look_up(self) -> int:
        from rbtools.search import parallel_runs

        files = (*self.source.files, *self.options.table)
        table = self._read(files, self.wanted, allow_empty=self.source.allow_empty)
        if not table.results:
            return self.status
        given = None if self.source.files or not self.options.table else self._piped()
        if given is not None:
            table.restrict(given)
        tables = {"table": table, **self._tables(self.options.report_table)}
        runs = self.options.runs or 100
        traces = parallel_runs.search(self.algorithm, table, self.rules, runs, self._with_jobs())
        return self._finish(table, traces, tables)

    def evaluate(self, work: Work) -> int:
        """Search, and use `work` to compute values that are not known yet."""
        if self.source.files:
            raise UsageError(
                "FILE is a table to search in, but --live and --measure evaluate architectures instead. To"
                " look up the results in a table, use --table."
            )
        given = self._piped()
        tables = self._tables((*self.options.table, *self.options.report_table))
        source = Live(self.wanted, work, self.space, share=self.options.share, given=given)
        numbers = range(self.options.runs or 1)
        traces = driver.search(self.algorithm, source.field, source, self.rules, numbers)
        for key, reason in source.failed.items():
            self.status = shared.FAILED
            self.screen.error(f"{source.field.name(key) if isinstance(key, int) else key}: {reason}")
        return self._finish(source, traces, tables)

    def _piped(self) -> ResultTable | None:
        """The architectures on standard input, if it is a pipe or a file with records."""
        if not has_input():
            return None
        table = self._read((), ())
        sizes = [name for name in ("channels", "cells") if name in calls.current().given]
        if table.results and sizes:
            raise UsageError(
                f"The architectures on standard input already have a size. Leave out --{sizes[0]}, or give it"
                " to rb-arch."
            )
        return table if table.results else None

    def derive(self) -> int:
        """Derive cells by a differentiable search, and look up their results."""
        from rbtools.search import supernet_search

        for option in ("live", "measure", "time_limit"):
            if getattr(self.options, option) is not None:
                flag = f"--{option.replace('_', '-')}"
                raise UsageError(
                    f"rb-search {self.algorithm.name} does not query architectures. Leave out {flag}."
                )
        files = (*self.source.files, *self.options.table)
        if self.wanted and not files:
            raise UsageError("--objective needs a table in which to look it up. Name one with --table.")
        if not self.wanted and self.options.form not in (None, "jsonl"):
            raise UsageError(f"--format {self.options.form} needs an --objective for its main column.")
        tables = {"table": self._read(files, self.wanted)} if files else {}
        tables |= self._tables(self.options.report_table)
        source = DerivedSource(tables.get("table", ResultTable()), self.space)
        cells, traces = [], []
        for number in range(self.options.runs or 1):
            run = self.run.changed(seed=self.rules.seed + number)
            cell = supernet_search.search(self.algorithm, run, self.space.channels, self.space.cells)
            index = nasbench201.index_by_ops()[tuple(cell["ops"])]
            self.screen.say(
                f"{self.algorithm.name}, seed {run.settings.seed}: nb201-{index}"
                f" {nasbench201.strings()[index]}"
            )
            cells.append(cell)
            traces.append(Trace(number, [(index, source.value(index))], 1, 0, "derived"))
        return self._finish(source, traces, tables, cells)

    def _with_jobs(self) -> Run:
        """The run, with one process per core for an expensive algorithm without --jobs."""
        from rbtools.execution import resources

        call = calls.current()
        named = "jobs" in call.given or "jobs" in call.in_file
        alone = named or not self.algorithm.heavy
        return self.run if alone else self.run.changed(jobs=resources.cores())

    def _tables(self, files: Sequence[str]) -> dict[str, ResultTable]:
        return {name: self._read((name,), ()) for name in files}

    def _read(
        self, files: Sequence[str], wanted: Sequence[SearchObjective], *, allow_empty: bool = True
    ) -> ResultTable:
        """Returns the records in these files as a table. Raises UsageError if it cannot be searched."""
        source = dataclasses.replace(self.source, files=tuple(files), allow_empty=allow_empty)
        reading = Sink(source, self.screen, self.output, self.options.where)
        table = ResultTable(wanted, share=self.options.share)
        for line in reading.every_line():
            if line.record is None or not reading.holds(line.record):
                continue
            try:
                table.add(line.record, line.text)
            except RbError as wrong:
                reading.read, reading.bad = reading.read - 1, reading.bad + 1
                self.screen.wrong_line(f"{place_of(line)} {wrong}", "more lines cannot be searched", "")
        reading.check()
        table.check()
        reading.tell()
        if reading.bad:
            self.status = shared.FAILED
        return table

    def _finish(
        self,
        source: Source,
        traces: list[Trace],
        tables: Mapping[str, ResultTable],
        cells: Sequence[Record] = (),
    ) -> int:
        done = outcome.Searched(self.algorithm, self.wanted, self.rules, source, traces, tables)
        if cells:
            records = outcome.derived(done, cells)
        else:
            print_summary(done, self.screen)
            records = outcome.each(done) if self.options.each else outcome.summed_up(done)
        if self.wanted:
            print_result(done, records, self.screen)
        form = self.options.form if self.wanted else "jsonl"
        write(done, records, form, self.options.shown, self.output)
        return self.status


if __name__ == "__main__":
    main()
