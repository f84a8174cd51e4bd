"""rb-convert: converts published result files to records, and records to published formats."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rbtools.cli import options, shared, streams
from rbtools.cli.output import RecordWriter
from rbtools.cli.sink import RecordReader, counted
from rbtools.cli.source import RecordSource, failed_record, name_of, stop_if_strict, where
from rbtools.errors import RbError, UsageError
from rbtools.formats import FORMATS, Bad, Broken, ConversionReport, Document, Format, Published, Unit
from rbtools.formats.base import as_text
from rbtools.formats.conversion_report import losses
from rbtools.formats.csv import csv_bytes
from rbtools.formats.parquet_table import parquet_bytes
from rbtools.formats.written import Sender, WrittenOnly
from rbtools.records import dumps
from rbtools.registry import REQUIRED, param, rare_param
from rbtools.store.files import check_folder_of, write_all


@dataclass(frozen=True, kw_only=True)
class ConversionOptions:
    files: tuple[str, ...] = param((), "", metavar="[FILE]...", positional=True)
    target: str | None = param(
        None,
        "Convert the records of FILE or standard input to this format, and write them to this file or folder."
        " If the format is a single file, '-' means standard output.",
        metavar="PATH",
        flags=("--write",),
    )
    errors: str = rare_param(
        "pass",
        "If a row or record cannot be converted: pass it on, or stop.",
        choices=("pass", "stop"),
        group="Records and store",
    )


@shared.command(choose=FORMATS)
@shared.takes("typed", ConversionOptions)
@shared.takes("allow_empty", RecordSource, "allow_empty", make=lambda allow_empty: allow_empty)
@options.screen_options
def main(
    format: str, params: dict[str, Any], typed: ConversionOptions, allow_empty: bool, screen: shared.Terminal
) -> int:
    """Read published results as records, or write records in a published format.

    The tool reads FILE (for some formats a folder) or standard input, and writes a record for each result.
    The names of the metrics are the same as in rb-attack and the other tools. "evals" contains the source of
    each number and its rounding. With --write, the tool converts records to the format. Messages on standard
    error list each kind of content that the format cannot express. A row that cannot be read becomes a record
    with an error.

    \b
    Examples:
      rb-convert prbench --write board.json results.jsonl
      rb-convert prbench board.json | rb-rank --by acc
      rb-convert csv --write table.csv results.jsonl
      rb-convert csv --map 'pgd20.8=robust' table.csv
      rb-rank --by acc --top 1 results.jsonl | rb-convert hub --write card
    """
    chosen: Format = shared.build(FORMATS, format, params)
    report = ConversionReport()
    if typed.target is None:
        status = _Reading(chosen, report, screen, typed.errors == "stop").run(typed.files)
    else:
        source = options.record_source(files=typed.files, errors=typed.errors, allow_empty=allow_empty)
        status = _Writing(chosen, report, screen, source).run(typed.target)
    for line in report.errors():
        screen.error(line)
    for line in (*report.remarks(), *report.losses(format)):
        screen.say(line)
    return shared.FAILED if report.wrong else status


class _Reading:
    def __init__(
        self, chosen: Format, report: ConversionReport, screen: shared.Terminal, strict: bool
    ) -> None:
        self.format, self.report, self.screen, self.strict = chosen, report, screen, strict
        self.good = self.bad = 0

    def run(self, files: tuple[str, ...]) -> int:
        with contextlib.closing(streams.of_command().writer()) as output:
            for source in _sources(files, self.format, output):
                self._file(source, output)
        if self.good + self.bad == 0:
            self.screen.say("no results came in.")
        else:
            failed = f", {self.bad} failed" if self.bad else ""
            self.screen.detail(f"{self.good} record{'s' * (self.good != 1)}{failed}.")
        return shared.FAILED if self.bad else shared.DONE

    def _file(self, source: Published, output: RecordWriter) -> None:
        try:
            for unit in self.format.units(source, self.report):
                output.line(self._record(unit))
        except Broken as wrong:
            self._say(f"{source.name} {wrong}. See rb-convert {self.format.name} --help for the format.")
            output.line(dumps(failed_record("rb-convert", f"{source.name} {wrong}.")))
        except OSError as error:
            raise UsageError(f"Cannot read {error.filename or source.name}: {error.strerror}.") from None

    def _record(self, unit: Unit | Bad) -> bytes:
        if isinstance(unit, Unit):
            try:
                line = dumps(self.format.record(unit.content, self.report, unit.where))
                self.good += 1
                return line
            except RbError as wrong:
                unit = Bad(unit.where, str(wrong), as_text(unit.content))
            except UnicodeEncodeError:
                problem = "It contains an unpaired surrogate, which is not valid text. Expected Unicode."
                unit = Bad(unit.where, problem, as_text(unit.content))
        message = f"{unit.where}: {unit.problem}"
        self._say(message)
        return dumps(failed_record("rb-convert", message, text=unit.text))

    def _say(self, message: str) -> None:
        self.bad += 1
        stop_if_strict(self.strict, message)
        self.screen.error(message)


def _sources(files: tuple[str, ...], chosen: Format, output: RecordWriter) -> Iterator[Published]:
    if getattr(chosen, "needs_no_file", False):
        if files:
            raise UsageError(f"--published reads no file. Leave out {files[0]}.")
        yield Published(None, chosen.name)
        return
    if not files:
        if not chosen.one_file:
            raise UsageError(f"{chosen.name} needs a folder. Name it: rb-convert {chosen.name} FOLDER.")
        if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
            raise UsageError(f"No file was given. Name one: rb-convert {chosen.name} FILE.")
    for name in files or ("-",):
        if name == "-":
            yield Published(None, "standard input")
            continue
        path = Path(name)
        if not path.exists():
            raise UsageError(
                f"Cannot read {name}: No such file or directory. Expected a file or folder as described in"
                f" rb-convert {chosen.name} --help."
            )
        if output.same_file(name):
            raise UsageError(f"{name} is both read and written. Write elsewhere.")
        if path.is_dir() and chosen.one_file:
            raise UsageError(f"{name} is a folder. Expected a file of the format {chosen.name}.")
        yield Published(path, name)


def _same(name: str, target: str) -> bool:
    return os.path.isfile(name) and os.path.isfile(target) and os.path.samefile(name, target)


def _not_there(documents: list[Document], target: Path) -> list[Document]:
    """Raises RbError if a file exists already, because a README.md may contain a user's text."""
    for document in documents:
        if (target / document.path).exists():
            raise RbError(f"{target / document.path} exists already. Name another folder with --write.")
    return documents


