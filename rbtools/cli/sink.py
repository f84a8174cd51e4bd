"""Code of tools that read all records and write something else, such as rankings or figures."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rbtools.cli import shared
from rbtools.cli.output import RecordWriter
from rbtools.cli.source import name_of
from rbtools.errors import RbError, UsageError, shown
from rbtools.records import Line, consistency, expr, metric_name
from rbtools.records.held import HeldRecord, HeldRecords
from rbtools.registry import param
from rbtools.scoring import render, same_model
from rbtools.scoring.merge import Unions
from rbtools.scoring.ranking import one_of_each_model

FORMATS = ("jsonl", "table", *render.RENDERERS)


def where_param() -> Any:
    return param(None, "Use only records that meet this condition: 'acc > 0.8'.", metavar="EXPR")


def form_param() -> Any:
    text = "Output format.  [default: table on a terminal, else jsonl]"
    return param(None, text, choices=FORMATS, flags=("--format",))


class Inconsistent:
    """Reports records whose numbers contradict each other; records without entries are not checked."""

    LINES = 5

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.unexplained: list[str] = []  # records with metrics that lack an entry

    def look(self, record: dict[str, Any]) -> None:
        if not record.get("evals"):
            return
        findings = consistency.findings(record)
        says = [one.says.removesuffix(".") for one in findings if one.rule != "no entry"]
        if says:
            more = f" (and {counted(len(says) - 1, 'other finding')})" if len(says) > 1 else ""
            self.lines.append(f"{name_of(record)} is inconsistent: {shown(says[0], 200)}{more}")
        metrics = [one.metric for one in findings if one.rule == "no entry"]
        # only one line for all such records: other programs add metrics without entries to many records
        if metrics and any(entry.get("tool") != "rb-score" for entry in record["evals"]):
            self.unexplained.append(f"{name_of(record)}: {shown(', '.join(metrics), 80)}")

    def tell(self, screen: shared.Terminal) -> None:
        for line in self.lines[: self.LINES]:
            screen.warn(f"{line}.")
        if (further := len(self.lines) - self.LINES) > 0:
            hint = "rb-verify --inconsistent lists them"
            screen.warn(f"and {counted(further, 'more inconsistent record')}; {hint}.")
        if self.unexplained:
            have = f"{counted(len(self.unexplained), 'record')} with metrics that have no entry in evals"
            screen.warn(f"{have} ({self.unexplained[0]}): it is not known how they were measured.")


class RecordReader:
    """`bad` counts lines that are not records, `read` counts records that did not fail, and `good` counts the
    records that the tool works on."""

    def __init__(self, source: shared.RecordSource, screen: shared.Terminal, output: RecordWriter) -> None:
        self.source, self.screen, self.output = source, screen, output
        self.bad = self.failed = self.read = self.good = 0

    @property
    def came(self) -> int:
        return self.read + self.failed + self.bad

    def every_line(self) -> Iterator[Line]:
        """A line that is not a record has a `problem`; for a failed record, `record` is None."""
        for line in shared.read_all(self.source, self.screen, self.output):
            if line.record is None:
                self.bad += 1
                yield line
            elif self.source.passes(line.record):
                self.failed += 1
                yield line._replace(record=None)
            else:
                self.read += 1
                yield line

    def lines(self) -> Iterator[Line]:
        return (line for line in self.every_line() if line.record is not None)

    def say_left_out(self) -> None:
        if self.failed:
            self.screen.say(f"{counted(self.failed, 'failed record')} left out.")
        if self.bad:
            self.screen.say(f"{counted(self.bad, 'bad line')} left out.")


class Sink(RecordReader):
    """Counts and leaves out bad lines, failed records, and records that do not meet `where` or lack a name in
    `where`. `united` merges the records of one model. `columns` are the columns of the table, if
    there is one."""

    def __init__(
        self,
        source: shared.RecordSource,
        screen: shared.Terminal,
        output: RecordWriter,
        where: str | None = None,
    ) -> None:
        super().__init__(source, screen, output)
        self.where = None if where is None else expr.Expression(where, any_name=True)
        self.other = self.lacking = 0
        self.united = Unions()
        self.inconsistent = Inconsistent()
        self.columns: Collection[str] | None = None
        self._held = HeldRecords()
        self._reason: RbError | None = None

    def lines(self) -> Iterator[Line]:
        """The lines with a record that did not fail, including records that do not meet `where`."""
        for line in super().lines():
            assert line.record is not None
            self.inconsistent.look(line.record)
            yield line

    def held(self, line: Line, record: dict[str, Any] | None = None) -> HeldRecord:
        """The record of a line (or `record`, which was made from it) in a form that needs little memory."""
        assert line.record is not None
        text = line.text if record is None or record is line.record else None
        record = record or line.record
        return self._held.hold(record, same_model.model(record), text)

    def records(self) -> list[dict[str, Any]]:
        """One record for each checkpoint; with --no-merge, all records."""
        every = [line.record for line in self.lines() if line.record is not None]
        models = self.models(every, weights=True)
        self.check()
        return list(models.values())

    def models(self, records: Sequence[Any], *, weights: bool = False) -> dict[int, Any]:
        """Map model digests (with --no-merge, positions) to the records that meet `where`."""
        merge = self.source.merge
        models: dict[int, Any] = (
            one_of_each_model(records, self.united, weights=weights) if merge else dict(enumerate(records))
        )
        return {model: record for model, record in models.items() if self.holds(record)}

    def check(self) -> None:
        """Raise UsageError if every record lacks a name in --where."""
        if self.lacking and not self.good and not self.other:
            raise UsageError(f"--where: {self._reason}")

    def holds(self, record: Mapping[str, Any]) -> bool:
        """Whether `where` holds for the record, which is then counted as good."""
        try:
            holds = self.where is None or self.where.holds(record)
        except RbError as reason:  # the name is missing, or is a list in this record and a number elsewhere
            self.lacking += 1
            self._reason = self._reason or reason
            return False
        self.good += holds
        self.other += not holds
        return holds

    def tell(self) -> None:
        tell_united(self.united, self.screen, self.columns)
        self.inconsistent.tell(self.screen)
        if not self.came:
            self.screen.say("no records came in.")
        elif self.where is not None and not self.good:
            self.screen.say(f"No record meets --where '{self.where.text}'.")
        if self.lacking:
            self.screen.say(f"{counted(self.lacking, 'record')} left out: a name in --where is missing.")
        self.say_left_out()


def tell_united(unions: Unions, screen: shared.Terminal, columns: Collection[str] | None = None) -> None:
    """Warn about merged records, and about merged results on different numbers of images, of all metrics or
    only of those in `columns`."""
    if unions.count:
        screen.warn(
            f"{counted(unions.count, 'record')} merged with an earlier one of the same model. If both have a"
            " metric, the value from more images counts; with equal numbers, the later one."
        )
    images = {name: n for name, n in unions.images.items() if columns is None or name in columns}
    if len({*images.values()}) > 1:
        screen.warn(
            "the merged results of a model were measured on different numbers of images, such as"
            f" {of_images(images)}. Evaluate all with the same --n to compare them."
        )


def of_images(counts: Mapping[str, int], most: int = 4) -> str:
    """Format numbers of images, such as `'clean' of 200, 'PGD-20, ε = 8/255' of 50`; the first metrics in the
    text have different numbers."""
    first = dict.fromkeys(next(name for name in counts if counts[name] == n) for n in counts.values())
    names = [*first, *(name for name in counts if name not in first)]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"'{metric_name.heading(name)}' of {counts[name]}" for name in names[:most]) + more


def compiled(text: str, option: str) -> expr.Expression:
    """Parse an expression. Raises UsageError, which names the option, if the expression is invalid."""
    try:
        return expr.compile(text)
    except RbError as wrong:
        raise UsageError(f"{option}: {wrong}") from None


def names(text: str | None, option: str) -> list[str]:
    """The items of a list of fields or metrics. Raises UsageError if the list is empty."""
    if text is None:
        return []
    items = expr.items(text)
    if not items:
        raise UsageError(f"{option} is an empty list. Expected names with commas, such as dataset,arch.name.")
    return items


def counted(number: int, noun: str) -> str:
    """The number with its noun, such as `1 record` or `2 records`."""
    return f"{number} {noun}{'s' * (number != 1)}"
