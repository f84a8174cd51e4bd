"""The input and output of a command, either of the shell or in memory (for calls from Python)."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.cli import calls
from rbtools.cli.output import RecordWriter
from rbtools.cli.source import RecordSource, file_path
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError, UsageError
from rbtools.records import Line, dumps, lines, read

if TYPE_CHECKING:
    from rbtools.cli.events import Log
    from rbtools.execution.run import Run

Record = dict[str, Any]


class Streams:
    """The streams of the shell: standard input and output, files, and the terminal."""

    def writer(self) -> RecordWriter:
        return RecordWriter()

    def source(self, source: RecordSource) -> RecordSource:
        return source

    def terminal(self, tool: str, quiet: bool, verbose: bool, log: Log | None) -> Terminal:
        return Terminal(tool, quiet=quiet, verbose=verbose, log=log)

    def file(self, name: str) -> Any:
        """The object that replaces the file; None if the file is a file on disk."""
        return None

    def one_record(self, file: str, purpose: str) -> Record:
        """The only record in a file, or in the object that replaces the file. Raises RbError."""
        given = self.file(file)
        records = read(file_path(file)) if given is None else [given] if isinstance(given, Mapping) else given
        good = [record for record in records if "error" not in record]
        if len(good) != 1:
            raise RbError(f"{file} contains {len(good)} records. Expected one: the model to {purpose}.")
        return dict(good[0])

    def keep(self, result: object) -> bool:
        """Store a result that is not a record, such as a figure, in memory. Returns True if it was stored."""
        return False

    def each(self, works: Iterable[Callable[[Any, Any], Record]], run: Run) -> bool:
        """If the records are in memory, run each job on each record, and return True."""
        return False


class MemoryStreams(Streams):
    """Streams in memory for a call from Python: records, files by name, and messages.

    `lines` contains the records that the command writes, as text. `result` is a result that is not a record,
    such as a figure. `progress` is called with the text of the status line. Errors of the command are raised,
    warnings become Python warnings, and other messages are discarded.
    """

    def __init__(
        self,
        records: Iterable[Any] = (),
        *,
        files: Mapping[str, Any] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.records = records
        self.progress = progress
        self.files = dict(files or {})
        self.result: Any = None
        self.lines: list[bytes] = []

    def writer(self) -> RecordWriter:
        return _MemoryWriter(self.lines)

    def source(self, source: RecordSource) -> RecordSource:
        # An empty list is no error here: it does not come from a program that failed.
        return _GivenRecords(**{**vars(source), "allow_empty": True}, given=self)

    def terminal(self, tool: str, quiet: bool, verbose: bool, log: Log | None) -> Terminal:
        warnings = _Warnings(tool, quiet=True)
        warnings.progress = self.progress
        return warnings

    def file(self, name: str) -> Any:
        return self.files.get(name)

    def keep(self, result: object) -> bool:
        self.result = result
        return True

    def each(self, works: Iterable[Callable[[Any, Any], Record]], run: Run) -> bool:
        works = list(works)
        self.lines += [dumps(work(record, run)) for record in self.records for work in works]
        return True


_SHELL = Streams()


def of_command() -> Streams:
    return calls.current().streams or _SHELL


@contextlib.contextmanager
def opened_output(source: RecordSource, screen: Terminal) -> Iterator[RecordWriter]:
    """Yield standard output, or with `--in-place` the file, which is replaced at the end."""
    output = of_command().writer()
    try:
        if not source.in_place:
            yield output
            return
        if len(source.files) != 1 or source.files[0] == "-":
            raise UsageError("--in-place needs exactly one FILE, to which the records are written back.")
        if os.path.exists(source.files[0]) and not os.path.isfile(source.files[0]):
            raise UsageError(
                f"--in-place: {source.files[0]} is not a regular file. Only a regular file can be replaced."
            )
        if source.shard is not None:
            raise UsageError("--in-place with --shard would lose the other shards' records. Write elsewhere.")
        # For a link, its target is rewritten, and the link remains.
        with _replacing(os.path.realpath(source.files[0]), output):
            yield output
    finally:
        screen.clear()
        output.close()


@contextlib.contextmanager
def _replacing(path: str, output: RecordWriter) -> Iterator[None]:
    """Write the records to a new file, which replaces the old file if there was no interruption."""
    try:
        handle, aside = tempfile.mkstemp(prefix=".rb-", dir=os.path.dirname(path))
    except OSError as error:
        raise UsageError(
            f"Cannot write into the folder of {path}: {error.strerror}. --in-place first writes a file"
            " there. Write elsewhere, without --in-place."
        ) from None
    output.divert(handle)
    try:
        yield
        os.fsync(handle)
        with contextlib.suppress(OSError):
            os.fchmod(handle, os.stat(path).st_mode & 0o777)
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise
    finally:
        os.close(handle)


class _MemoryWriter(RecordWriter):
    def __init__(self, lines: list[bytes]) -> None:
        self._kept = lines

    def line(self, text: bytes) -> None:
        self._kept.append(text)


class _Warnings(Terminal):
    """Raises errors, issues Python warnings, and passes the status line to `progress`."""

    progress: Callable[[str], None] | None = None

    def status(self, text: str) -> None:
        if self.progress is not None:
            self.progress(text)

    def _line(self, text: str) -> None:
        kind, _, rest = text.partition(": ")
        if kind == "error":
            raise RbError(rest)
        if kind == "warning":
            warnings.warn(rest, stacklevel=2)


@dataclass(frozen=True)
class _GivenRecords(RecordSource):
    """Records in memory that replace standard input, and tables in memory that replace files."""

    reads_ahead: ClassVar[bool] = False  # the caller's iterator belongs to the caller's thread
    given: MemoryStreams = field(default_factory=MemoryStreams)

    def _all_lines(self, output: RecordWriter) -> Iterator[Line]:
        for name in self.files or ("-",):
            yield from self._of_file(name)

    def _of_file(self, name: str) -> Iterator[Line]:
        if name != "-" and name not in self.given.files:
            yield from super()._of_file(name)
            return
        records = self.given.records if name == "-" else self.given.files[name]
        records = [records] if isinstance(records, Mapping) else records
        yield from lines(map(dumps, records), "the records" if name == "-" else name)
