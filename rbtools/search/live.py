"""Evaluates queried architectures with the user's pipe (`--live`) or with a measure (`--measure`)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rbtools import registry
from rbtools.cli import parse_units, shared
from rbtools.errors import UsageError, unknown
from rbtools.execution.engine import Job, engine_for
from rbtools.execution.run import Run
from rbtools.measures import MEASURES
from rbtools.records import BadLine, dumps, metric_name, parse
from rbtools.search.sources import Work

if TYPE_CHECKING:
    from rbtools.jobs.measurement import MeasureJob

Record = dict[str, Any]
ATTACK, EPS, STEPS = "pgd", "8", 10  # defaults for a measure whose name leaves them out
_POLL_SECONDS = 0.5


@dataclass
class LivePipe:
    """A command line that reads records and writes them with results in the same order.

    It runs in `run.placement.jobs` parallel processes, each of which may take at most `seconds` per record
    (None: unlimited). The processes also use the store of the run (`RB_STORE`).
    """

    command: str
    run: Run
    seconds: float | None = None

    def __call__(self, records: Sequence[Record]) -> list[Record]:
        """Returns the output for each record, in order. A record without output gets an `error`."""
        jobs = min(max(self.run.placement.jobs, 1), len(records))
        shares = [records[start::jobs] for start in range(jobs)]
        store = self.run.store.folder
        results, processes = list(records), []
        with ThreadPoolExecutor(jobs) as threads:
            try:
                for _ in shares:
                    process = subprocess.Popen(
                        ["sh", "-c", self.command],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        env=os.environ if store is None else {**os.environ, "RB_STORE": str(store)},
                        start_new_session=True,
                    )
                    processes.append(process)
                futures = [*map(threads.submit, [self._answers] * jobs, processes, shares)]
                while wait(futures, _POLL_SECONDS).not_done:
                    self.run.report.check_cancelled()
            finally:
                for process in processes:
                    _end(process)  # then the threads end too
        for start, future in enumerate(futures):
            results[start::jobs] = future.result()
        return results

    def _answers(self, process: subprocess.Popen[bytes], share: Sequence[Record]) -> list[Record]:
        limit = None if self.seconds is None else self.seconds * len(share)
        text = b"".join(dumps(record) + b"\n" for record in share)
        try:
            output, errors = process.communicate(text, limit)
            reason = f"The command ended with status {process.returncode} before it wrote this record."
        except subprocess.TimeoutExpired:
            _end(process)
            output, errors = process.communicate()
            reason = f"The command took longer than {limit:g} seconds."
        said = [line for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
        reason += f" Its last message was: {said[-1].strip()[:300]}" if said else ""
        try:
            found = [parse(line) for line in output.splitlines()]
        except BadLine as wrong:
            found, reason = [], f"The command wrote a line that {wrong}"
        names = [record["arch"].get("name") for record in share]
        if len(found) > len(share):
            found = []
            reason = "The command wrote several records for one input. Choose one method, attack and seed."
        elif [record.get("arch", {}).get("name") for record in found] != names[: len(found)]:
            found, reason = [], "The command wrote a record that does not belong to an input."
        error = {"tool": "rb-search", "message": reason}
        return found + [{**record, "error": error} for record in share[len(found) :]]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the shell and all processes that it started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGTERM)


@contextlib.contextmanager
def measuring(metric: str, run: Run, warn: Callable[[str], object]) -> Iterator[Work]:
    """Yields the function that measures this metric, in processes that end with the context."""
    job = request_of(metric, warn)
    with engine_for([job], run) as engine:

        def measured(records: list[Record]) -> list[Record]:
            results = records.copy()
            for place, report in engine.map(Job(job, record) for record in records):
                error = {"tool": "rb-search", "message": report.problem or "unknown"}
                results[place] = report.result or {**records[place], "error": error}
            return results

        yield measured


def request_of(metric: str, warn: Callable[[str], object]) -> MeasureJob:
    """Returns the request to rb-measure for this metric, with defaults for settings that it does not name.

    Raises UsageError if the name does not begin with the name of a measure.
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
