"""How fast work goes and how long the rest takes, for the status line."""

from __future__ import annotations

import time


class Progress:
    """The pace of so many units of work in all, of which some are done already."""

    def __init__(self, total: int, done: int = 0, unit: str = "images") -> None:
        self.total, self.first, self.unit = total, done, unit
        self.start = time.monotonic()

    def words(self, done: int) -> str:
        """`1,234 images/s  0:42 left`; nothing before the first unit is done."""
        seconds = time.monotonic() - self.start
        if done <= self.first or seconds <= 0:
            return ""
        rate = (done - self.first) / seconds
        shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        return f"{shown} {self.unit}/s  {clock((self.total - done) / rate)} left"


def clock(seconds: float) -> str:
    """`0:42`, `1:02:03`."""
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