class _Writing:
    def __init__(
        self, chosen: Format, report: ConversionReport, screen: shared.Terminal, source: shared.RecordSource
    ) -> None:
        self.format, self.report, self.screen, self.source = chosen, report, screen, source

    def run(self, target: str) -> int:
        if target == "-" and not self.format.one_file:
            raise UsageError(f"{self.format.name} writes a folder, but --write is '-'. Name a folder.")
        files = self.source.files
        if target in files or any(_same(name, target) for name in files):
            raise UsageError(f"{target} is both read and written. Write elsewhere.")
        if self.format.one_file and target != "-":
            check_folder_of(Path(target))
        with shared.opened_output(self.source, self.screen) as output:
            reader = RecordReader(self.source, self.screen, output)
            units = list(self._units(reader))
            documents = self.format.documents(units, self.report)
            nothing = not units and target != "-" and reader.came > 0
            if not units and not nothing:
                self.screen.say("no records came in; nothing is written.")
            elif not units:  # an error, because the caller expects the file
                self.screen.error(f"there is nothing to write: {target} was not written.")
            elif target == "-":
                for document in documents:
                    output.line(document.content.rstrip(b"\n"))
            elif isinstance(self.format, Sender):
                self.format.send(units, target)
            else:
                if isinstance(self.format, WrittenOnly) and not self.format.one_file:
                    documents = iter(_not_there(list(documents), Path(target)))
                write_all(Path(target), documents, hint="Name another place with --write.")
        if reader.failed:
            self.screen.say(f"{counted(reader.failed, 'failed record')} left out.")
        self.screen.detail(f"{counted(reader.good, 'record')} written.")
        return shared.FAILED if reader.bad or nothing else shared.DONE

    def _units(self, reader: RecordReader) -> Iterator[Unit]:
        for line in reader.lines():
            assert line.record is not None
            place = f"{where(line)} ({name_of(line.record)})"
            try:
                content = self.format.unit(line.record)
                again = self.format.record(content, ConversionReport(ours=True), place)
                losses(line.record, again, self.report)
            except RbError as wrong:
                reader.bad += 1
                stop_if_strict(self.source.strict, f"{place}: {wrong}")
                self.screen.error(f"{place}: {wrong}")
                continue
            reader.good += 1
            yield Unit(place, content)


@shared.command()
@shared.takes(
    "target",
    ConversionOptions,
    "target",
    make=lambda target: target,
    target=param(
        REQUIRED,
        "Write the table to this file; '-' is CSV on standard output.",
        metavar="FILE.csv|FILE.parquet",
        flags=("--write",),
    ),
)
@options.sink_options
@options.screen_options
def per_image(target: str, source: shared.RecordSource, screen: shared.Terminal) -> int:
    """Write the result of each model on each image as a table, for pandas and other programs.

    The table has one row for each image and each metric that is a share of images. The columns are model,
    checkpoint, example (the position of the image in the evaluation), class, metric and correct. The whole
    table has to fit in memory.

    \b
    Examples:
      rb-attack pgd --eps 8 trained.jsonl | rb-convert per-image --write images.csv
      rb-convert per-image --write images.parquet results.jsonl
    """
    from rbtools.jobs import image_table

    ending = "csv" if target == "-" else target.rpartition(".")[2].lower()
    if ending not in ("csv", "parquet"):
        raise UsageError(f"{target} ends in neither .csv nor .parquet. Name such a file, or '-' for CSV.")
    if target in source.files or any(_same(name, target) for name in source.files):
        raise UsageError(f"{target} is both read and written. Write elsewhere.")
    if target != "-":
        check_folder_of(Path(target))
    with shared.opened_output(source, screen) as output:
        reader = RecordReader(source, screen, output)
        frame = image_table.frame(_columns(reader))
        table = parquet_bytes(frame) if ending == "parquet" else csv_bytes(frame.astype({"correct": int}))
        if target == "-":
            output.line(table.rstrip(b"\n"))
        else:
            write_all(Path(target), [Document("", table)], hint="Name another file with --write.")
    return shared.FAILED if reader.bad else shared.DONE


def _columns(reader: RecordReader) -> Iterator[dict[str, Any]]:
    """The columns for each entry that has answers. Damaged answers are reported, and `bad` counts them."""
    from rbtools.jobs import image_table

    for line in reader.lines():
        assert line.record is not None
        name = name_of(line.record)
        for entry in line.record.get("evals") or ():
            try:
                columns = image_table.columns_of(line.record, entry, name)
            except RbError as wrong:
                reader.bad += 1
                message = f"{where(line)} ({name}): {wrong}"
                stop_if_strict(reader.source.strict, message)
                reader.screen.error(message)
                continue
            if columns is not None:
                yield columns


main.commands["per-image"] = per_image


if __name__ == "__main__":
    main()
