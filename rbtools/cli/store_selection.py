"""The results of a store that a command line selects: by KEY, --where and --kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from rbtools.cli import shared
from rbtools.errors import RbError, UsageError
from rbtools.records import dumps, expr
from rbtools.store import Store, listing

KINDS = ("training", "tracking", "evaluation")
MANY = 5000  # from this many results on, several processes read

_options = (
    click.argument("keys", nargs=-1, metavar="[KEY]..."),
    click.option(
        "--where", default=None, metavar="EXPR", help="Only results for which this holds: 'acc > 0.8'."
    ),
    click.option("--kind", default=None, type=click.Choice(KINDS), help="Only results of one kind."),
)


class StoreSelection(NamedTuple):
    """The selection on the command line."""

    keys: tuple[str, ...]
    where: str | None
    kind: str | None


choice_options = shared.bundle("choice", StoreSelection, *_options)


class SelectionPart(NamedTuple):
    """The selected results of a part of the store; `absent` counts those that lack a name of --where."""

    lines: bytes
    matching: int
    seen: int
    absent: int
    damaged: list[str]


class SelectedResults:
    """The selected results; damaged ones are reported and left out."""

    def __init__(self, store: Store, choice: StoreSelection, screen: shared.Terminal) -> None:
        self.store, self.choice, self.screen = store, choice, screen
        self.condition = None if choice.where is None else _condition(choice.where)
        self.matching = self.damaged = self.seen = self.absent = 0

    def records(self) -> Iterator[listing.ListedResult]:
        """Their files and records."""
        for result in listing.records(self.store, self.choice.keys or None):
            self.seen += result.record is not None
            if result.record is None:
                self._say_damaged(result.path)
            elif self._counted_fit(result.record):
                yield result

    def lines(self) -> Iterator[bytes]:
        """Their records as JSON, many lines at once and without a newline at the end."""
        if self.choice.keys:
            yield from (dumps(result.record) for result in self.records() if result.record is not None)
            return
        folders = listing.folders(self.store, "results")
        for part in listing.parallel_map(self._part, folders, self._processes(folders)):
            for path in part.damaged:
                self._say_damaged(path)
            self.matching, self.seen = self.matching + part.matching, self.seen + part.seen
            self.absent += part.absent
            if part.lines:
                yield part.lines

    def _processes(self, folders: list[str]) -> int:
        from rbtools.execution import cores

        # Keys are hashes, so every folder has about as many results as the first one.
        first = sum(1 for _ in listing.paths(self.store, "results", folders[:1]))
        return cores.count() if first * len(folders) > MANY else 1

    def _part(self, folder: str) -> SelectionPart:
        """The selected results of one folder; may run in another process."""
        here = SelectedResults(self.store, self.choice, self.screen)
        results = list(listing.records_in(self.store, folder))
        records = [record for _, record in results if record is not None]
        damaged = [path for path, record in results if record is None]
        lines = [dumps(record) for record in records if here._counted_fit(record)]
        return SelectionPart(b"\n".join(lines), len(lines), len(records), here.absent, damaged)

    def _counted_fit(self, record: dict[str, Any]) -> bool:
        try:
            fits = self._fits(record)
        except expr.MissingName:
            self.absent += 1
            return False
        except RbError as wrong:
            raise UsageError(f"--where: {wrong}") from None
        self.matching += fits
        return fits

    def _fits(self, record: dict[str, Any]) -> bool:
        if self.choice.kind is not None and record["stored"]["kind"] != self.choice.kind:
            return False
        return self.condition is None or self.condition.holds(record)

    def _say_damaged(self, path: str) -> None:
        self.damaged += 1
        self.screen.error(f"{path} is damaged. rb-store verify --delete removes damaged files.")

    def why_nothing(self) -> str:
        """Why nothing was selected."""
        if not self.seen:
            return f"the store {self.store.folder} holds no results yet."
        if self.absent == self.seen and self.condition is not None:
            return f"no result has all of {', '.join(self.condition.names)}, which --where needs."
        return f"none of {self.seen} results matches."

    def status(self) -> int:
        """The exit status: a damaged result is a failure."""
        return shared.FAILED if self.damaged else shared.DONE


def _condition(text: str) -> expr.Expression:
    try:
        return expr.compile(text)
    except RbError as wrong:
        raise UsageError(f"--where: {wrong}") from None
