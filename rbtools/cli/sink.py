"""What the sinks share: tools that take all records in and write something else than records with more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from rbtools.cli import shared
from rbtools.cli.output import Output
from rbtools.errors import RbError, UsageError
from rbtools.records import Line, expr
from rbtools.scoring import render

FORMATS = ("jsonl", "table", *render.RENDERERS)
where_option = click.option(
    "--where", default=None, metavar="EXPR", help="Only records for which this holds: 'acc > 0.8'."
)
direction_option = click.option(
    "--lower/--higher", default=None, help="Which is better.  [default: the metric's own direction]"
)
form_option = click.option(
    "--format",
    "form",
    default=None,
    type=click.Choice(FORMATS),
    help="How to write.  [default: table on a terminal, else jsonl]",
)


class Sink:
    """The records to work on. Lines that are none, failed records and what `where` does not hold for
    are left out and counted, and so are records that lack what `where` asks for.
    """

    def __init__(
        self, source: shared.Source, screen: shared.Screen, output: Output, where: str | None = None
    ) -> None:
        self.source, self.screen, self.output = source, screen, output
        self.where = None if where is None else compiled(where, "--where")
        self.bad = self.failed = self.good = self.other = self.lacking = 0
        self._reason: RbError | None = None

    def lines(self) -> Iterator[Line]:
        """The lines that hold a record to work on. Raises UsageError for a --where that no record answers."""
        for line in shared.read_all(self.source, self.screen, self.output):
            if line.record is None:
                self.bad += 1
            elif self.source.passes(line.record):
                self.failed += 1
            elif self._holds(line.record):
                self.good += 1
                yield line
        if self.lacking and not self.good and not self.other:
            raise UsageError(f"--where: {self._reason}")

    def records(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """The same as text and record."""
        for line in self.lines():
            assert line.record is not None
            yield line.text, line.record

    def _holds(self, record: dict[str, Any]) -> bool:
        if self.where is None:
            return True
        try:
            holds = self.where.holds(record)
        except expr.MissingName as reason:
            self.lacking += 1
            self._reason = self._reason or reason
            return False
        except RbError as wrong:
            raise UsageError(f"--where: {wrong}") from None
        self.other += not holds
        return holds

    @property
    def came(self) -> int:
        """How many lines there were."""
        return self.good + self.failed + self.bad + self.other + self.lacking

    def tell(self) -> None:
        """Say what was left out, and why nothing came out where nothing did."""
        if not self.came:
            self.screen.say("no records came in.")
        elif self.where is not None and not self.good:
            self.screen.say(f"--where '{self.where.text}' holds for no record.")
        if self.lacking:
            self.screen.say(f"{counted(self.lacking, 'record')} without what --where asks for left out.")
        if self.failed:
            self.screen.say(f"{counted(self.failed, 'failed record')} left out.")
        if self.bad:
            self.screen.say(f"{counted(self.bad, 'bad line')} left out.")


def compiled(text: str, option: str) -> expr.Expression:
    """A parsed expression. Raises UsageError that names the option."""
    try:
        return expr.compile(text)
    except RbError as wrong:
        raise UsageError(f"{option}: {wrong}") from None


def names(text: str | None, option: str) -> list[str]:
    """The items of a list of fields or metrics. Raises UsageError where the list is empty."""
    if text is None:
        return []
    found = expr.items(text)
    if not found:
        raise UsageError(f"{option} is an empty list. Expected names with commas, such as dataset,arch.name.")
    return found


def counted(number: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{number} {noun}{'s' * (number != 1)}"
