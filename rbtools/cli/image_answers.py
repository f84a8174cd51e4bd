"""Reads the results for single images (answers) from the entries of records."""

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
    """Reads per-image results; damaged answers cause one warning and count as unknown."""

    def __init__(self, screen: Terminal) -> None:
        self._screen = screen

    def shares(self, record: Record, entry: Record) -> tuple[np.ndarray, np.ndarray] | None:
        """Two float32 arrays (N,): the contribution of each image to the entry's value (0 or 1), and whether
        the image counts (0 or 1). The value is the sum of the contributions divided by the number of
        images that count. Returns None if the answers are unknown.

        If only correct images count, as in probabilistic accuracy, the entry of the clean accuracy determines
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
        """The answers; None if they are unknown, or if the value is not a share of all n images."""
        own = self._known(record, entry)
        return own if own is not None and len(own.right) == entry["n"] else None

    def _known(self, record: Record, entry: Record) -> answers.Answers | None:
        try:
            return answers.of(entry)
        except RbError as wrong:
            self._screen.once(f"warning: {name_of(dict(record))}: {wrong}")
            return None
