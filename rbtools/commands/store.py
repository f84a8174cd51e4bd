"""rb-store: lists, checks and cleans stored results."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rbtools.cli import options, shared
from rbtools.cli.output import RecordWriter
from rbtools.cli.sink import compiled
from rbtools.errors import RbError, UsageError
from rbtools.execution.run import Run
from rbtools.records import SCHEMA, dumps, expr
from rbtools.registry import param
from rbtools.store import Store, listing, upkeep

_STEP = 1000

KINDS = ("training", "tracking", "evaluation", "answers")


@dataclass(frozen=True, kw_only=True)
class StoreSelection:
    keys: tuple[str, ...] = param((), "", metavar="[KEY]...", positional=True)
    where: str | None = param(None, "Select results that meet this condition: 'acc > 0.8'.", metavar="EXPR")
    kind: str | None = param(None, "Select only results of this kind.", choices=KINDS)


_BYTES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_AGES = {"h": 3600.0, "d": 86400.0, "w": 604800.0}


def _amount(text: str | None, units: dict[str, float], option: str, such_as: str) -> float:
    """A number with a unit; no limit if `text` is None. Raises UsageError."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]?)", text or "")
    if text is not None and (parts is None or parts[2] not in units):
        raise UsageError(f"{option} is '{text}'. Expected {such_as}.")
    return math.inf if parts is None else float(parts[1]) * units[parts[2]]


@dataclass(frozen=True, kw_only=True)
class UpkeepOptions:
    delete: bool = param(False, "Remove damaged files; their content is computed again.", flags=("--delete",))
    keep_metrics: bool = param(
        False, "Keep only results; also remove checkpoints and unfinished runs.", flags=("--keep-metrics",)
    )
    max_size: str | None = param(
        None,
        "Also remove results and checkpoints until the store has at most this size, such as 10G. Those that"
        " have not been read for the longest time are removed first.",
        metavar="SIZE",
    )
    older_than: str | None = param(
        None,
        "Also remove results and checkpoints that have not been read for this time, such as 90d.",
        metavar="AGE",
    )
    dry_run: bool = param(
        False, "Only report the files that would be removed.", flags=("--dry-run",), group="Records and store"
    )


class SelectedResults:
    def __init__(self, store: Store, choice: StoreSelection, screen: shared.Terminal) -> None:
        self.store, self.choice, self.screen = store, choice, screen
        self.condition = None if choice.where is None else compiled(choice.where, "--where")
        self.matching = self.damaged = self.seen = self.absent = 0

    def records(self) -> Iterator[dict[str, Any]]:
        for path, record in listing.records(self.store, self.choice.keys):
            self.seen += record is not None
            if record is None:
                self.damaged += 1
                self.screen.error(f"{path} is damaged. rb-store verify --delete removes damaged files.")
            elif self._fits(record):
                yield record

    def _fits(self, record: dict[str, Any]) -> bool:
        fits = self.choice.kind in (None, record["stored"]["kind"])
        try:
            fits = fits and (self.condition is None or self.condition.holds(record))
        except expr.MissingName:
            self.absent += 1
            return False
        except RbError as wrong:
            raise UsageError(f"--where: {wrong}") from None
        self.matching += fits
        return fits

    def why_nothing(self) -> str:
        if not self.seen:
            return f"the store {self.store.folder} contains no results yet."
        if self.absent == self.seen and self.condition is not None:
            return f"no result has all of {', '.join(self.condition.names)}, which --where needs."
        return f"none of the {self.seen} results matches."

    def status(self) -> int:
        return shared.FAILED if self.damaged else shared.DONE


store_option = shared.takes("store", Run, "store", make=lambda store: Store(store), store=options.store_param)


@shared.command()
@shared.takes("choice", StoreSelection)
@store_option
@options.screen_options
def ls(choice: StoreSelection, store: Store, screen: shared.Terminal) -> int:
    """List finished results as records.

    The records are sorted by key, and other tools can read them from a pipe. A training run is listed as the
    record of rb-train, and an evaluation as a record with "metrics" and "evals". "stored" contains kind, key,
    bytes and time; for a training run, it also contains the bytes of the checkpoint (0 if the checkpoint was
    removed), and for a model that can only be queried, the number of images with an answer. KEY is the
    beginning of a key.
    """
    chosen = SelectedResults(store, choice, screen)
    with contextlib.closing(RecordWriter()) as output:
        for record in chosen.records():
            output.line(dumps(record))
    if not chosen.matching and not chosen.damaged:
        screen.say(chosen.why_nothing())
    return chosen.status()


@shared.command()
@store_option
@options.screen_options
def du(store: Store, screen: shared.Terminal) -> int:
    """Show the size of the store.

    For each kind of file, the tool prints the number of files and bytes, as a table on a terminal, else as
    JSON Lines.

    \b
    results   results of training runs and evaluations
    outcomes  results of evaluations for each image
    objects   checkpoints
    state     unfinished training runs and parts of unfinished evaluations
    answers   answers of models that can only be queried, so that no image is sent twice
    cache     hashes of files, so that each file is read only once
    leases    locks on work in progress
    aside     files that are being written, or that a stopped process left unfinished
    """
    with contextlib.closing(RecordWriter()) as output:
        _show(listing.usage(store), output)
    return shared.DONE


