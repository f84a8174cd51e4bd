"""Reading a table of results for rb-search, and saying what was left out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rbtools.cli import shared
from rbtools.cli.sink import RecordReader, compiled
from rbtools.cli.source import where as place_of
from rbtools.errors import RbError, UsageError
from rbtools.records import expr

if TYPE_CHECKING:
    from rbtools.search.result_table import ResultTable


class TableReader(RecordReader):
    """Reads records into a table of results."""

    def tell(self) -> None:
        """Say what was left out."""
        if not self.came:
            self.screen.say("no records came in.")
        elif not self.good:
            self.screen.say(f"none of {self.came} records can be searched.")
        self.say_left_out()

    def status(self) -> int:
        """The exit status of reading."""
        return shared.FAILED if self.bad else shared.DONE


def read_table(
    reading: TableReader, objectives: Sequence[Any], where: str | None, *, share: bool
) -> ResultTable:
    """All records of a source as a table. Raises UsageError where it cannot be searched."""
    from rbtools.search.result_table import ResultTable

    table, condition = ResultTable(objectives, share=share), None if where is None else Condition(where)
    for line in reading.lines():
        assert line.record is not None
        if condition is not None and not condition.holds(line.record):
            continue
        try:
            table.add(line.record, line.text)
            reading.good += 1
        except RbError as wrong:
            reading.read, reading.bad = reading.read - 1, reading.bad + 1
            reading.screen.wrong_line(f"{place_of(line)} {wrong}", "more lines cannot be searched", "")
    if condition is not None:
        condition.check()
    table.check()
    return table


class Condition:
    """`--where`; it does not hold for a record that lacks one of its names."""

    def __init__(self, text: str) -> None:
        self.expression = compiled(text, "--where")
        self.answers = 0
        self._reason: RbError | None = None

    def holds(self, record: dict[str, Any]) -> bool:
        try:
            result = self.expression.holds(record)
        except RbError as reason:  # the name is missing, or its value has another type
            if not isinstance(reason, expr.MissingName):
                self._reason = self._reason or reason
            return False
        self.answers += 1
        return result

    def check(self) -> None:
        """Raise UsageError where the condition fits no record."""
        if self._reason is not None and not self.answers:
            raise UsageError(f"--where: {self._reason}")
