"""No room of the package is larger than its budget: lines of Python, docstrings and blank lines counted.

A budget is raised in the commit of the feature that needs it, with the reason; it is lowered with its room.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = {
    name: int(lines)
    for name, lines in (
        line.split() for line in (ROOT / "tests" / "budgets.txt").read_text("utf-8").splitlines()
    )
}


def test_no_room_exceeds_its_budget() -> None:
    sizes: Counter[str] = Counter()
    for folder in ("rbtools", "tests", "bench"):
        for path in (ROOT / folder).rglob("*.py"):
            inside = path.relative_to(ROOT).parts
            room = f"rbtools/{inside[1]}" if folder == "rbtools" and len(inside) > 2 else folder
            sizes[room] += path.read_text("utf-8").count("\n")
    too_large = {
        room: f"{lines} lines, budget {BUDGETS.get(room, 0)}"
        for room, lines in sizes.items()
        if lines > BUDGETS.get(room, 0)
    }
    assert not too_large
    assert sizes.keys() == BUDGETS.keys()
