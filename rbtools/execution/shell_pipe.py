"""Runs records through the user's command line, such as a pipe of tools that evaluates architectures.

Each share of the records goes to the standard input of its own shell; a mark that the tools pass through
identifies the record of an output line. Only a command line given by the user is ever run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from rbtools.execution.run import Run
from rbtools.records import BadLine, dumps, parse

Record = dict[str, Any]
MARK = "asked"
_POLL_SECONDS = 0.5


@dataclass
class ShellPipe:
    """A command line that takes records and returns them with results.

    At most `jobs` shells run at once, each for at most `seconds` a record (None: as long as it takes).
    They also use the store of the run (`RB_STORE`).
    """

    command: str
    run: Run
    seconds: float | None = None
    _processes: set[Any] = field(default_factory=set)
    _lock: Any = field(default_factory=threading.Lock)

    def __call__(self, records: Sequence[Record]) -> list[Record]:
        """The output for each record, in order; without output, the record with an `error`."""
        jobs = min(max(self.run.placement.jobs, 1), len(records))
        marked = [{**record, MARK: place} for place, record in enumerate(records)]
        shares = [marked[start::jobs] for start in range(jobs)]
        results: dict[int, Record] = {}
        with ThreadPoolExecutor(jobs) as threads:
            futures = [threads.submit(self._run_shell, share) for share in shares]
            try:
                while wait(futures, _POLL_SECONDS).not_done:
                    self.run.report.check_cancelled()
            except BaseException:
                with self._lock:
                    for process in self._processes:
                        _kill(process)
                raise
            for future in futures:
                results.update(future.result())
        return [results[place] for place in range(len(records))]

    def _run_shell(self, share: Sequence[Record]) -> dict[int, Record]:
        """The output records of one shell, by their marks."""
        text = b"".join(dumps(record) + b"\n" for record in share)
        store = self.run.store.folder
        process = subprocess.Popen(
            self.command,
            shell=True,  # runs only the user's argument of --live, nothing from a record
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ if store is None else {**os.environ, "RB_STORE": str(store)},
            start_new_session=True,
        )
        with self._lock:
            self._processes.add(process)
        output, errors, reason = b"", b"", None
        try:
            limit = None if self.seconds is None else self.seconds * len(share)
            output, errors = process.communicate(text, timeout=limit)
        except subprocess.TimeoutExpired:
            _kill(process)
            output, errors = process.communicate()
            reason = f"It took longer than {limit:g} seconds."
        finally:
            with self._lock:
                self._processes.discard(process)
        return _matched(share, output, reason or _reason(process.returncode, errors))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the shell and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _reason(status: int, errors: bytes) -> str:
    """Why a record has no output."""
    lines = [line for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    last = f" It said: {lines[-1].strip()[:300]}" if lines else ""
    return f"The command ended with status {status}, without this record.{last}"


def _matched(share: Sequence[Record], output: bytes, reason: str) -> dict[int, Record]:
    """The output records by mark; a record that is missing in the output has an error."""
    results: dict[int, Record] = {}
    problems: dict[int, str] = {}
    wanted = {record[MARK] for record in share}
    for line in output.splitlines():
        try:
            record = parse(line)
        except BadLine as wrong:
            reason = f"The command wrote a line that {wrong}"
            continue
        place = record.pop(MARK, None)
        if place not in wanted:
            reason = (
                "The command wrote a record that does not belong to an input: it must pass unknown fields on."
            )
        elif place in results:
            problems[place] = "The command gives several records for one. Choose one method, attack and seed."
        else:
            results[place] = record
    for record in share:
        place = record[MARK]
        if place not in results or place in problems:
            unmarked = {key: value for key, value in record.items() if key != MARK}
            results[place] = {
                **unmarked,
                "error": {"tool": "rb-search", "message": problems.get(place, reason)},
            }
    return results
