"""What rb-search does: find values in a table or live, run the search, say and write what came out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from rbtools.cli import shared
from rbtools.cli.output import RecordWriter
from rbtools.cli.search_report import print_result, print_summary, write
from rbtools.cli.search_tables import TableReader, read_table
from rbtools.errors import UsageError

if TYPE_CHECKING:
    from rbtools.search.objective import Objective
    from rbtools.search.outcome import Searched
    from rbtools.search.result_table import ResultTable


class SearchCommand:
    """One call of rb-search."""

    def __init__(
        self, algorithm: Any, asked: Any, source: shared.RecordSource, work: Any, output: RecordWriter
    ) -> None:
        self.algorithm, self.asked, self.output = algorithm, asked, output
        self.source, self.run, self.screen = source, work.run, work.screen
        self.status = shared.DONE

    def in_a_table(self) -> int:
        """Search in the records that come in."""
        from rbtools.search import parallel_runs

        wanted = self._objectives(self.asked.objective)
        if self.asked.time_limit is not None:
            raise UsageError("--time-limit is for the pipe of --live, and there is none.")
        table, reading = self._read((*self.source.files, *self.asked.table), wanted)
        if not table.results:
            reading.tell()
            return self.status
        tables = {"table": table, **self._report_tables()}
        runs, run = self.asked.runs or 100, self._with_jobs()
        done = parallel_runs.in_table(self.algorithm, wanted, tables, self._rules(), runs, run)
        reading.tell()
        return self._finish(done)

    def live(self) -> int:
        """Search by the pipe of --live."""
        from rbtools.execution.shell_pipe import ShellPipe

        wanted = self._objectives(self.asked.objective)
        return self._found_out(wanted, ShellPipe(self.asked.live, self.run, self.asked.time_limit))

    def measured(self) -> int:
        """Search by the measure of --measure, on freshly initialised networks."""
        from rbtools.cli.measure_names import asked
        from rbtools.jobs import MeasureJob
        from rbtools.search.executor_evaluator import ExecutorEvaluator

        if self.asked.live is not None or self.asked.time_limit is not None:
            raise UsageError("Both --measure and --live say how to find a value. Give one of them.")
        wanted = self._objectives(self.asked.objective or (self.asked.measure,))
        work = MeasureJob(asked(self.asked.measure, self.screen.warn), self.run)
        with ExecutorEvaluator(work, self.run) as through:
            return self._found_out(wanted, through)

    def _found_out(self, wanted: tuple[Objective, ...], work: Any) -> int:
        """Search by asking `work` for what is not known yet."""
        from rbtools.search import driver, outcome
        from rbtools.search.sources import Live

        if self.source.files:
            raise UsageError(
                "FILE is searched in, and --live or --measure finds values out. Name tables to look the"
                " findings up in with --table."
            )
        tables = {name: self._read((name,), ())[0] for name in self.asked.table} | self._report_tables()
        source = Live(wanted, work, self._space(), share=self.asked.share)
        rules, seed = self._rules(), self.run.seed
        traces = driver.search(
            self.algorithm,
            source.field,
            source,
            rules,
            seed=seed,
            runs=range(self.asked.runs or 1),
            objectives=len(wanted),
        )
        for key, reason in source.failed.items():
            self.status = shared.FAILED
            self.screen.error(f"{source.field.name(key)}: {reason}")
        return self._finish(
            outcome.Searched(self.algorithm, wanted, rules, seed, source, traces, None, tables)
        )

    def _space(self) -> Any:
        from rbtools.spaces import sized

        return sized("nasbench201", channels=self.asked.channels, cells=self.asked.cells)

    def by_supernet(self) -> int:
        """Derive cells by a differentiable search, and look them up."""
        from rbtools.search import outcome
        from rbtools.search.driver import Rules, Trace
        from rbtools.search.sources import DerivedSource
        from rbtools.spaces import nasbench201
        from rbtools.trainer import supernet_search

        given = {
            "--live": self.asked.live,
            "--measure": self.asked.measure,
            "--time-limit": self.asked.time_limit,
        }
        for option, value in given.items():
            if value is not None:
                raise UsageError(f"rb-search {self.algorithm.name} asks for no values: leave out {option}.")
        wanted = self._objectives(self.asked.objective) if self.asked.objective else ()
        files = (*self.source.files, *self.asked.table)
        if wanted and not files:
            raise UsageError("--objective is looked up in a table. Name one with --table.")
        table = self._read(files, wanted)[0] if files else None
        tables = ({} if table is None else {"table": table}) | self._report_tables()
        space = self._space()
        found = DerivedSource(table, space)
        cells, traces = [], []
        for number in range(self.asked.runs or 1):
            run = dataclasses.replace(self.run, seed=self.run.seed + number)
            cell = supernet_search.search(self.algorithm, run, space.channels, space.cells)
            index = nasbench201.index_by_ops()[tuple(cell["ops"])]
            self.screen.say(
                f"{self.algorithm.name}, seed {run.seed}: nb201-{index} {nasbench201.strings()[index]}"
            )
            value = found([index])[index] if wanted else None
            cells.append(cell)
            traces.append(Trace(number, [(index, value)], 1, 0, "derived"))
        known = table.values() if table is not None and wanted else None
        done = outcome.Searched(self.algorithm, wanted, Rules(1), self.run.seed, found, traces, known, tables)
        records = outcome.derived(done, cells)
        if wanted:
            print_result(done, records, self.screen)
        elif self.asked.form not in (None, "jsonl"):
            raise UsageError(f"--format {self.asked.form} needs an --objective for its main column.")
        write(done, records, self.asked.form if wanted else "jsonl", self.asked.shown, self.output)
        return self.status

    def _objectives(self, texts: Sequence[str]) -> tuple[Objective, ...]:
        from rbtools.search.objective import asked_of

        return asked_of(self.algorithm, texts, self.asked.lower)

    def _rules(self) -> Any:
        from rbtools.search.driver import Rules

        return Rules(self.asked.budget, self.asked.charge_repeats)

    def _with_jobs(self) -> Any:
        """The run, with a process for each core where the algorithm calculates much and nobody said."""
        from rbtools.execution import cores

        context = click.get_current_context()
        named = context.get_parameter_source("jobs") is not click.core.ParameterSource.DEFAULT
        heavy = getattr(self.algorithm, "heavy", False)
        return dataclasses.replace(self.run, jobs=self.run.jobs if named or not heavy else cores.count())

    def _read(self, files: Sequence[str], wanted: Sequence[Objective]) -> tuple[ResultTable, TableReader]:
        reading = TableReader(dataclasses.replace(self.source, files=tuple(files)), self.screen, self.output)
        table = read_table(reading, wanted, self.asked.where, share=self.asked.share)
        self.status = max(self.status, reading.status())
        return table, reading

    def _report_tables(self) -> dict[str, ResultTable]:
        return {name: self._read((name,), ())[0] for name in self.asked.report_table}

    def _finish(self, done: Searched) -> int:
        from rbtools.search import outcome

        records = outcome.each(done) if self.asked.each else outcome.summed_up(done)
        print_summary(done, self.screen)
        print_result(done, records, self.screen)
        write(done, records, self.asked.form, self.asked.shown, self.output)
        return self.status
