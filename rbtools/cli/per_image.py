"""Records with the answers for single images, their own or from the store, for the tools that need them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rbtools.cli import shared
from rbtools.cli.output import RecordWriter
from rbtools.cli.sink import RecordReader
from rbtools.cli.source import name_of, stop_if_strict, where
from rbtools.records import Line, parse_again

if TYPE_CHECKING:
    from rbtools.jobs.add_answers import StoredAnswers


class AnswersReader(RecordReader):
    """Reads all records, then yields them with the answers that the store has.

    `stored`: what they come from, once the records are read.
    """

    stored: StoredAnswers

    def __init__(
        self, source: shared.RecordSource, work: shared.CommandContext, output: RecordWriter
    ) -> None:
        super().__init__(source, work.screen, output)
        self._run = work.run

    def records(self) -> Iterator[tuple[Line, dict[str, Any] | None]]:
        """Each line, and its record; None for one that is no record or that failed. Damaged answers are
        reported, and counted in `bad`."""
        from rbtools.jobs.add_answers import StoredAnswers

        lines: list[tuple[Line, bool]] = []  # without the parsed records, which take ten times the memory
        checkpoints: set[str] = set()
        for line in self.every_line():
            if line.record is not None:
                checkpoints.add(str(line.record.get("checkpoint")))
            lines.append((line._replace(record=None), line.record is not None))
        self.stored = StoredAnswers(self._run, checkpoints)
        for line, good in lines:
            if not good:
                yield line, None
                continue
            line = line._replace(record=parse_again(line.text))
            assert line.record is not None
            record, wrong = self.stored.to(line.record)
            for error in wrong:
                self.bad += 1
                message = f"{where(line)} ({name_of(record)}): {error}"
                stop_if_strict(self.source.strict, message)
                self.screen.error(message)
            yield line, record

    def tell(self, without_data: str) -> None:
        """Report what the store and the data sets lack. without_data: what follows for a data set, "{}"."""
        for name, why in self.stored.without_data.items():
            self.screen.say(f"{without_data.format(name)}: {why}")
        if self.stored.lacking:
            metrics, tools = (list(dict.fromkeys(names)) for names in zip(*self.stored.lacking, strict=True))
            some = ", ".join(metrics[:4]) + (", ..." if len(metrics) > 4 else "")
            count = len(self.stored.lacking)
            entries = f"{count:,} entr{'y' if count == 1 else 'ies'}"
            again = ", ".join(f"{tool} --per-image" for tool in tools)
            self.screen.warn(
                f"the store has no outcomes of {entries} ({some}). {again} measure{'s' * (len(tools) == 1)}"
                " them again."
            )
