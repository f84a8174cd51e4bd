"""Curves of trainings for TensorBoard: `rb-train --log tensorboard:DIR`."""

from __future__ import annotations

import os
import re
from typing import Any

from rbtools.errors import UsageError


class Board:
    """A folder of event files, a folder in it for each training.

    Epochs are written as they end; a training that was found in the store is written from its history.
    Raises UsageError where the package is not installed, or the folder cannot be made.
    """

    def __init__(self, folder: str) -> None:
        try:
            from tensorboard.summary import Writer
        except ImportError:
            raise UsageError(
                "--log tensorboard:DIR needs the package tensorboard, which is not installed:"
                " pip install 'rbtools[tensorboard]'."
            ) from None
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"Cannot write curves into {folder}: {error.strerror}. Name another folder with tensorboard."
            ) from None
        self.folder, self._make = folder, Writer
        self._writers: dict[str, Any] = {}
        self._written: dict[str, int] = {}  # epochs of a training

    def hear(self, event: dict[str, Any], record: dict[str, Any] | None) -> None:
        """Handle an event: an epoch that ended, or a finished record."""
        if event["event"] == "epoch":
            values = {key: value for key, value in event.items() if key not in _NAMES}
            self._write(_name(event), event["epoch"], values)
        elif event["event"] == "record" and record is not None and "train" in record:
            train = record["train"]
            what = {"arch": record["arch"].get("name"), **train}
            for epoch in range(self._written.get(_name(what), 0), train["epochs"]):
                values = {key: rest[epoch] for key, rest in train["history"].items() if epoch < len(rest)}
                self._write(_name(what), epoch + 1, values)

    def _write(self, name: str, epoch: int, values: dict[str, float]) -> None:
        if name not in self._writers:
            self._writers[name] = self._make(os.path.join(self.folder, name))
        for key, value in values.items():
            self._writers[name].add_scalar(key, value, epoch)
        self._writers[name].flush()
        self._written[name] = epoch

    def close(self) -> None:
        """Write what is left."""
        for writer in self._writers.values():
            writer.close()


_NAMES = ("event", "arch", "method", "seed", "epoch", "epochs")


def _name(what: dict[str, Any]) -> str:
    name = f"{what.get('arch') or 'network'}-{what['method']}-seed{what['seed']}"
    return re.sub(r"[^\w.-]+", "-", name)
