"""The items of the papers: every numbered figure, table, theorem and algorithm, from the files in items/.

A file contains the `title` of the paper, the reproduction (reproduce_NAME.py) that computes its `records`,
and the `items`. Each item has a caption in our words. A figure has a `panel` or several `panels`. An item
that cannot be reproduced has a `reason`. An item with neither panels nor a reason is a table of the
reproduction. A panel is a call of a tool, such as `{plot: curves, metric: pr.uniform.*}`, or a list of calls,
each of which reads the output of the previous one.

`columns` maps the columns of the paper's tables to metrics of our records. In any string, {NAME} is replaced
by the entry NAME in the file's `words`, and an entry may contain earlier entries. An entry of `words` or a
metric may depend on the scale (`packaged`). Lists become strings separated by commas. An option or a column
without a value is left out.
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
    return f"records-{of}.jsonl" if of else "records.jsonl"


class PanelCall(NamedTuple):
    """A call of a tool: the tool's name without rb-, its subcommand (`curves` in `rb-plot curves`), and its
    options. A switch has the value True, and an option with pairs (NAME=VALUE) has a mapping."""

    tool: str
    words: list[str]
    options: Mapping[str, Any]

    def line(self) -> list[str]:
        words = [f"rb-{self.tool}", *self.words]
        for name, value in self.options.items():
            pairs = [f"{one}={text}" for one, text in value.items()] if isinstance(value, dict) else [value]
            for text in pairs:
                words += [f"--{name}"] if text is True else [f"--{name}", text]
        return words


class Item(NamedTuple):
    """A numbered figure, table, theorem or algorithm.

    `axes` describes the axes of the paper's figure, or the rows and columns of its table. `verdict` is "as in
    the paper", or explains the difference. `lacks` lists the parts that a run below full scale leaves out.
    `note` is a remark for every scale. The page adds a full stop to these texts. `of` names another paper's
    reproduction if its records are drawn. `from_records` is true if records are drawn. `columns` is the
    number of panels in a row. `maker` explains how to compute those records of a table that the reproduction
    does not compute. `bound` is the bound of `rb-measure bound` that belongs to a theorem, such as wci4.
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
        return self.number.replace("figure ", "fig") if self.panels else self.number.replace(" ", "")

    @property
    def detail(self) -> str:
        """The kind of evaluation details that a figure shows; "" if the figure shows no details."""
        kinds = (calls[-1].words[0] for calls in self.panels.values())
        return next((kind for kind in kinds if kind in ("confidence", "confusion")), "")

    @property
    def records(self) -> str:
        """The name of the file with the item's records, in the folder of the paper's figures."""
        if self.detail:
            return f"{self.number.replace(' ', '')}.jsonl"
        return records_file(self.of)

    def widths(self, width: float) -> dict[str, float]:
        """Maps the letter of each panel to its width in inches. Panels share the width of a row evenly. A row
        has fewer panels if they would be narrower than rb-plot allows."""
        letters, most = list(self.panels), max(1, min(self.columns, int(width / LEAST_WIDTH)))
        rows = [letters[at : at + most] for at in range(0, len(letters), most)]
        return {letter: width / len(row) for row in rows for letter in row}

    def commands(self, folder: Path, width: float) -> dict[str, str]:
        """Maps the letter of each panel to its command line. `folder` is the folder of the paper's figures,
        and `width` is the width of the complete figure in inches."""
        lines, widths = {}, self.widths(width)
        for letter, calls in self.panels.items():
            stages = [call.line() for call in calls]
            file = folder / f"{self.stem}{letter}.pdf"
            stages[-1] += ["-o", str(file), "--width", f"{widths[letter]:g}"]
            stages[0] += [str(folder / self.records)] if self.from_records else []
            lines[letter] = " | ".join(" ".join(map(_quoted, words)) for words in stages)
        return lines


class Paper(NamedTuple):
    """`records` is the reproduction (reproduce_NAME.py) that computes the records. `columns` maps each column
    of the paper's tables to a metric of our records. A claim consists of its words and of comparisons between
    values in columns or rows (see `sidebyside.tested`)."""

    title: str
    records: str
    columns: Mapping[str, str]
    items: Mapping[str, Item]
    claims: Sequence[tuple[str, Mapping[str, list[str]]]]


@cache
def paper(name: str, scale: str) -> Paper:
    """The title, items and claims of a paper, with the placeholders filled for a scale."""
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
    """The text of a claim (by default its comparison), and the comparisons of the claim."""
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
    filled: dict[str, Any] = {}
    for name, value in options:
        if isinstance(value, dict):
            filled[name] = {_filled(one, words): _filled(text, words) for one, text in value.items()}
        else:
            filled[name] = value if value is True else _filled(value, words)
    return PanelCall(tool, what.split(), {name: value for name, value in filled.items() if value})


def _filled(value: Any, words: Mapping[str, str]) -> str:
    """The text of a value, with its placeholders replaced. A list becomes a text separated by commas."""
    texts = value if isinstance(value, list) else [value]
    return ",".join(str(text).format_map(words) for text in texts)


def _quoted(word: str) -> str:
    """A word quoted for a shell; expressions that contain string literals are in double quotes."""
    plain = "'" in word and not re.search(r'["$`\\]|!(?!=)', word)
    return f'"{word}"' if plain else shlex.quote(word)
