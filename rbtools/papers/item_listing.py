"""The items of the papers in words: `python -m rbtools.papers list`, and `show PAPER.figure-3` for one."""

from __future__ import annotations

from pathlib import Path

from rbtools.errors import RbError, near
from rbtools.papers import items

WIDTH = 6.5  # of figures, in inches, as they are drawn without --width


def listed() -> str:
    """A line for each item of every paper: PAPER.figure-3, its caption, its verdict."""
    found = _items("mini")
    return "\n".join(f"{name}  {item.caption} ({item.verdict})" for name, (_, item) in found.items())


def shown(name: str, scale: str) -> str:
    """An item by its name in the list: caption, axes, the command lines of its panels at a scale (or what
    makes a table, or why nothing does), remarks, what is missing below full scale, verdict.

    Raises RbError for a name that is not in the list.
    """
    found = _items(scale)
    if name not in found:
        raise RbError(f"There is no item '{name}'.{near(name, found)} python -m rbtools.papers list has all.")
    paper, item = found[name]
    records = item.of or items.paper(paper, scale).records
    commands = item.commands(Path("reproduced", paper), WIDTH).values()
    made = f"make figures-{paper} SCALE={scale}, from the records of make reproduce-{records} SCALE={scale}"
    fields = {
        "axes": item.axes,
        "made by": "\n    ".join([item.reason or made, *commands]),
        "missing values": item.maker,
        "note": item.note,
        "at this scale": "" if scale == "full" else item.lacks,
        "verdict": item.verdict,
    }
    lines = [f"  {key}: {text}" for key, text in fields.items() if text]
    return "\n".join([f"{name}: {item.caption}", *lines])


def _items(scale: str) -> dict[str, tuple[str, items.Item]]:
    """The items of all papers with their papers, by PAPER.figure-3."""
    return {
        f"{paper}.{number.replace(' ', '-')}": (paper, item)
        for paper in items.NAMES
        for number, item in items.paper(paper, scale).items.items()
    }
