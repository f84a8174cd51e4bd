"""Reads and writes the last accepted record of `rb-rank --baseline`, in a file or in the store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rbtools.cli import streams
from rbtools.cli.source import model_of
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError, UsageError
from rbtools.records import dumps
from rbtools.store import Store, digest
from rbtools.store.files import check_folder_of, user_output

Record = dict[str, Any]
_OF_A_RANKING = ("rank", "band", "rank_ci95", "ranking", "pareto", "paired", "published", "per_class")


class Baseline:
    """The last accepted record, which is kept in a file or in the store (one per data set and label)."""

    def __init__(self, place: str, label: str | None, store: str) -> None:
        if place.startswith("store:"):
            label = place.removeprefix("store:")
            raise UsageError(f"--baseline is '{place}'. Write --baseline store --baseline-label '{label}'.")
        self.place, self.label = place, label or ""
        self.store = Store(store) if place == "store" else None
        if self.store is None:
            if label is not None:
                raise UsageError("--baseline-label selects a record in the store. Add --baseline store.")
            check_folder_of(Path(place))

    def accepted(self, ranked: Record) -> Record | None:
        if self.store is not None:
            found = self.store.result(digest(self._key(ranked)))
            return found if isinstance(found, dict) else None
        if not os.path.exists(self.place):
            return None
        try:
            return streams.of_command().one_record(self.place, "compare with")
        except RbError as wrong:
            raise UsageError(f"--baseline: {wrong}") from None

    def accept(self, ranked: Record, screen: Terminal) -> None:
        """Replace the last accepted record. Raises RbError if the new record cannot be written."""
        record = {name: value for name, value in ranked.items() if name not in _OF_A_RANKING}
        if self.store is not None:
            key, about = self._key(ranked), {"arch": record["arch"]}
            self.store.keep_result(digest(key), key, record, about)
            if self.store.trouble:
                raise RbError(f"--baseline: {self.store.trouble}")
        else:
            with user_output(Path(self.place).absolute(), hint="Name another file.") as stream:
                stream.write(dumps(record) + b"\n")
        screen.say(f"the baseline in {self.place} is now {model_of(record)}.")

    def _key(self, ranked: Record) -> Record:
        return {"kind": "baseline", "dataset": ranked.get("dataset"), "label": self.label}
