"""The live table of rb-card: what is known of each part, what runs, and what comes next."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rbtools.report import clock_time

Event = dict[str, Any]
_FRAMES = 2  # a second


class CardTable:
    """Drawn on standard error while a card is made; `hear` takes the events of the terminal."""

    def __init__(self, seconds: float | None) -> None:
        self._limit, self._begin = seconds, time.monotonic()
        self._event: Event | None = None
        console = Console(file=sys.stderr)
        self._live = Live(self, console=console, refresh_per_second=_FRAMES, transient=True)

    def __enter__(self) -> CardTable:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def hear(self, event: Event, record: dict[str, Any] | None) -> None:
        """Show how a card stands."""
        if event["event"] == "card":
            self._event = event
            self._live.refresh()

    def __rich__(self) -> Group | Text:
        if self._event is None:
            return Text("rb-card: the first look begins.")
        return Group(table(self._event), Text(self._status(self._event)))

    def _status(self, event: Event) -> str:
        spent = time.monotonic() - self._begin
        text = clock_time(spent) + ("" if self._limit is None else f" of {clock_time(self._limit)}")
        if event["running"] is not None:
            text += f" · {event['running']} runs"
            text += f" on {event['n']:,} images"
        return text + " · Ctrl-C writes the card as it stands"


def table(event: Event) -> Table:
    """A row for each part: value, interval, images, share of the time, and its first metric."""
    drawn = Table(box=None, pad_edge=False, expand=True)
    for name, side in (
        ("part", "left"),
        ("value", "right"),
        ("interval", "right"),
        ("images", "right"),
        ("time", "right"),
    ):
        drawn.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    drawn.add_column("metric", no_wrap=True, ratio=1)  # it is cut off where the terminal is narrow
    total = sum(row["seconds"] for row in event["parts"]) or 1.0
    for row in event["parts"]:
        drawn.add_row(*_cells(row, total))
    return drawn


def _cells(row: dict[str, Any], total: float) -> list[str]:
    name, metric, share = str(row["part"]), str(row["metric"]), f"{row['seconds'] / total:.0%}"
    if "reason" in row:
        return [name, "", "not measured", "", share, str(row["reason"])]
    if row["value"] is None:
        return [name, "", "", "", share, metric]
    ends = row["ci95"]
    interval = "" if ends is None else f"{ends[0]:.3f} to {ends[1]:.3f}"
    return [name, f"{row['value']:.3f}", interval, f"{row['n']:,}", share, metric]
