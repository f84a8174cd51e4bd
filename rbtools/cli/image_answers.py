"""What is own of single images, with a warning for answers that are damaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rbtools.cli.source import name_of
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError
from rbtools.records import answers

if TYPE_CHECKING:
    from rbtools.jobs.earlier_outcomes import ImageOutcomes, Shares

Record = Mapping[str, Any]


class ImageAnswers:
    """Answers of entries, else those that the store has. Damaged ones are named once, and the store is asked
    in their place."""

    def __init__(self, outcomes: ImageOutcomes, screen: Terminal) -> None:
        self._outcomes, self._screen = outcomes, screen

    def shares(self, record: Record, entry: Record) -> Shares | None:
        """See `ImageOutcomes.shares`."""
        try:
            return self._outcomes.shares(record, self._undamaged(record, entry))
        except RbError as wrong:  # the answers of clean accuracy, which say of which images a share is
            self._warn(record, wrong)
            return None

    def counted(self, record: Record, entry: Record) -> answers.Answers | None:
        """Which images count in an entry's value. None if that is not known, or it is no share of all n."""
        undamaged = self._undamaged(record, entry)
        own = answers.of(
            undamaged if answers.FIELD in undamaged else self._outcomes.with_answers(record, undamaged)
        )
        return own if own is not None and len(own.right) == entry["n"] else None

    def _undamaged(self, record: Record, entry: Record) -> dict[str, Any]:
        """The entry, without its answers if these are damaged."""
        try:
            answers.of(entry)
        except RbError as wrong:
            self._warn(record, wrong)
            return {field: value for field, value in entry.items() if field != answers.FIELD}
        return dict(entry)

    def _warn(self, record: Record, wrong: RbError) -> None:
        self._screen.once(f"warning: {name_of(dict(record))}: {wrong}")
