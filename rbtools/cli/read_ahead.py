"""Reads lines ahead in a thread, so that the number of lines is known early."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

from rbtools.records import Line

MOST_BYTES = 8 << 20  # of text in memory: the records of 6,466 architectures have 4 MB


class ReadAhead:
    """The lines of an iterator. `count` is the number of results for the lines that were read so far, and
    `ended` is true after the last line. The thread calls `wake` after each line."""

    def __init__(
        self, lines: Iterator[Line], results: Callable[[Line], int], wake: Callable[[], None] = lambda: None
    ) -> None:
        self.count, self.ended = 0, False
        self._lines, self._results, self._wake = lines, results, wake
        self._held: deque[Line] = deque()
        self._bytes = 0
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def __iter__(self) -> Iterator[Line]:
        self.begin()
        while self.left:
            with self._changed:
                self._changed.wait_for(lambda: self._held or self.ended)
            line = self.take()
            if line is not None:
                yield line

    def begin(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def left(self) -> bool:
        """True if `take` has a line to return or an error to raise."""
        return not self.ended or bool(self._held) or self._error is not None

    def take(self) -> Line | None:
        """The next line; None if no line is ready. Raises the error at which reading ended."""
        with self._changed:
            if self._held:
                line = self._held.popleft()
                self._bytes -= len(line.text)
                self._changed.notify()
                return line
            if self.ended and self._error is not None:
                raise self._error
            return None

    def _hold(self, line: Line) -> None:
        self._held.append(line)
        self._bytes += len(line.text)
        self.count += self._results(line)
        self._wake()

    def _read(self) -> None:
        error: BaseException | None = None
        try:
            for line in self._lines:
                with self._changed:
                    self._changed.wait_for(lambda: self._bytes < MOST_BYTES)
                    self._hold(line)
                    self._changed.notify()
        except BaseException as wrong:
            error = wrong
        with self._changed:
            self._error, self.ended = error, True
            self._changed.notify()
        self._wake()
