"""The items of the papers: every numbered figure, table, theorem and algorithm, a file a paper in items/.

A file has the paper's `title`, the reproduction (reproduce_NAME.py) whose `records` are drawn, and the
`items`. An item has a caption in our words, and what makes it here: the `panel` or `panels` of a figure, the
`reason` why nothing does, or neither: then it is a table of the reproduction. A panel is a call of a tool,
as in `{plot: curves, metric: pr.uniform.*}`, or a list of calls, each on the records of the one before.

`columns` are those of the paper's tables, with the metrics of our records that stand in them. {NAME} stands
in any text for one of the file's `words`, which may use the words before it. A word or a metric may differ
between the scales (`packaged`). Lists are joined by commas. An option or a column without a value is left
out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rbtools.papers import packaged
from rbtools.plots.base import LEAST_WIDTH

WIDTH = 6.5  # of a figure, in inches, where nothing else is said
NAMES = ("nas-robbench-201", "robustness-dataset", "prbench", "wci", "theory")


def records_file(of: str) -> str:
    """The file of what figures draw of the paper's reproduction, or of that of another paper."""
    return f"records-{of}.jsonl" if of else "records.jsonl"


class PanelCall(NamedTuple):
    """A call of a tool: its name without rb-, what to do (`curves` of `rb-plot curves`), and its options; the
    value of a switch is True."""

    tool: str
    words: list[str]
    options: Mapping[str, Any]

    def line(self) -> list[str]:
        """The words of the command line."""
        words = [f"rb-{self.tool}", *self.words]
        for name, value in self.options.items():
            words += [f"--{name}"] if value is True else [f"--{name}", value]
        return words


class Item(NamedTuple):
    """A numbered figure, table, theorem or algorithm.

    axes: what the paper's item has along its axes, or as rows and columns. verdict: "as in the paper", or
    what differs and why. lacks: what is missing below full scale. note: a remark at every scale. The page
    ends these with a full stop. of: the reproduction whose records are drawn, where it is another paper's.
    from_records: whether any are. columns: panels in a row. maker: what makes the records of a table, if it
    is not the reproduction alone.
    """

    number: str
    caption: str
    axes: str
    verdict: str
    panels: Mapping[str, list[PanelCall]]
    reason: str = ""
    lacks: str = ""
    note: str = ""
    of: str = ""
    from_records: bool = True
    columns: int = 2
    maker: str = ""

    @property
    def stem(self) -> str:
        """The name of its files, without ending."""
        return self.number.replace("figure ", "fig") if self.panels else self.number.replace(" ", "")

    @property
    def detail(self) -> str:
        """Which details of evaluations a figure shows; empty if none."""
        kinds = (calls[-1].words[0] for calls in self.panels.values())
        return next((kind for kind in kinds if kind in ("confidence", "confusion")), "")

    @property
    def records(self) -> str:
        """The file, in the folder of the paper's figures, that the item is drawn from."""
        if self.detail:
            return f"{self.number.replace(' ', '')}.jsonl"
        return records_file(self.of)

    def width_of_panel(self, width: float) -> float:
        """The width of one of the panels that share a row of that width (inches). There are fewer in a row
        where they would be narrower than rb-plot draws."""
        return width / max(1, min(self.columns, len(self.panels), int(width / LEAST_WIDTH)))

    def commands(self, folder: Path, width: float) -> dict[str, str]:
        """The command line of each panel, by its letter. folder: of the paper's figures; width: of the whole
        figure, in inches."""
        lines = {}
        for letter, calls in self.panels.items():
            stages = [call.line() for call in calls]
            file = folder / f"{self.stem}{letter}.pdf"
            stages[-1] += ["-o", str(file), "--width", f"{self.width_of_panel(width):g}"]
            stages[0] += [str(folder / self.records)] if self.from_records else []
            lines[letter] = " | ".join(" ".join(map(_quoted, words)) for words in stages)
        return lines


class Paper(NamedTuple):
    """A paper: its title, the reproduction (reproduce_NAME.py) that has its records, the metrics of our
    records by the columns of its tables, its items by number, and its claims: words, and comparisons of
    values by their columns or rows (see `sidebyside.tested`)."""

    title: str
    records: str
    columns: Mapping[str, str]
    items: Mapping[str, Item]
    claims: Sequence[tuple[str, Mapping[str, list[str]]]]


@cache
def paper(name: str, scale: str) -> Paper:
    """A paper's items with the words of a scale."""
    content = packaged.read(f"items/{name}.yaml")
    words: dict[str, str] = {}
    for word, value in packaged.at_scale(content.get("words", {}), scale).items():
        words[word] = _filled(value, words)
    metrics = packaged.at_scale(content.get("columns", {}), scale)
    columns = {name: _filled(metric, words) for name, metric in metrics.items()}
    items = {number: _item(number, fields, words) for number, fields in content["items"].items()}
    known = {name: metric for name, metric in columns.items() if metric}
    claims = [_claim(one, words) for one in content.get("claims", ())]
    return Paper(content["title"], content["records"], known, items, claims)


def _claim(fields: dict[str, Any], words: Mapping[str, str]) -> tuple[str, dict[str, list[str]]]:
    """The words of a claim, by default its comparison, and what it compares."""
    says = fields.pop("says", None)
    tests = {
        _filled(place, words): [_filled(one, words) for one in (test if isinstance(test, list) else [test])]
        for place, test in fields.items()
    }
    place, (test, *_) = next(iter(tests.items()))
    return says or f"{place}: {test.replace(' > ', ' above ')}", tests


def _item(number: str, fields: dict[str, Any], words: Mapping[str, str]) -> Item:
    panels = fields.pop("panels", {})
    if "panel" in fields:
        panels = {"": fields.pop("panel")}
    calls = {
        letter: [_call(one, words) for one in (panel if isinstance(panel, list) else [panel])]
        for letter, panel in panels.items()
    }
    texts: dict[str, Any] = {
        name: _filled(one, words) if isinstance(one, str) else one for name, one in fields.items()
    }
    return Item(number, panels=calls, **texts)


def _call(fields: Mapping[str, Any], words: Mapping[str, str]) -> PanelCall:
    (tool, what), *options = fields.items()
    filled = {name: value if value is True else _filled(value, words) for name, value in options}
    return PanelCall(tool, what.split(), {name: value for name, value in filled.items() if value})


def _filled(value: Any, words: Mapping[str, str]) -> str:
    """The text of a value, or of a list with commas, with words in their places."""
    texts = value if isinstance(value, list) else [value]
    return ",".join(str(text).format_map(words) for text in texts)


def _quoted(word: str) -> str:
    """A word as a shell takes it: expressions with texts in them, which are many, in double quotes."""
    plain = "'" in word and not re.search(r'["$`\\]|!(?!=)', word)
    return f'"{word}"' if plain else shlex.quote(word)
