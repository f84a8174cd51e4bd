"""Write bench/RESULTS.md from bench/results.jsonl, one line a figure.

    python bench/results.py             write RESULTS.md anew
    python bench/results.py --check     status 1 if it is not what results.jsonl prints

A figure is {claim, command, machine, date, value, unit, peer, ratio, note}; `claim` is "TOPIC: what was
measured", and a topic is a table. `ratio` is how many times better than the peer. A new figure is a new
line; one that it replaces goes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FIELDS = ("claim", "command", "machine", "date", "value", "unit", "peer", "ratio", "note")
HEAD = """# Measured figures

`python bench/results.py` writes this page from `bench/results.jsonl`. Every figure has the command that
measured it (the topic's, unless its note begins with another one), and depends on the machine: compare
figures of one machine only. "Goal" is what a figure has to reach.
"""


def figures() -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (HERE / "results.jsonl").read_text("utf-8").splitlines()]
    for figure in found:
        if tuple(figure) != FIELDS or ": " not in figure["claim"]:
            raise SystemExit(f"results.jsonl: a figure needs {', '.join(FIELDS)}, in this order: {figure}")
    return found


def cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|")


def page() -> Iterator[str]:
    """The lines of RESULTS.md."""
    yield HEAD
    found = figures()
    letters = dict(zip(dict.fromkeys(figure["machine"] for figure in found), "ABCDEFGHIJKLM", strict=False))
    yield "Machines: " + "; ".join(f"**{letter}** {machine}" for machine, letter in letters.items()) + "."
    for topic, group in groupby(found, lambda figure: figure["claim"].partition(": ")[0]):
        rows = list(group)
        usual = rows[0]["command"]
        yield f"\n## {topic}\n\n`{usual}`\n\n| figure | measured | beside | times | when, where | note |"
        yield "|---|---|---|---|---|---|"
        for row in rows:
            other = "" if row["command"] == usual else f"`{row['command']}`"
            note = "; ".join(part for part in (other, row["note"]) if part)
            measured = f"{row['value']} {row['unit']}".strip()
            when = f"{row['date']}, {letters[row['machine']]}"
            cells = (row["claim"].partition(": ")[2], measured, row["peer"], row["ratio"], when, note)
            yield f"| {' | '.join(cell(value) for value in cells)} |"


def main() -> int:
    text = "\n".join(page()) + "\n"
    file = HERE / "RESULTS.md"
    if "--check" in sys.argv:
        return int(text != file.read_text("utf-8"))
    file.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
