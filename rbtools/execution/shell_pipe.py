"""Records through a command line of the user's: the tools' own way to find out what nobody knows yet.

Each share of the records goes to a shell of its own, on its standard input; what comes out is told apart
by a mark that the tools pass through. Only a command line given by the user is ever run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from rbtools.execution.context import RunContext
from rbtools.records import BadLine, dumps, parse

Record = dict[str, Any]
MARK = "asked"
_SECONDS_BETWEEN_LOOKS = 0.5


@dataclass
class ShellPipe:
    """A command line that takes records and gives them back with what it found out.

    At most `run.jobs` of it are at work at once, each for at most `seconds` (None: as long as it takes).
    The store of the run is theirs, too (`RB_STORE`).
    """

    command: str
    run: RunContext
    seconds: float | None = None
    _working: set[Any] = field(default_factory=set)
    _lock: Any = field(default_factory=threading.Lock)

    def __call__(self, records: Sequence[Record]) -> list[Record]:
        """Each record as it comes out, or with an `error` where none does. The order stays."""
        jobs = min(max(self.run.jobs, 1), len(records))
        marked = [{**record, MARK: place} for place, record in enumerate(records)]
        shares = [marked[start::jobs] for start in range(jobs)]
        found: dict[int, Record] = {}
        with ThreadPoolExecutor(jobs) as pool:
            working = [pool.submit(self._one, share) for share in shares]
            try:
                while wait(working, _SECONDS_BETWEEN_LOOKS).not_done:
                    self.run.check_cancelled()
            except BaseException:
                self._end()
                raise
            for done in working:
                found.update(done.result())
        return [found[place] for place in range(len(records))]

    def _one(self, share: Sequence[Record]) -> dict[int, Record]:
        """The records of one shell, by their marks."""
        text = b"".join(dumps(record) + b"\n" for record in share)
        process = subprocess.Popen(
            self.command,
            shell=True,  # a pipe that the user typed after --live, and nothing that a record says
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment(),
            start_new_session=True,
        )
        with self._lock:
            self._working.add(process)
        out, said, reason = b"", b"", None
        try:
            limit = None if self.seconds is None else self.seconds * len(share)
            out, said = process.communicate(text, timeout=limit)
        except subprocess.TimeoutExpired:
            _kill(process)
            out, said = process.communicate()
            reason = f"It took longer than {limit:g} seconds."
        finally:
            with self._lock:
                self._working.discard(process)
        return _matched(share, out, reason or _why(process.returncode, said))

    def _environment(self) -> Mapping[str, str]:
        folder = self.run.store.folder
        return os.environ if folder is None else {**os.environ, "RB_STORE": str(folder)}

    def _end(self) -> None:
        with self._lock:
            for process in self._working:
                _kill(process)


def _kill(process: Any) -> None:
    """End the shell and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _why(status: int, said: bytes) -> str:
    """Why a record did not come out."""
    words = [line for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    last = f" It said: {words[-1].strip()[:300]}" if words else ""
    return f"The command ended with status {status}, without this record.{last}"


def _matched(share: Sequence[Record], out: bytes, reason: str) -> dict[int, Record]:
    """What came out, by mark; what did not, with its error."""
    found: dict[int, Record] = {}
    problems: dict[int, str] = {}
    wanted = {record[MARK] for record in share}
    for line in out.splitlines():
        try:
            record = parse(line)
        except BadLine as wrong:
            reason = f"The command wrote a line that {wrong}"
            continue
        place = record.pop(MARK, None)
        if place not in wanted:
            reason = "The command wrote a record that was not asked for: it has to pass unknown fields on."
        elif place in found:
            problems[place] = "The command gives several records for one. Choose one method, attack and seed."
        else:
            found[place] = record
    for record in share:
        place = record[MARK]
        if place not in found or place in problems:
            kept = {key: value for key, value in record.items() if key != MARK}
            found[place] = {**kept, "error": {"tool": "rb-search", "message": problems.get(place, reason)}}
    return found
