"""Lines that are read ahead in a thread, so that the number of all is known before the last is worked on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

from rbtools.records import Line

MOST_BYTES = 8 << 20  # of text that is held: 6,466 architectures have 4 MB


class ReadAhead:
    """The lines of an iterator in their order. `count`: the results that the lines read so far will give;
    `ended`: whether that is all.
    """

    def __init__(self, lines: Iterator[Line], results: Callable[[Line], int]) -> None:
        self.count, self.ended = 0, False
        self._lines, self._results = lines, results
        self._held: deque[Line] = deque()
        self._bytes = 0
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def __iter__(self) -> Iterator[Line]:
        """Yield the lines. The first is read here, so that an error about the input knows the command."""
        first = next(self._lines, None)
        if first is None:
            self.ended = True
            return
        self._take(first)
        threading.Thread(target=self._read, daemon=True).start()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._held or self.ended)
                if not self._held:
                    break
                line = self._held.popleft()
                self._bytes -= len(line.text)
                self._changed.notify()
            yield line
        if self._error is not None:
            raise self._error

    def _take(self, line: Line) -> None:
        self._held.append(line)
        self._bytes += len(line.text)
        self.count += self._results(line)

    def _read(self) -> None:
        error: BaseException | None = None
        try:
            for line in self._lines:
                with self._changed:
                    self._changed.wait_for(lambda: self._bytes < MOST_BYTES)
                    self._take(line)
                    self._changed.notify()
        except BaseException as wrong:
            error = wrong
        with self._changed:
            self._error, self.ended = error, True
            self._changed.notify()