@shared.command()
@shared.takes("typed", UpkeepOptions, "delete")
@store_option
@options.screen_options
def verify(typed: UpkeepOptions, store: Store, screen: shared.Terminal) -> int:
    """Check every file against its hash.

    The tool reads every file and does not use the cache of hashes. Each damaged file is written as a line of
    JSON to standard output, and the exit status is then 1. Files that do not belong to a store are reported
    and kept.
    """
    count = bad = 0
    with contextlib.closing(RecordWriter()) as output:
        for count, (kind, path, problem) in enumerate(upkeep.verify(store), start=1):
            if count % _STEP == 0:
                screen.status(f"{count} files checked")
            if problem is None:
                continue
            bad += 1
            screen.clear()
            screen.error(f"{path} is damaged: {problem}.")
            deleted = typed.delete and problem != upkeep.FOREIGN and _deleted(path, screen)
            fields = {"kind": kind, "key": path.name, "path": str(path), "problem": problem}
            output.line(dumps({"schema": SCHEMA, **fields, "deleted": deleted}))
    screen.clear()
    screen.say(f"{_counted(count, 'file')}, {bad or 'none'} damaged.")
    if bad and not typed.delete:
        screen.say("--delete removes damaged files; they are computed again when they are needed.")
    return shared.FAILED if bad else shared.DONE


def _deleted(path: Path, screen: shared.Terminal) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        screen.error(f"Cannot remove {path}: {error.strerror}.")
        return False
    return True


@shared.command()
@shared.takes("typed", UpkeepOptions, "keep_metrics", "max_size", "older_than", "dry_run")
@store_option
@options.screen_options
def gc(typed: UpkeepOptions, store: Store, screen: shared.Terminal) -> int:
    """Remove files that are no longer needed.

    The tool removes files that stopped processes left behind, states of finished training runs, and states of
    unfinished work that has not continued for 30 days. With --keep-metrics, the tool removes all checkpoints,
    too. Results are kept, and rb-train trains a network again if its checkpoint is needed. Files of work in
    progress are never removed, and while work is in progress, no checkpoint is removed.

    --max-size and --older-than also remove results, which are then computed again when they are needed. The
    file system records when a file was read, often only once a day. Baselines of rb-rank and answers of
    models that can only be queried are kept.
    """
    limits = upkeep.Limits(
        _amount(typed.max_size, _BYTES, "--max-size", "a size, such as 500M or 10G"),
        _amount(typed.older_than, _AGES, "--older-than", "an age, such as 12h, 90d or 8w"),
    )
    cleared = upkeep.clear(store, keep_metrics=typed.keep_metrics, limits=limits, dry_run=typed.dry_run)
    gone: dict[str, list[int]] = {}
    for garbage in cleared.garbage:
        counts = gone.setdefault(garbage.kind, [0, 0])
        counts[0] += 1
        counts[1] += garbage.bytes
    gone["total"] = [sum(column) for column in zip(*gone.values(), strict=True)] or [0, 0]
    with contextlib.closing(RecordWriter()) as output:
        rows = [
            {"schema": SCHEMA, "kind": kind, "files": n, "bytes": size} for kind, (n, size) in gone.items()
        ]
        _show([{**row, "dry_run": True} for row in rows] if typed.dry_run else rows, output)
    files, size = gone["total"]
    verb = "would be freed" if typed.dry_run else "freed"
    screen.say(f"{_in_bytes(size)} in {_counted(files, 'file')} {verb}.")
    if cleared.live and (typed.keep_metrics or limits != upkeep.NO_LIMITS):
        screen.warn(
            "results and checkpoints were kept because of work in progress"
            f" ({_counted(len(cleared.live), 'piece')}). Run this again when it is finished."
        )
    return shared.DONE


def _show(rows: list[dict[str, Any]], output: RecordWriter) -> None:
    if not output.is_terminal():
        for row in rows:
            output.line(dumps(row))
        return
    width = max(len(row["kind"]) for row in rows)
    for row in rows:
        disk = f"  {_in_bytes(row['disk_bytes']):>9} on disk" if "disk_bytes" in row else ""
        output.line(
            f"{row['kind']:<{width}}  {row['files']:>9,}  {_in_bytes(row['bytes']):>9}{disk}".encode()
        )


def _in_bytes(count: float) -> str:
    """Format a number of bytes: 1234567 as "1.2 MB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _counted(count: int, word: str) -> str:
    return f"{count:,} {word}{'s' * (count != 1)}"


@shared.group(ls=ls, du=du, verify=verify, gc=gc)
def main() -> None:
    """List, check and clean stored results.

    A store is a folder that can be moved, for example with tar.

    \b
    Examples:
      rb-store ls --kind training --where 'train.method == "trades"' | rb-attack pgd --eps 8
      rb-store ls --where 'pgd20.8 > 0.5' | rb-rank --by pgd20.8 --aggregate seed
      rb-store du
      rb-store verify --delete
      rb-store gc --keep-metrics --dry-run
      rb-store gc --max-size 10G --older-than 90d
    """


if __name__ == "__main__":
    main()
