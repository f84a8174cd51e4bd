"""Stores the answers of a model for each image that was sent, so that no image is sent twice."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from rbtools.errors import RbError

_PATIENCE = 60.0  # seconds to wait for another process that writes
_AT_ONCE = 500  # values in a question of SQLite
_LAYOUT = (
    "CREATE TABLE IF NOT EXISTS answers (image BLOB PRIMARY KEY, answer BLOB) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS about (one INTEGER PRIMARY KEY, fields TEXT)",
)


class KeptAnswers:
    """Answers (bytes) by digests of images (bytes), in an SQLite file, or in memory if `path` is None.

    `about` describes the model, and creates a file that does not exist. Several processes may use the file at
    the same time. An answer is on the disk when `keep` returns. Raises RbError if the file is damaged or
    cannot be written.
    """

    def __init__(self, path: Path | None, about: Mapping[str, Any] | None = None) -> None:
        self.path = path
        with self._explained():
            self._file = sqlite3.connect(path or ":memory:", timeout=_PATIENCE, check_same_thread=False)
            for statement in _LAYOUT if about is not None else ():
                with self._file:
                    self._file.execute(statement)
            if about is not None:
                with self._file:
                    text = orjson.dumps(dict(about)).decode()
                    self._file.execute("INSERT OR IGNORE INTO about VALUES (1, ?)", (text,))

    def about(self) -> tuple[dict[str, Any], int]:
        """The fields that describe the model, and the number of its answers. The complete file is checked."""
        with self._explained():
            if self._file.execute("PRAGMA quick_check").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("it is damaged")
            (text,) = self._file.execute("SELECT fields FROM about").fetchone()
            (count,) = self._file.execute("SELECT count(*) FROM answers").fetchone()
        return dict(orjson.loads(text)), int(count)

    def of(self, images: Sequence[bytes]) -> dict[bytes, bytes]:
        """The stored answers for these images."""
        found: dict[bytes, bytes] = {}
        with self._explained():
            for start in range(0, len(images), _AT_ONCE):
                some = images[start : start + _AT_ONCE]
                marks = ",".join("?" * len(some))
                found |= self._file.execute(
                    f"SELECT image, answer FROM answers WHERE image IN ({marks})", some
                ).fetchall()
        return found

    def keep(self, answers: dict[bytes, bytes]) -> None:
        with self._explained(), self._file:
            self._file.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", answers.items())

    def close(self) -> None:
        self._file.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, TypeError, ValueError) as error:
            raise RbError(
                f"The stored answers in {self.path} cannot be used: {error}. Check the store's permissions,"
                " or remove a damaged file with rb-store verify --delete."
            ) from None
