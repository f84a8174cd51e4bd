"""Reading a table of results for rb-search, and saying what was left out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rbtools.cli import shared
from rbtools.cli.output import RecordWriter
from rbtools.cli.sink import compiled
from rbtools.cli.source import where as place_of
from rbtools.errors import RbError, UsageError
from rbtools.records import expr

if TYPE_CHECKING:
    from rbtools.search.result_table import ResultTable


class TableReader:
    """One source of records, and what came of its lines."""

    def __init__(self, source: shared.RecordSource, screen: shared.Terminal, output: RecordWriter) -> None:
        self.source, self.screen, self.output = source, screen, output
        self.good = self.bad = self.failed = self.other = 0

    def tell(self) -> None:
        """Say what was left out."""
        if self.good + self.bad + self.failed + self.other == 0:
            self.screen.say("no records came in.")
        elif not self.good:
            self.screen.say(f"none of {self.bad + self.failed + self.other} records can be searched.")
        for number, noun in ((self.failed, "failed record"), (self.bad, "bad line")):
            if number:
                self.screen.say(f"{number} {noun}{'s' * (number != 1)} left out.")

    def status(self) -> int:
        """How the reading went."""
        return shared.FAILED if self.bad else shared.DONE


def read_table(
    reading: TableReader, objectives: Sequence[Any], where: str | None, *, share: bool
) -> ResultTable:
    """All records of a source as a table. Raises UsageError where it cannot be searched."""
    from rbtools.search.result_table import ResultTable

    table, condition = ResultTable(objectives, share=share), None if where is None else Condition(where)
    for line in shared.read_all(reading.source, reading.screen, reading.output):
        if line.record is None:
            reading.bad += 1
        elif reading.source.passes(line.record):
            reading.failed += 1
        elif condition is not None and not condition.holds(line.record):
            reading.other += 1
        else:
            try:
                table.add(line.record, line.text)
                reading.good += 1
            except RbError as wrong:
                reading.bad += 1
                reading.screen.error(f"{place_of(line)} {wrong}")
    if condition is not None:
        condition.check()
    table.check()
    return table


class Condition:
    """`--where`: a record that has no answer to it does not hold."""

    def __init__(self, text: str) -> None:
        self.expression = compiled(text, "--where")
        self.answers = 0
        self._reason: RbError | None = None

    def holds(self, record: dict[str, Any]) -> bool:
        try:
            found = self.expression.holds(record)
        except RbError as reason:  # the name is not there, or its value is of another kind
            if not isinstance(reason, expr.MissingName):
                self._reason = self._reason or reason
            return False
        self.answers += 1
        return found

    def check(self) -> None:
        """Raise UsageError where the condition fits no record."""
        if self._reason is not None and not self.answers:
            raise UsageError(f"--where: {self._reason}")
