"""The answers on single images in entries of records, with a warning if answers are damaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rbtools.cli.source import name_of
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError
from rbtools.lazy import np
from rbtools.records import answers, metric_name, results

Record = Mapping[str, Any]


class ImageAnswers:
    """The answers in entries of records. Damaged answers are reported once, and count as unknown."""

    def __init__(self, screen: Terminal) -> None:
        self._screen = screen

    def shares(self, record: Record, entry: Record) -> tuple[np.ndarray, np.ndarray] | None:
        """For each image the contribution to an entry's value, 0 or 1, and whether it counts: float32 (N,)
        each. The value is the quotient of their sums. None if this is not known.

        If only correct images count, as in probabilistic accuracy, the entry of the clean accuracy shows
        which images are correct.
        """
        own = self._known(record, entry)
        if own is None:
            return None
        counts = np.ones(len(own.right), bool)
        if entry["n"] != len(own.right):
            name = metric_name.split_name("acc", str(entry.get("split")))
            clean = self._known(record, results.last_entry(record, name))
            if clean is None or clean.examples != own.examples:
                return None
            counts = clean.right[: len(own.right)]
            if len(counts) != len(own.right) or counts.sum() != entry["n"]:
                return None
        return own.right.astype(np.float32), counts.astype(np.float32)

    def counted(self, record: Record, entry: Record) -> answers.Answers | None:
        """Which images count in an entry's value. None if this is unknown, or if it is no share of all n."""
        own = self._known(record, entry)
        return own if own is not None and len(own.right) == entry["n"] else None

    def _known(self, record: Record, entry: Record) -> answers.Answers | None:
        try:
            return answers.of(entry)
        except RbError as wrong:
            self._screen.once(f"warning: {name_of(dict(record))}: {wrong}")
            return None
