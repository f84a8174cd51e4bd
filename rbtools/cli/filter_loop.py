"""The loop of all filters: read a record, run its job, write the result, flush.

With `--jobs 1`, and for the single model of `--checkpoint`, jobs run in this process; for the single model,
the engine's workers compute groups of images (tiles). In all other cases, a thread reads a bounded number of
lines ahead, the workers run whole jobs, and this process writes the results in input order (with
`--unordered`, as soon as they are finished).
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from rbtools.cli.output import DONE, FAILED, ReaderGone, RecordWriter, Stop, Terminated
from rbtools.cli.read_ahead import ReadAhead
from rbtools.cli.source import RecordSource, bad_line_record, failed_record, name_of, stop_if_strict, where
from rbtools.cli.streams import opened_output
from rbtools.cli.terminal import Terminal
from rbtools.cli.window import Window
from rbtools.errors import RbError, UsageError
from rbtools.execution import LOCAL, resources
from rbtools.execution.engine import Call, Engine, Job, JobFunction, JobReport, engine_for, run_job
from rbtools.execution.report import in_words, short_time, without_time
from rbtools.inputs.data import check_here
from rbtools.records import Line, dumps, parse_again

if TYPE_CHECKING:
    from rbtools.execution.run import Run

WINDOW_PER_JOB = 4
MANY, LONG = 100, 3600  # results, and seconds, from which on a line suggests a sample
SAMPLE = "For a first look, take a sample: rb-arch --sample 20, or head -n 20 of the records."
ELSEWHERE = "Another shard writes this record."


def filter_records(
    source: RecordSource,
    functions: Sequence[JobFunction],
    screen: Terminal,
    *,
    run: Run,
    start: Callable[[Run], dict[str, Any]] | None = None,
) -> int:
    """Run all `functions` on every record, and write each result (one output line per function).

    A record that fails is written with an `error`, and the exit status is then 1. If `start` is given
    (`--checkpoint`), it creates the only record, and no stream is read.
    """
    with contextlib.closing(run), opened_output(source, screen) as output:
        run = run.changed(check_cancelled=output.poll, warn=screen.warn)
        if start is None:
            if run.selection.dataset is not None and run.placement.engine == LOCAL:
                check_here(
                    run, dict.fromkeys(split for function in functions for split in function.reads(run))
                )
        elif source.shard is not None:
            run = _sharing_images(source, run)
        _check_device(run)
        loop = Loop(source, functions, screen, output, run)
        if output.is_terminal():
            from rbtools.cli import tables

            loop.table = source.table or (None if start is None else tables.model_table)
        record = None if start is None else loop.started(start)
        if start is None or record is not None:
            with loop.opened(record, start is not None) as (window, here):
                for place, job in () if here is None else loop.jobs(window, record):
                    future: Future[JobReport] = Future()
                    window.flying[place] = future  # an interruption writes its result
                    future.set_result(run_job(job, here))  # type: ignore[arg-type]  # no jobs without a run
                    window.finish_ready()
                    if (stop := future.result().interruption) is not None:
                        raise stop
        screen.clear()
        if not screen.verbose and (more := sum(loop.reasons.values()) - len(loop.reasons)):
            screen.error(
                f"{more} further record{'s' * (more > 1)} failed for the same reasons (-v lists all)."
            )
        if run.plan is not None:
            screen.tell(run.plan.event())
        if run.plan is not None and loop.done + loop.pending:
            for words in run.plan.words(loop.done + loop.pending, loop.done, loop.pending):
                screen.say(words)
        else:
            screen.say(loop.summary())
        screen.detail(loop.times())
        return FAILED if loop.failed else DONE


def _check_device(run: Run) -> None:
    """Raise UsageError, before any record is read, if the machine lacks the device of --device."""
    kind, _, number = run.placement.device.partition(":")
    if run.placement.engine == LOCAL and kind == "cuda" and int(number or 0) >= resources.visible_gpus():
        from rbtools.execution.device import choose  # imports torch

        try:
            choose(run)
        except RbError as wrong:
            raise UsageError(str(wrong)) from None


def _sharing_images(source: RecordSource, run: Run) -> Run:
    """The run of a shard that computes a share of one model's images. Raises UsageError without a store."""
    if run.store.folder is None or run.store.force:
        raise UsageError(
            "--shard with --checkpoint divides the images of one model among processes that share a store."
            " Leave out --store none and --force."
        )
    if source.places:
        raise UsageError(
            "--placeholders marks records of other shards, but here shards divide the images of one"
            " model. Leave it out."
        )
    return run.changed(shard=source.place)


