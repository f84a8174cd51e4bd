"""The run of rb-search: values from a table or from new evaluations, the search, and its output."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from rbtools import parse_units, registry
from rbtools.cli import calls, shared
from rbtools.cli.output import RecordWriter
from rbtools.cli.sink import RecordReader, compiled, form_param, where_param
from rbtools.cli.source import where as place_of
from rbtools.errors import RbError, UsageError, unknown
from rbtools.measures import MEASURES
from rbtools.records import expr, metric_name
from rbtools.registry import param
from rbtools.search.search_report import print_result, print_summary, write

if TYPE_CHECKING:
    from rbtools.execution.run import Run
    from rbtools.jobs.measurement import MeasureJob
    from rbtools.search.driver import Algorithm, Rules
    from rbtools.search.objective import SearchObjective
    from rbtools.search.outcome import Searched
    from rbtools.search.result_table import ResultTable
    from rbtools.search.sources import Work
    from rbtools.spaces.nasbench201 import NASBench201


Record = dict[str, Any]
ATTACK, EPS, STEPS = "pgd", "8", 10  # defaults for a measure whose name leaves them out


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The options of a search, as typed."""

    objective: tuple[str, ...] = param(
        (),
        "What to optimise: a metric, or an expression such as 'mean(fgsm.*, pgd20.*)'; several with commas.",
        metavar="EXPR[:lower|higher]",
    )
    budget: int = param(150, "Queries of a run.", bounds="[1, inf)")
    runs: int | None = param(
        None, "Independent repetitions.  [default: 100 in a table, 1 live]", bounds="[1, inf)"
    )
    charge_repeats: bool = param(
        False,
        "Charge repeated queries of an architecture.  [default: they are free]",
        flags=("--charge-repeats",),
    )
    table: tuple[str, ...] = param((), "Records to search in, like FILE.", metavar="FILE")
    report_table: tuple[str, ...] = param(
        (), "Also look the findings up in these records, such as those of another data set.", metavar="FILE"
    )
    where: str | None = where_param()
    share: bool = param(True, "Treat isomorphic architectures as one, with one result.")
    live: str | None = param(
        None, "Evaluate architectures with this pipe: 'rb-train ... | rb-attack ...'.", metavar="COMMAND"
    )
    measure: str | None = param(
        None,
        "Search without training, by a measure of freshly initialised networks: ntk.robust.fro.pgd.8, naswot"
        " ...; --objective is then this metric.",
        metavar="METRIC",
    )
    time_limit: float | None = param(
        None, "Seconds that the pipe of --live may take for an architecture.", bounds="(0, inf)"
    )
    channels: int | None = param(None, "Live: width of the networks.  [default: 16]", bounds="[1, inf)")
    cells: int | None = param(None, "Live: cells of a stage.  [default: 5]", bounds="[1, inf)")
    each: bool = param(False, "Write the result of each run, not a summary of all.", flags=("--each",))
    shown: str | None = param(
        None, "Columns of the table: names and globs.", metavar="LIST", flags=("--metric", "--metrics")
    )
    form: str | None = form_param()


class TableReader(RecordReader):
    """Reads records into a table of results."""

    def tell(self) -> None:
        """Report records that were left out."""
        if not self.came:
            self.screen.say("no records came in.")
        elif not self.good:
            self.screen.say(f"none of {self.came} records can be searched.")
        self.say_left_out()


class Condition:
    """`--where`; it does not hold for a record that lacks one of its names."""

    def __init__(self, text: str) -> None:
        self.expression = compiled(text, "--where")
        self.answers = 0
        self._reason: RbError | None = None

    def holds(self, record: Record) -> bool:
        try:
            result = self.expression.holds(record)
        except RbError as reason:  # the name is missing, or its value has another type
            if not isinstance(reason, expr.MissingName):
                self._reason = self._reason or reason
            return False
        self.answers += 1
        return result

    def check(self) -> None:
        """Raise UsageError where the condition fits no record."""
        if self._reason is not None and not self.answers:
            raise UsageError(f"--where: {self._reason}")


