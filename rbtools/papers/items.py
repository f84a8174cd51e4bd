"""The items of the papers: every numbered figure, table, theorem and algorithm. items/ has a file for each
paper.

A file has the paper's `title`, the reproduction (reproduce_NAME.py) whose `records` are drawn, and the
`items`. An item has a caption in our words. A figure has a `panel` or `panels`, and an item that is not made
has a `reason`. An item with neither is a table of the reproduction. A panel is a call of a tool, such as
`{plot: curves, metric: pr.uniform.*}`, or a list of calls, each of which reads the output of the previous
one.

`columns` maps the columns of the paper's tables to metrics of our records. In any text, {NAME} is replaced by
one of the file's `words`, which may contain previous words. A word or a metric may depend on the scale
(`packaged`). Lists are joined by commas. An option or a column without a value is left out.
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

WIDTH = 6.5  # the default width of a figure in inches
NAMES = ("nas-robbench-201", "robustness-dataset", "prbench", "wci", "theory")


def records_file(of: str) -> str:
    """The file with the records that figures draw, from the paper's reproduction or another paper's."""
    return f"records-{of}.jsonl" if of else "records.jsonl"


class PanelCall(NamedTuple):
    """A call of a tool: its name without rb-, its subcommand (`curves` of `rb-plot curves`), and its options.
    The value of a switch is True."""

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

    axes: the axes of the paper's item, or its rows and columns. verdict: "as in the paper", or what differs
    and why. lacks: what is missing below full scale. note: a remark at every scale. The page adds a full stop
    to these texts. of: the reproduction whose records are drawn, if it is another paper's. from_records:
    whether records are drawn. columns: the number of panels in a row. maker: a text on how to make the
    records of a table, if the reproduction alone does not make them. bound: the bound of `rb-measure bound`
    that a theorem states, such as wci4.
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
    bound: str = ""

    @property
    def stem(self) -> str:
        """The name of the item's files, without extension."""
        return self.number.replace("figure ", "fig") if self.panels else self.number.replace(" ", "")

    @property
    def detail(self) -> str:
        """The details of evaluations that a figure shows; empty if it shows none."""
        kinds = (calls[-1].words[0] for calls in self.panels.values())
        return next((kind for kind in kinds if kind in ("confidence", "confusion")), "")

    @property
    def records(self) -> str:
        """The file from which the item is drawn, in the folder of the paper's figures."""
        if self.detail:
            return f"{self.number.replace(' ', '')}.jsonl"
        return records_file(self.of)

    def widths(self, width: float) -> dict[str, float]:
        """Maps the letter of each panel to its width in inches. Panels share the width of a row evenly. A
        row has fewer panels if they would be narrower than rb-plot allows."""
        letters, most = list(self.panels), max(1, min(self.columns, int(width / LEAST_WIDTH)))
        rows = [letters[at : at + most] for at in range(0, len(letters), most)]
        return {letter: width / len(row) for row in rows for letter in row}

    def commands(self, folder: Path, width: float) -> dict[str, str]:
        """Maps the letter of each panel to its command line. folder: the folder of the paper's figures;
        width: the width of the whole figure in inches."""
        lines, widths = {}, self.widths(width)
        for letter, calls in self.panels.items():
            stages = [call.line() for call in calls]
            file = folder / f"{self.stem}{letter}.pdf"
            stages[-1] += ["-o", str(file), "--width", f"{widths[letter]:g}"]
            stages[0] += [str(folder / self.records)] if self.from_records else []
            lines[letter] = " | ".join(" ".join(map(_quoted, words)) for words in stages)
        return lines


class Paper(NamedTuple):
    """A paper: its title, the reproduction (reproduce_NAME.py) with its records, the metric of our records
    for each column of its tables, its items by number, and its claims: words, and comparisons of values in
    columns or rows (see `sidebyside.tested`)."""

    title: str
    records: str
    columns: Mapping[str, str]
    items: Mapping[str, Item]
    claims: Sequence[tuple[str, Mapping[str, list[str]]]]


@cache
def paper(name: str, scale: str) -> Paper:
    """A paper's items, with the words for a scale."""
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
    """The words of a claim (by default its comparison), and its comparisons."""
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
    """The text of a value (a list is joined by commas), with its placeholders replaced by words."""
    texts = value if isinstance(value, list) else [value]
    return ",".join(str(text).format_map(words) for text in texts)


def _quoted(word: str) -> str:
    """A word, quoted for a shell. Expressions that contain texts are in double quotes."""
    plain = "'" in word and not re.search(r'["$`\\]|!(?!=)', word)
    return f'"{word}"' if plain else shlex.quote(word)
