"""The live table of rb-card, which shows the results of each part so far and the part that is running."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rbtools.execution.report import clock_time

Event = dict[str, Any]


@contextlib.contextmanager
def live_table(seconds: float | None) -> Iterator[Callable[[Event, dict[str, Any] | None], None]]:
    """Draw the table on standard error. Yields a function that accepts the events of the terminal."""
    begin, latest = time.monotonic(), list[Event]()

    def drawn() -> Group | Text:
        if not latest:
            return Text("rb-card: measuring the first images.")
        spent = time.monotonic() - begin
        text = clock_time(spent) + ("" if seconds is None else f" of {clock_time(seconds)}")
        if latest[-1]["running"] is not None:
            text += f" · {latest[-1]['running']} runs on {latest[-1]['n']:,} images"
        return Group(table(latest[-1]), Text(text + " · Ctrl-C writes the card with these results"))

    console = Console(file=sys.stderr)
    with Live(console=console, get_renderable=drawn, refresh_per_second=2, transient=True) as live:

        def hear(event: Event, record: dict[str, Any] | None) -> None:
            if event["event"] == "card":
                latest[:] = [event]
                live.refresh()

        yield hear


def table(event: Event) -> Table:
    drawn = Table(box=None, pad_edge=False, expand=True)
    drawn.add_column("part", no_wrap=True)
    for name in ("value", "interval", "images", "time"):
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("metric", no_wrap=True, ratio=1)  # cut off if the terminal is narrow
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
