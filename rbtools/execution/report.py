"""Callbacks for messages and progress, and for interrupting work that takes long."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rbtools.errors import RbError


def discard(*ignored: object) -> None:
    """Ignore a message, an event or a count."""


class Clock:
    """Measures the seconds spent in each stage of a job, which -v shows."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = 0.0  # the seconds of nested stages, which are subtracted

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time spent in the `with` block, without the time of nested stages."""
        outer, self._inner = self._inner, 0.0
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - self._inner
            self._inner = outer + spent


_WARM_UP = 3.0  # seconds after which the time left is estimated from passes


class Pace:
    """The rate and the remaining time of `total` units of work, of which `done` were finished before."""

    def __init__(self, total: int, done: int = 0, unit: str = "images") -> None:
        self.total, self.first, self.unit = total, done, unit
        self.start = time.monotonic()

    def words(self, done: int, passes: float = 0, expected: float = 0) -> str:
        """A string like `42 s left · 1,234 images/s`, empty until the first unit is done. If `passes` were
        made and more are `expected`, they determine the time even before the first unit is done."""
        seconds = time.monotonic() - self.start
        parts = []
        if done > self.first and seconds > 0:
            rate = (done - self.first) / seconds
            parts.append(f"{rate:,.0f} {self.unit}/s" if rate >= 10 else f"{rate:.2g} {self.unit}/s")
        if passes and seconds > _WARM_UP:
            most = "" if parts else "at most "
            parts.append(f"{most}{short_time(expected * seconds / passes)} left")
        elif parts:
            parts.append(f"{short_time((self.total - done) * seconds / (done - self.first))} left")
        return " · ".join(reversed(parts))  # a narrow terminal cuts the end


def without_time(text: str) -> str:
    """A progress message without the remaining time that its `Pace` added."""
    return re.sub(r" · (at most )?[\w ]+ left(?= · |$)", "", text)


def short_time(seconds: float) -> str:
    """A duration such as `42 s`, or in words if it is a minute or longer."""
    return f"{max(seconds, 0.0):.0f} s" if seconds < 60 else in_words(seconds)


def in_words(seconds: float) -> str:
    """An estimated duration, such as `12 minutes`, `4 h 20 min` or `3 days`."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 100:
        return f"{minutes} minute{'s' * (minutes > 1)}"
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes < 4320 else f"{minutes / 1440:.0f} days"


def clock_time(seconds: float) -> str:
    """A duration such as `0:42` or `1:02:03`."""
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass(frozen=True)
class Report:
    """Callbacks that report on work in progress.

    `progress` is called with the text of the status line, `event` with the same content for programs,
    `notify` with messages for people, and `warn` with warnings. Each text is a single line. `check_cancelled`
    is called between units of work, and raises an exception if the work should stop because nobody reads the
    output any more. `clock` measures the time spent in each stage.
    """

    progress: Callable[[str], None] = discard
    event: Callable[[dict[str, Any]], None] = discard
    notify: Callable[[str], None] = discard
    warn: Callable[[str], None] = discard
    check_cancelled: Callable[[], None] = discard
    clock: Clock = field(default_factory=Clock)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the object without its callbacks, which belong to this process."""
        return {**Report().__dict__, "clock": self.clock}


SILENT = Report()


@contextlib.contextmanager
def progress_of(progress: bool | Callable[[str], None] | None) -> Iterator[Callable[[str], None] | None]:
    """Yields the callback for an argument `progress=` in Python: the function itself, a tqdm progress bar
    for True, and None for False and None. Raises RbError if tqdm is not installed."""
    if not isinstance(progress, bool):
        yield progress
        return
    if not progress:
        yield None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise RbError(
            "progress=True needs tqdm, which is not installed. Install it with pip install tqdm, or pass a"
            " function that takes a line of text, such as progress=print."
        ) from None
    with tqdm(bar_format="{desc} [{elapsed}]", leave=False) as bar:
        yield bar.set_description_str
