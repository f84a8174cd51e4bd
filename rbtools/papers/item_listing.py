"""Describe the items and claims of the papers: `python -m rbtools.papers list`, and `show NAME` for one of
them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rbtools.errors import RbError, near
from rbtools.papers import items, pipes, recipes


def listed() -> str:
    """A line for each item and claim of every paper: its name (such as PAPER.figure-3), caption and
    verdict."""
    lines = []
    for name, (_, text, fields) in _all("mini").items():
        verdict = f" ({fields['verdict']})" if "verdict" in fields else ""
        lines.append(f"{name}  {text}{verdict}")
    return "\n".join(lines)


def shown(name: str, scale: str) -> str:
    """The description of an item or a claim at a scale: what it shows, the command lines of its panels and of
    the recipe for its records (or the reason why there are none), what is missing, and the verdict.

    Raises RbError if the name is not in the list.
    """
    found = _all(scale)
    if name not in found:
        raise RbError(f"There is no item '{name}'.{near(name, found)} python -m rbtools.papers list has all.")
    recipe, text, fields = found[name]
    lines = [f"  {key}: {one}".replace(": \n", ":\n") for key, one in fields.items() if one]
    if recipe:
        made = pipes.shown(recipes.pipe(recipe, recipes.Setting(scale)), "    ")
        lines += [f"  records, made by make reproduce-{recipe} SCALE={scale}:", *made]
    return "\n".join([f"{name}: {text}", *lines])


Listed = tuple[str, str, Mapping[str, str]]
"""The recipe that makes the records, if any, a text, and further fields."""


def _all(scale: str) -> dict[str, Listed]:
    return {f"{paper}.{name}": one for paper in items.NAMES for name, one in _of_paper(paper, scale)}


def _of_paper(name: str, scale: str) -> Iterator[tuple[str, Listed]]:
    paper = items.paper(name, scale)
    for number, item in paper.items.items():
        commands = item.commands(Path("reproduced", name), items.WIDTH).values()
        fields = {
            "axes": item.axes,
            f"drawn by make figures-{name} SCALE={scale}": "\n    ".join(["", *commands]),
            "not made": item.reason,
            "missing values": item.maker,
            "note": item.note,
            "at this scale": "" if scale == "full" else item.lacks,
            "verdict": item.verdict,
        }
        recipe = "" if item.reason else item.of or paper.records
        yield number.replace(" ", "-"), (recipe, item.caption, fields)
    for place, (words, tests) in enumerate(paper.claims, 1):
        tested = "; ".join(f"{at}: {one}" for at, some in tests.items() for one in some)
        yield f"claim-{place}", (paper.records, words, {"tested as": tested})
