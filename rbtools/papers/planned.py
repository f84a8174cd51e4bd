"""The sum of what the stages of a dry run say: the `plan` events of their log."""

from __future__ import annotations

from pathlib import Path

import orjson


def in_words(log: Path) -> str:
    """How many results the store has and lacks."""
    if not log.exists():
        return "no stage ran."
    with log.open("rb") as lines:  # among them is one for each record of each stage
        events = [event for event in map(orjson.loads, lines) if event["event"] in ("plan", "end")]
    failed = sum(event["event"] == "end" and event["status"] != 0 for event in events)
    plans = [event for event in events if event["event"] == "plan"]
    found, missing = (sum(plan[name] for plan in plans) for name in ("found", "missing"))
    left_out = f" Stages that failed, whose work is not in it: {failed}." if failed else ""
    return f"in all: {found:,} results in the store, {missing:,} to compute.{left_out}"
