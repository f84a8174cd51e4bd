"""Descriptions of the items and claims of papers, for `python -m rbtools.papers list` and `show NAME`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rbtools.errors import RbError, near
from rbtools.papers import items, packaged, pipes, recipes

DEFAULT = Path("reproduced")


def listed() -> str:
    """One line for each item and claim of every paper: name (PAPER.figure-3), caption and verdict."""
    lines = []
    for name, (_, text, fields) in _all("mini").items():
        verdict = f" ({fields['verdict']})" if "verdict" in fields else ""
        lines.append(f"{name}  {text}{verdict}")
    return "\n".join(lines)


def described(name: str, setting: recipes.Setting, folder: Path = DEFAULT, width: float = items.WIDTH) -> str:
    """The description of an item or a claim; `width` is the width of figures in inches. Raises RbError if no
    item or claim has this name."""
    found = _all(setting.scale, folder, width)
    if name not in found:
        raise RbError(f"There is no item '{name}'.{near(name, found)} See python -m rbtools.papers list.")
    recipe, text, fields = found[name]
    lines = [f"  {key}: {one}".replace(": \n", ":\n") for key, one in fields.items() if one]
    if recipe:
        made = pipes.lines(recipes.pipe(recipe, setting), "    ")
        lines += [f"  records, created by make reproduce-{recipe} SCALE={setting.scale}:", *made]
    return "\n".join([f"{name}: {text}", *lines])


# The recipe that makes the records ("" if there is none), a text, and further fields.
Listed = tuple[str, str, Mapping[str, str]]


def _all(scale: str, folder: Path = DEFAULT, width: float = items.WIDTH) -> dict[str, Listed]:
    return {
        f"{paper}.{name}": one
        for paper in items.NAMES
        for name, one in _of_paper(paper, scale, folder / paper, width)
    }


def _of_paper(name: str, scale: str, folder: Path, width: float) -> Iterator[tuple[str, Listed]]:
    paper = items.paper(name, scale)
    for number, item in paper.items.items():
        commands = item.commands(folder, width).values()
        fields = {
            "axes": item.axes,
            f"drawn by make figures-{name} SCALE={scale}": "\n    ".join(["", *commands]),
            "not made": item.reason,
            "missing values": item.maker,
            "note": item.note,
            "at this scale": "" if scale in packaged.FULL else item.lacks,
            "verdict": item.verdict,
        }
        recipe = item.of or paper.records if item.from_records and not item.reason else ""
        yield number.replace(" ", "-"), (recipe, item.caption, fields)
    for place, (words, tests) in enumerate(paper.claims, 1):
        tested = "; ".join(f"{at}: {one}" for at, some in tests.items() for one in some)
        yield f"claim-{place}", (paper.records, words, {"tested as": tested})
