"""The lines that a filter has read but not yet written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from rbtools.cli.source import where
from rbtools.execution.engine import Engine, Job, JobReport
from rbtools.records import Line

if TYPE_CHECKING:
    from rbtools.cli.filter_loop import Loop


class Window:
    """Lines between input and output, which are written in order or as soon as their jobs finish.

    An interruption may come at any time, so a place stays in `waiting` or `held` until it is written.
    """

    def __init__(self, loop: Loop, size: int) -> None:
        self.loop, self.ordered = loop, not loop.run.placement.unordered
        self.room = size  # number of further lines that fit
        self.waiting: dict[int, tuple[Job, str]] = {}  # by place: jobs and the places of their records
        self.flying: dict[int, Future[JobReport]] = {}  # by place: jobs that workers run
        self.held: dict[int, Callable[[], bytes]] = {}  # by place: functions that make the output line
        self.last: set[int] = set()  # the last place of each line
        self.helps: set[int] = set()  # places whose results another shard writes
        self.given = self.next = 0
        self.writing = False

    def take_in(self, line: Line) -> Iterator[tuple[int, Job]]:
        """The jobs for one line. A line without jobs is written in its turn (see `finish`)."""
        self.room -= 1
        record = self.loop.record_of(line)
        if record is not None:
            yield from self.jobs(record, where(line), results=line.results)
            return
        if line.results is not None and 0 not in line.results:  # the shard of the first result passes it on
            if self.loop.source.places:
                self.finish(self._places(1)[0], self.loop.place_of_another)
            else:
                self.room += 1
            return
        self.finish(self._places(1)[0], lambda: self.loop.passing(line))

    def jobs(
        self, record: dict[str, Any], at: str, *, helps: bool = False, results: tuple[int, ...] | None = None
    ) -> Iterator[tuple[int, Job]]:
        """Create one job for each function, or only for those in `results`; `at` is the record's place in
        words. If `helps` is true, another shard writes the result."""
        every = range(len(self.loop.functions))
        mine = every if results is None else results
        functions = every if self.loop.source.places else mine
        for function, place in zip(functions, self._places(len(functions)), strict=True):
            if function not in mine:
                self.finish(place, self.loop.place_of_another)
                continue
            job = Job(self.loop.functions[function], record)
            if helps:
                self.helps.add(place)
            self.waiting[place] = (job, at)
            yield place, job

    def _places(self, count: int) -> range:
        places = range(self.given, self.given + count)
        self.given += count
        self.last.add(places[-1])
        return places

    def submit(self, place: int, job: Job, engine: Engine) -> Future[JobReport]:
        self.flying[place] = future = engine.submit(job)
        future.add_done_callback(engine.wake)
        return future

    def finish_ready(self) -> None:
        for place in [place for place, future in self.flying.items() if future.done()]:
            self.finish_job(place, self.flying[place].result())
            del self.flying[place]

    def finish_job(self, place: int, report: JobReport) -> None:
        self._hold(place, report)
        self.finish(place, self.held[place])

    def _hold(self, place: int, report: JobReport) -> None:
        job, at = self.waiting[place]
        self.held[place] = lambda: self.loop.result_line(job.record, at, report)

    def finish(self, place: int, text: Callable[[], bytes]) -> None:
        """Write the line of a place, made by `text`: after all lines before it, or at once if unordered."""
        self.held[place] = text
        while self.held and (not self.ordered or self.next in self.held):
            number = self.next if self.ordered else next(iter(self.held))
            self._write(number)
            self.next += 1
            if number in self.last:  # a line is finished when its last output is written
                self.last.remove(number)
                self.room += 1

    def flush(self) -> None:
        """Write all finished lines in order, without waiting for unfinished lines before them."""
        for place, future in self.flying.items():
            if future.done() and place in self.waiting:
                self._hold(place, future.result())
        if not self.writing:  # otherwise the last line is incomplete, and nothing may follow it
            for number in sorted(self.held):
                self._write(number)

    def _write(self, number: int) -> None:
        text = self.held[number]()
        if number in self.helps:
            self.loop.helped += 1
        else:
            self.writing = True
            self.loop.write(text)
            self.writing = False
        del self.held[number]
        self.waiting.pop(number, None)