class Loop:
    def __init__(
        self,
        source: RecordSource,
        functions: Sequence[JobFunction],
        screen: Terminal,
        output: RecordWriter,
        run: Run,
    ) -> None:
        self.source, self.functions, self.screen, self.output = source, functions, screen, output
        self.run = run
        self.done = self.failed = self.passed = self.found = self.computed = self.pending = 0
        self.helped = self.elsewhere = 0
        self.told = False
        self.counted, self.counted_at = 0, 0.0
        self.stages: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()  # of failed records
        self.start = time.perf_counter()
        self.ahead: ReadAhead | None = None
        self.troubled = False
        self.table: Callable[[dict[str, Any], int], str] | None = None  # printed instead of records

    def write(self, text: bytes) -> None:
        """Write a record; on a terminal, write the table of one model's results instead."""
        if self.table is not None:
            text = self.table(parse_again(text), self.output.width()).encode()
        self.output.line(text)

    def started(self, start: Callable[[Run], dict[str, Any]]) -> dict[str, Any] | None:
        """The record that `start` creates. If `start` fails, write a failed record and return None."""
        try:
            return start(self.run)
        except UsageError:
            raise
        except RbError as wrong:
            self.failed += 1
            stop_if_strict(self.source.strict, str(wrong))
            self.screen.error(str(wrong))
            if self.source.place[0] == 1:
                self.output.line(dumps(failed_record(self.screen.tool, str(wrong))))
            return None

    @contextlib.contextmanager
    def opened(self, record: dict[str, Any] | None, single: bool) -> Iterator[tuple[Window, Run | None]]:
        """Yields the window, and the run of jobs in this process, or None if the engine's workers run the
        jobs. `single` is true if there is only one record. An interruption writes the finished lines."""
        with engine_for(self.functions, self.run, at_most=1 if single else None) as engine:
            window = Window(self, WINDOW_PER_JOB * engine.capacity)
            divided = record is not None and any(function.divided for function in self.functions)
            try:
                if engine.in_process or divided:
                    yield window, self._run_here(engine, window, record is None)
                    return
                self._process_ahead(engine, window, record)
                yield window, None
            except (KeyboardInterrupt, Terminated):
                with contextlib.suppress(Stop, ReaderGone):
                    window.flush()
                raise

    def _run_here(self, engine: Engine, window: Window, reading: bool) -> Run:
        """The run of jobs in this process."""
        progress = self.run.report.progress
        engine.run = engine.run.changed(
            progress=lambda text: progress(self._status(text, None, window, reading)),
            pool=None if engine.in_process else engine,
        )
        return engine.run

    def jobs(self, window: Window, record: dict[str, Any] | None) -> Iterator[tuple[int, Job]]:
        if record is not None:
            yield from window.jobs(record, "", helps=self.source.place[0] > 1)
            return
        for line in self._read_ahead() if self.source.reads_ahead else self._source_lines():
            yield from window.take_in(line)

    def _source_lines(self) -> Iterator[Line]:
        return self.source.lines(self.screen, self.output, results=len(self.functions))

    def _read_ahead(self, wake: Callable[[], None] = lambda: None) -> ReadAhead:
        self.ahead = ReadAhead(
            self._source_lines(),
            lambda line: len(self.functions if line.results is None else line.results),
            wake,
        )
        return self.ahead

    def _process_ahead(self, engine: Engine, window: Window, record: dict[str, Any] | None) -> None:
        """Run the jobs in the engine's workers while a thread reads the lines."""
        ahead = self._read_ahead(engine.wake) if record is None else None
        engine.status = lambda text, call: self._status(text, call, window, record is None)
        if ahead is not None:
            ahead.begin()
        else:
            for place, job in self.jobs(window, record):
                window.submit(place, job, engine)
        while (ahead is not None and ahead.left) or window.waiting:
            engine.wait()
            while ahead is not None and window.room and (line := ahead.take()) is not None:
                for place, job in window.take_in(line):
                    window.submit(place, job, engine)
            window.finish_ready()

    def _status(self, text: str, call: Call | None, window: Window, reading: bool) -> str:
        """The line `[5/24, 4 minutes left] NAME TEXT`; NAME TEXT if the number of results is unknown. The
        time is that of all results; until one is computed, and for the last one, it is the time in TEXT."""
        name = f"{name_of(call.record)} " if isinstance(call, Job) else ""
        total = self.ahead.count if self.ahead is not None and self.ahead.ended else None
        if total is None and not reading:
            total = window.given
        if total is None or total < 2:
            return name + text
        done = self.done + self.failed + self.passed + len(window.held)
        worked = self.computed + len(window.held)  # those that failed or were found took no time
        if done > self.counted:
            self.counted, self.counted_at = done, time.perf_counter()
        left = ""
        if worked and done < total - 1:
            # The record that runs has taken part of its time; if it takes longer, the others count alone.
            each, running = (self.counted_at - self.start) / worked, time.perf_counter() - self.counted_at
            seconds = max(each * (total - done) - running, each * (total - done - 1))
            left, text = f", {short_time(seconds)} left", without_time(text)
            self._say_how_long(total, seconds)
        elif not done and total >= MANY:
            self.screen.once(
                f"{total:,} results will be computed or read from the store. After the first one, a line"
                f" shows how long all of them will take. {SAMPLE}"
            )
        return f"[{min(done + 1, total)}/{total}{left}] {name}{text}"

    def _say_how_long(self, total: int, seconds: float) -> None:
        """Report once that the run takes long, even without a terminal, where status lines are rare."""
        if seconds > LONG and not self.told:
            self.told = True
            self.screen.say(f"All {total:,} results will take about {in_words(seconds)}. {SAMPLE}")

    def record_of(self, line: Line) -> dict[str, Any] | None:
        """The record to process; None if the line is written unchanged."""
        if line.record is None or self.source.passes(line.record):
            return None
        return {key: value for key, value in line.record.items() if key != "error"}

    def passing(self, line: Line) -> bytes:
        """The output for a line that is not processed: a failed record, or a line that is not a record."""
        if line.record is not None:
            self.passed += 1
            return line.text
        self.failed += 1
        message = f"{where(line)} {line.problem}"
        self.screen.clear()
        stop_if_strict(self.source.strict, message)
        if not line.continues:
            self.screen.wrong_line(message)
        return dumps(bad_line_record(self.screen.tool, line))

    def place_of_another(self) -> bytes:
        """A placeholder for a result that another shard computes. Later tools leave it unchanged."""
        self.elsewhere += 1
        return dumps(failed_record(self.screen.tool, ELSEWHERE))

    def result_line(self, record: dict[str, Any], place: str, report: JobReport) -> bytes:
        """The output line of a finished job; messages of the job are printed."""
        self.screen.clear()
        for notify in report.remarks:
            self.screen.once(notify)
        for path in report.damaged:
            again = "" if "/objects/" in path else "; its content is computed again"
            self.screen.warn(f"{path} was damaged{again}.")
        if report.trouble and not self.troubled:
            self.troubled = True  # warn once, because the next record would fail in the same way
            self.screen.warn(f"{report.trouble} Results are written to the output, but not to the store.")
        if report.trace:
            sys.stderr.write(report.trace)
        self._time(record, place, report)
        if report.result is None:
            return self._failed(record, place, report.problem or "unknown")
        result = report.result
        if report.pending and self.screen.tool == "rb-train":  # a dry run trains nothing
            result = {key: result[key] for key in result if key not in ("checkpoint", "checkpoint_file")}
        try:
            text = dumps(result)
        except ValueError as wrong:  # for numbers in the record that JSON refuses
            return self._failed(record, place, f"The result cannot be written: {wrong}.")
        if report.pending:
            self.pending += 1
            return text
        self.done += 1
        from_store = bool(report.found) and not report.computed  # otherwise new results may exist
        self.found, self.computed = self.found + from_store, self.computed + (not from_store)
        self._say(record, result)
        return text

    def _time(self, record: dict[str, Any], place: str, report: JobReport) -> None:
        """Report the time of each stage of a record, as a line (with `-v`) and as an event."""
        self.stages.update(report.stages)
        if not self.screen.wants_details:
            return
        stages = {name: round(seconds, 3) for name, seconds in report.stages.items()}
        unmeasured = report.seconds - sum(report.stages.values())
        words = [
            f"{name} {seconds:.2f} s" for name, seconds in {**stages, "rest": max(unmeasured, 0)}.items()
        ]
        self.screen.detail(f"{name_of(record)}: {report.seconds:.2f} s: {', '.join(words)}.")
        outcome = "failed" if report.result is None else "pending" if report.pending else "done"
        before = record.get("metrics", {})
        new = {} if report.result is None else report.result.get("metrics", {})
        event: dict[str, Any] = {"event": "record", "name": name_of(record), "outcome": outcome}
        event |= {"place": place} if place else {}
        event |= {"found": report.found, "computed": report.computed, "seconds": round(report.seconds, 3)}
        event |= {"stages": stages, "metrics": {k: v for k, v in new.items() if before.get(k) != v}}
        self.screen.tell(event, report.result)

    def times(self) -> str:
        total = time.perf_counter() - self.start
        words = [f"{name} {seconds:.2f} s" for name, seconds in self.stages.most_common()]
        return f"{total:.2f} s in all" + (f": {', '.join(words)}." if words else ".")

    def _failed(self, record: dict[str, Any], place: str, message: str) -> bytes:
        self.failed += 1
        at = f"{place} ({name_of(record)})" if place else name_of(record)
        stop_if_strict(self.source.strict, f"{at}: {message}")
        self.reasons[message] += 1
        if self.reasons[message] == 1 or self.screen.verbose:
            self.screen.error(f"{at}: {message}")
        else:  # often a fact of the whole run, such as a folder that is missing
            self.screen.tell({"event": "error", "text": f"{at}: {message}"})
        return dumps({**record, "error": failed_record(self.screen.tool, message)["error"]})

    def _say(self, record: dict[str, Any], result: dict[str, Any]) -> None:
        if not self.screen.terminal:
            return
        before = record.get("evals", [])
        new = [entry for entry in result.get("evals", []) if entry not in before]
        if new:
            self.screen.say(f"{name_of(result)}  " + "  ".join(map(_in_words, new)))

    def summary(self) -> str:
        total = self.done + self.failed + self.passed
        if not total:
            number, of = self.source.place
            few = f"no work for shard {number} of {of}: earlier shards have all results, fewer than {number}."
            return "no records came in." if number == 1 else few
        parts = [f"{self.computed} computed, {self.found} found in the store"]
        if self.screen.tool == "rb-verify":
            parts = [f"{self.done} judged"]
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{self.passed} passed on with their error"] if self.passed else []
        parts += [f"{self.elsewhere} left to other shards"] if self.elsewhere else []
        parts += [f"{self.helped} written by another shard"] if self.helped else []
        return f"{total} record{'s' * (total != 1)}: {', '.join(parts)}."


def _in_words(entry: dict[str, Any]) -> str:
    if entry["value"] is None:
        return f"{entry['metric']}: none ({entry.get('reason', 'no reason given')})"
    text = f"{entry['metric']} {entry['value']:.4f}"
    if "ci95" in entry:
        text += f" [{entry['ci95'][0]:.4f}, {entry['ci95'][1]:.4f}]"
    return text + (f" n={entry['n']}" if "n" in entry else "")
