"""The one loop of all filters: read, work, write, flush.

With `--jobs 1` a record is worked on where it is read. With more, a thread reads ahead within a
bounded window, worker processes do the work, and this process writes the results in input order (or as
they come, with `--unordered`).
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rbtools.cli.exit_status import DONE, FAILED
from rbtools.cli.output import ReaderGone, RecordWriter, Stop, Terminated
from rbtools.cli.source import RecordSource, bad_line_record, name_of, opened_output, stop_if_strict, where
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError, UsageError
from rbtools.execution.job import JobFunction, JobReport, run_job
from rbtools.records import SCHEMA, Line, can_be_retried, dumps

_POLL_SECONDS = 0.5
WINDOW_PER_JOB = 4


def filter_records(
    source: RecordSource, works: Sequence[JobFunction], screen: Terminal, *, run: Any, start: Any = None
) -> int:
    """Put every record through all `works` (one output each) and write each result.

    A record that fails goes on with an `error`; the status is then 1. `start` makes the one record to
    work on in place of a stream (`--checkpoint`).
    """
    with opened_output(source, screen) as output:
        loop = _Loop(source, works, screen, output, run)
        run.check_cancelled = output.poll
        if start is not None:
            loop.made(start)
        elif run.jobs > 1 or run.engine == "ray":
            _with_workers(loop)
        else:
            for line in source.lines(screen, output):
                loop.line(line)
        screen.clear()
        if run.plan is not None and loop.done + loop.pending:
            for words in run.plan.words(loop.done + loop.pending, loop.done, loop.pending):
                screen.say(words)
        else:
            screen.say(loop.summary())
        screen.detail(loop.times())
        return FAILED if loop.failed else DONE


class _Loop:
    """The counters of one run of the loop, and what happens to one line."""

    def __init__(
        self,
        source: RecordSource,
        works: Sequence[JobFunction],
        screen: Terminal,
        output: RecordWriter,
        run: Any,
    ) -> None:
        self.source, self.works, self.screen, self.output, self.run = source, works, screen, output, run
        self.done = self.failed = self.passed = self.found = self.computed = self.pending = 0
        self.stages: Counter[str] = Counter()
        self.start = time.perf_counter()
        self.troubled = False

    def line(self, line: Line) -> None:
        """Work on one line at once."""
        record = self.record_of(line)
        if record is None:
            self.output.line(self.passing(line))
            return
        self.one(record, where(line))

    def one(self, record: dict[str, Any], place: str = "") -> None:
        for work in self.works:
            self.output.line(self.told(record, place, run_job(work, record, self.run)))

    def made(self, start: Callable[[], dict[str, Any]]) -> None:
        """Work on the one record that `start` makes; a file that makes none is a failed record too."""
        try:
            record = start()
        except UsageError:
            raise
        except RbError as wrong:
            self.failed += 1
            stop_if_strict(self.source.strict, str(wrong))
            self.screen.error(str(wrong))
            error = {"tool": self.screen.tool, "message": str(wrong)}
            self.output.line(dumps({"schema": SCHEMA, "error": error}))
        else:
            if self.run.engine == "ray":
                _with_workers(self, record)
            else:
                self.one(record)

    def record_of(self, line: Line) -> dict[str, Any] | None:
        """The record to work on, or None for a line that only passes."""
        if line.record is None:
            return None
        if "error" in line.record and not (self.source.retry_errors and can_be_retried(line.record)):
            return None
        return {key: value for key, value in line.record.items() if key != "error"}

    def passing(self, line: Line) -> bytes:
        """What goes out for a line that is not worked on: a failed record, or none at all."""
        if line.record is not None:
            self.passed += 1
            return line.text
        self.failed += 1
        message = f"{where(line)} {line.problem}"
        self.screen.clear()
        stop_if_strict(self.source.strict, message)
        self.screen.wrong_line(message)
        return dumps(bad_line_record(self.screen.tool, line))

    def told(self, record: dict[str, Any], place: str, report: JobReport) -> bytes:
        """What goes out for a record that was worked on; people hear of it."""
        self.screen.clear()
        for notify in report.remarks:
            self.screen.once(notify)
        for path in report.damaged:
            again = "" if "/objects/" in path else "; what it held is computed again"
            self.screen.warn(f"{path} was damaged{again}.")
        if report.trouble and not self.troubled:
            self.troubled = True  # the next record's file would have the same trouble
            self.screen.warn(f"{report.trouble} Results go on, but are not kept.")
        if report.trace:
            sys.stderr.write(report.trace)
        self._time(record, report)
        if report.result is None:
            return self._failed(record, place, report.problem or "unknown")
        result = report.result
        if report.pending and self.screen.tool == "rb-train":
            result = _untrained(result)
        try:
            text = dumps(result)
        except ValueError as wrong:  # of numbers in the record that no measurement gives, such as 1e308
            return self._failed(record, place, f"The result cannot be written: {wrong}.")
        if report.pending:
            self.pending += 1
            return text
        self.done += 1
        whole = bool(report.found) and not report.computed  # of several results some may have been there
        self.found, self.computed = self.found + whole, self.computed + (not whole)
        self._say(record, result)
        return text

    def _time(self, record: dict[str, Any], report: JobReport) -> None:
        """What became of a record and where its time went: for `-v`, and as an event."""
        stages = {name: round(seconds, 3) for name, seconds in report.stages.items()}
        self.stages.update(report.stages)
        rest = report.seconds - sum(report.stages.values())
        words = [f"{name} {seconds:.2f} s" for name, seconds in {**stages, "rest": max(rest, 0)}.items()]
        self.screen.detail(f"{name_of(record)}: {report.seconds:.2f} s: {', '.join(words)}.")
        outcome = "failed" if report.result is None else "pending" if report.pending else "done"
        known = record.get("metrics", {})
        new = {} if report.result is None else report.result.get("metrics", {})
        event: dict[str, Any] = {"event": "record", "name": name_of(record), "outcome": outcome}
        event |= {"found": report.found, "computed": report.computed, "seconds": round(report.seconds, 3)}
        event |= {"stages": stages, "metrics": {k: v for k, v in new.items() if known.get(k) != v}}
        self.screen.tell(event, report.result)

    def times(self) -> str:
        """Where the time went, over all records."""
        total = time.perf_counter() - self.start
        words = [f"{name} {seconds:.2f} s" for name, seconds in self.stages.most_common()]
        return f"{total:.2f} s in all" + (f": {', '.join(words)}." if words else ".")

    def _failed(self, record: dict[str, Any], place: str, message: str) -> bytes:
        self.failed += 1
        at = f"{place} ({name_of(record)})" if place else name_of(record)
        stop_if_strict(self.source.strict, f"{at}: {message}")
        self.screen.error(f"{at}: {message}")
        return dumps({**record, "error": {"tool": self.screen.tool, "message": message}})

    def _say(self, record: dict[str, Any], result: dict[str, Any]) -> None:
        """The result in one line for people, where standard error is a terminal."""
        if not self.screen.terminal:
            return
        known = record.get("evals", [])
        new = [entry for entry in result.get("evals", []) if entry not in known]
        if new:
            self.screen.say(f"{name_of(result)}  " + "  ".join(map(_in_words, new)))

    def summary(self) -> str:
        total = self.done + self.failed + self.passed
        if not total:
            return "no records came in."
        parts = [f"{self.computed} computed, {self.found} found in the store"]
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{self.passed} passed on with their error"] if self.passed else []
        return f"{total} record{'s' * (total != 1)}: {', '.join(parts)}."


def _untrained(record: dict[str, Any]) -> dict[str, Any]:
    """A record that a dry run leaves without the weights that it would get."""
    return {key: value for key, value in record.items() if key not in ("checkpoint", "checkpoint_file")}


def _in_words(entry: dict[str, Any]) -> str:
    if entry["value"] is None:
        return f"{entry['metric']}: none ({entry.get('reason', 'no reason given')})"
    text = f"{entry['metric']} {entry['value']:.4f}"
    if "ci95" in entry:
        text += f" [{entry['ci95'][0]:.4f}, {entry['ci95'][1]:.4f}]"
    return text + (f" n={entry['n']}" if "n" in entry else "")


class _Window:
    """Lines on their way: read ahead only so far, written in order or as they finish."""

    def __init__(self, output: RecordWriter, size: int, ordered: bool) -> None:
        self.output, self.ordered = output, ordered
        self.room = threading.Semaphore(size)
        self.waiting: dict[int, tuple[dict[str, Any], str]] = {}
        self.held: dict[int, Callable[[], bytes]] = {}
        self.last: set[int] = set()
        self.given = self.next = 0
        self.writing = False

    def places(self, count: int) -> range:
        """Places in the output for all that comes of one line."""
        places = range(self.given, self.given + count)
        self.given += count
        self.last.add(places[-1])
        return places

    def finish(self, place: int, text: Callable[[], bytes]) -> None:
        """What stands at a place is known; `text` makes it when its turn comes, and tells people."""
        self.held[place] = text
        while self.held and (not self.ordered or self.next in self.held):
            number = self.next if self.ordered else next(iter(self.held))
            self._write(number)
            self.next += 1
            if number in self.last:  # a line makes room when its last output is written
                self.last.remove(number)
                self.room.release()

    def flush(self) -> None:
        """Write all that is finished, in order, though what comes before it is not and never will be."""
        if not self.writing:  # else a line was cut in the middle, and nothing may follow that
            for number in sorted(self.held):
                self._write(number)

    def _write(self, number: int) -> None:
        text = self.held.pop(number)()
        self.writing = True
        self.output.line(text)
        self.writing = False


def _with_workers(loop: _Loop, only: dict[str, Any] | None = None) -> None:
    """Let worker processes do the work; this one reads, writes and says what happens.

    With `only`, that record is all there is, and nothing is read.
    """
    from rbtools.execution import local

    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with _pool(loop, events) as pool:
        window = _Window(loop.output, WINDOW_PER_JOB * pool.size, not loop.run.unordered)
        reading = only is None
        if only is None:
            threading.Thread(target=_read, args=(loop, window.room, events), daemon=True).start()
        else:
            _submit(loop, only, "", window, pool)
        try:
            while reading or window.waiting:
                event = _next(events, loop.output)
                if isinstance(event, local.Finished):
                    _finish(loop, window, event)
                elif isinstance(event, local.Notice):
                    (loop.screen.warn if event.warning else loop.screen.status)(event.text)
                elif isinstance(event, dict):
                    loop.screen.tell(event)
                elif isinstance(event, _Read):
                    _take_in(loop, event.line, window, pool)
                elif isinstance(event, BaseException):
                    raise event
                else:
                    reading = False
        except (KeyboardInterrupt, Terminated):
            _write_what_is_finished(loop, window, events)
            raise


def _next(events: queue.SimpleQueue[Any], output: RecordWriter) -> Any:
    """The next event. However busy the workers are, it is noticed soon that the reader has gone."""
    while True:
        output.poll()
        with contextlib.suppress(queue.Empty):
            return events.get(timeout=_POLL_SECONDS)


def _finish(loop: _Loop, window: _Window, event: Any) -> None:
    record, at = window.waiting.pop(event.place)
    window.finish(event.place, lambda: loop.told(record, at, event.report))


def _write_what_is_finished(loop: _Loop, window: _Window, events: queue.SimpleQueue[Any]) -> None:
    """At an end before the end: what waited for its turn is finished too."""
    with contextlib.suppress(queue.Empty, Stop, ReaderGone):
        window.flush()
        while not window.writing:
            event = events.get_nowait()
            if hasattr(event, "report"):
                _finish(loop, window, event)
                window.flush()


def _pool(loop: _Loop, events: queue.SimpleQueue[Any]) -> Any:
    """The workers that `--engine` names."""
    if loop.run.engine == "ray":
        from rbtools.execution.ray import pool as ray_pool

        return ray_pool.RayExecutor(loop.works, loop.run, events)
    from rbtools.execution import local

    return local.LocalExecutor(loop.works, loop.run, events)


class _Read:
    """A line that the reading thread has read."""

    def __init__(self, line: Line) -> None:
        self.line = line


def _read(loop: _Loop, room: threading.Semaphore, events: queue.SimpleQueue[Any]) -> None:
    """Read lines while there is room for them; then None, or what went wrong."""
    try:
        for line in loop.source.lines(loop.screen, loop.output):
            room.acquire()
            events.put(_Read(line))
        events.put(None)
    except BaseException as error:
        events.put(error)


def _take_in(loop: _Loop, line: Line, window: _Window, pool: Any) -> None:
    record = loop.record_of(line)
    if record is None:
        window.finish(window.places(1)[0], lambda: loop.passing(line))
    else:
        _submit(loop, record, where(line), window, pool)


def _submit(loop: _Loop, record: dict[str, Any], at: str, window: _Window, pool: Any) -> None:
    from rbtools.execution.local import Job

    for number, place in enumerate(window.places(len(loop.works))):
        window.waiting[place] = (record, at)
        pool.submit(Job(place, number, record))