class SearchCommand:
    """One call of rb-search."""

    def __init__(
        self,
        algorithm: Algorithm,
        options: SearchOptions,
        source: shared.RecordSource,
        work: shared.CommandContext,
        output: RecordWriter,
    ) -> None:
        self.algorithm, self.options, self.output = algorithm, options, output
        self.source, self.run, self.screen = source, work.run, work.screen
        self.status = shared.DONE

    def in_a_table(self) -> int:
        """Search in the input records."""
        from rbtools.search import outcome, parallel_runs
        from rbtools.search.sources import TableSource

        wanted = self._objectives(self.options.objective)
        if self.options.time_limit is not None:
            raise UsageError("--time-limit is for the pipe of --live, and there is none.")
        files = (*self.source.files, *self.options.table)
        table, reading = self._read(files, wanted, may_be_empty=False)
        if not table.results:
            reading.tell()
            return self.status
        tables = {"table": table, **self._report_tables()}
        source, seed, rules = TableSource(table), self.run.settings.seed, self._rules()
        work = parallel_runs.ParallelRuns(
            self.algorithm, source.field, source.known, rules, seed, len(wanted)
        )
        traces = parallel_runs.search(work, self.options.runs or 100, self._with_jobs())
        reading.tell()
        return self._finish(
            outcome.Searched(self.algorithm, wanted, rules, seed, source, traces, source.known, tables)
        )

    def live(self, pipe: str) -> int:
        """Search by the pipe of --live."""
        from rbtools.search.live import LivePipe

        wanted = self._objectives(self.options.objective)
        return self._found_out(wanted, LivePipe(pipe, self.run, self.options.time_limit))

    def measured(self, metric: str) -> int:
        """Search by the measure of --measure, on freshly initialised networks."""
        from rbtools.execution.engine import Job, engine_for

        if self.options.live is not None or self.options.time_limit is not None:
            raise UsageError("Both --measure and --live say how to evaluate. Give one of them.")
        wanted = self._objectives(self.options.objective or (metric,))
        job = request_of(metric, self.screen.warn)
        with engine_for([job], self.run) as engine:  # its workers run for the whole search

            def measure(records: list[Record]) -> list[Record]:
                results = records.copy()
                for place, report in engine.map(Job(job, record) for record in records):
                    error = {"tool": "rb-search", "message": report.problem or "unknown"}
                    results[place] = report.result or {**records[place], "error": error}
                return results

            return self._found_out(wanted, measure)

    def _found_out(self, wanted: tuple[SearchObjective, ...], evaluator: Work) -> int:
        """Search, with `evaluator` for values that are not known yet."""
        from rbtools.search import driver, outcome
        from rbtools.search.sources import Live

        if self.source.files:
            raise UsageError(
                "FILE is a table to search in, but --live or --measure evaluates. Name tables to look the"
                " findings up in with --table."
            )
        tables = {name: self._read((name,), ())[0] for name in self.options.table} | self._report_tables()
        source = Live(wanted, evaluator, self._space(), share=self.options.share)
        rules, seed = self._rules(), self.run.settings.seed
        traces = driver.search(
            self.algorithm,
            source.field,
            source,
            rules,
            seed=seed,
            runs=range(self.options.runs or 1),
            objectives=len(wanted),
        )
        for key, reason in source.failed.items():
            self.status = shared.FAILED
            self.screen.error(f"{source.field.name(key)}: {reason}")
        return self._finish(
            outcome.Searched(self.algorithm, wanted, rules, seed, source, traces, None, tables)
        )

    def _space(self) -> NASBench201:
        from rbtools.spaces import sized

        space = sized("nasbench201", channels=self.options.channels, cells=self.options.cells)
        return cast("NASBench201", space)

    def by_supernet(self) -> int:
        """Derive cells by a differentiable search, and look them up."""
        from rbtools.search import outcome
        from rbtools.search.driver import Rules, Trace
        from rbtools.search.sources import DerivedSource
        from rbtools.spaces import nasbench201
        from rbtools.trainer import supernet_search

        given = {
            "--live": self.options.live,
            "--measure": self.options.measure,
            "--time-limit": self.options.time_limit,
        }
        for option, setting in given.items():
            if setting is not None:
                raise UsageError(
                    f"rb-search {self.algorithm.name} queries no architectures: leave out {option}."
                )
        wanted = self._objectives(self.options.objective) if self.options.objective else ()
        files = (*self.source.files, *self.options.table)
        if wanted and not files:
            raise UsageError("--objective is looked up in a table. Name one with --table.")
        table = self._read(files, wanted)[0] if files else None
        tables = ({} if table is None else {"table": table}) | self._report_tables()
        space = self._space()
        source = DerivedSource(table, space)
        cells, traces = [], []
        for number in range(self.options.runs or 1):
            run = self.run.changed(seed=self.run.settings.seed + number)
            cell = supernet_search.search(self.algorithm, run, space.channels, space.cells)
            index = nasbench201.index_by_ops()[tuple(cell["ops"])]
            self.screen.say(
                f"{self.algorithm.name}, seed {run.settings.seed}: nb201-{index}"
                f" {nasbench201.strings()[index]}"
            )
            value = source([index])[index] if wanted else None
            cells.append(cell)
            traces.append(Trace(number, [(index, value)], 1, 0, "derived"))
        known = table.values() if table is not None and wanted else None
        done = outcome.Searched(
            self.algorithm, wanted, Rules(1), self.run.settings.seed, source, traces, known, tables
        )
        records = outcome.derived(done, cells)
        if wanted:
            print_result(done, records, self.screen)
        elif self.options.form not in (None, "jsonl"):
            raise UsageError(f"--format {self.options.form} needs an --objective for its main column.")
        write(done, records, self.options.form if wanted else "jsonl", self.options.shown, self.output)
        return self.status

    def _objectives(self, texts: Sequence[str]) -> tuple[SearchObjective, ...]:
        from rbtools.search.objective import asked_of

        return asked_of(self.algorithm, texts)

    def _rules(self) -> Rules:
        from rbtools.search.driver import Rules

        return Rules(self.options.budget, self.options.charge_repeats)

    def _with_jobs(self) -> Run:
        """The run; without --jobs, with a process per core if the algorithm computes much itself."""
        from rbtools.execution import cores

        call = calls.current()
        named = "jobs" in call.given or "jobs" in call.in_file
        heavy = getattr(self.algorithm, "heavy", False)
        return self.run.changed(jobs=self.run.placement.jobs if named or not heavy else cores.count())

    def _read(
        self, files: Sequence[str], wanted: Sequence[SearchObjective], *, may_be_empty: bool = True
    ) -> tuple[ResultTable, TableReader]:
        """The records of these files as a table. Raises UsageError where it cannot be searched."""
        from rbtools.search.result_table import ResultTable

        source = dataclasses.replace(
            self.source, files=tuple(files), allow_empty=may_be_empty or self.source.allow_empty
        )
        reading = TableReader(source, self.screen, self.output)
        table = ResultTable(wanted, share=self.options.share)
        condition = None if self.options.where is None else Condition(self.options.where)
        for line in reading.lines():
            assert line.record is not None
            if condition is not None and not condition.holds(line.record):
                continue
            try:
                table.add(line.record, line.text)
                reading.good += 1
            except RbError as wrong:
                reading.read, reading.bad = reading.read - 1, reading.bad + 1
                self.screen.wrong_line(f"{place_of(line)} {wrong}", "more lines cannot be searched", "")
        if condition is not None:
            condition.check()
        table.check()
        if reading.bad:
            self.status = max(self.status, shared.FAILED)
        return table, reading

    def _report_tables(self) -> dict[str, ResultTable]:
        return {name: self._read((name,), ())[0] for name in self.options.report_table}

    def _finish(self, done: Searched) -> int:
        from rbtools.search import outcome

        records = outcome.each(done) if self.options.each else outcome.summed_up(done)
        print_summary(done, self.screen)
        print_result(done, records, self.screen)
        write(done, records, self.options.form, self.options.shown, self.output)
        return self.status


def request_of(metric: str, warn: Callable[[str], object]) -> MeasureJob:
    """The request to rb-measure that gives this metric, with defaults for what the name leaves out.

    Raises UsageError for a name that begins with no measure.
    """
    from rbtools.jobs.measurement import BY_GRADIENT, MeasureJob, perturbing

    parts = metric_name.parse(metric)
    name, *words = parts.words
    if name not in MEASURES:
        raise unknown("measure", name, MEASURES, UsageError)
    attack, eps = ATTACK, EPS
    for place, word in enumerate(words):
        if word in BY_GRADIENT:
            after = [*words[place + 1 :], parts.number, parts.suffix]
            attack, eps = word, ".".join(filter(None, after)) or EPS
    params: dict[str, Any] = {}
    for field in registry.options(MEASURES.load(name)):
        named = [word for word in words if word in (field.metadata.get("choices") or ())]
        params |= {field.name: named[0]} if named else {}
    distances = parse_units.distances(f"{eps}/255", "linf", warn)  # in a name the number is unambiguous
    return MeasureJob(
        measures=(shared.build(MEASURES, name, params),),
        attacks=perturbing([attack], distances, STEPS, None),
        eps=distances,
    )
