"""Draws every numbered figure and table of a paper from the records of its reproduction.

The folder reproduced/PAPER/ then contains figN.pdf and figN.png with all panels of the figure, tableN.md and
tableN.tex with the printed values and ours, and index.html with captions, claims, missing parts and the
commands that compute these parts. A file is not written again if it is newer than its records and was made by
the same command, so an interrupted run resumes.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from matplotlib.artist import Artist

from rbtools.cli import python_calls
from rbtools.cli.streams import MemoryStreams
from rbtools.errors import RbError
from rbtools.execution.engine import Call, engine_for
from rbtools.execution.run import Run
from rbtools.pages import templates
from rbtools.papers import items
from rbtools.papers import sidebyside as side
from rbtools.papers.items import Item, PanelCall
from rbtools.plots import base, renderer, style, words
from rbtools.records import dumps

if TYPE_CHECKING:
    from matplotlib.backend_bases import RendererBase
    from matplotlib.figure import Figure

ENDINGS = ("pdf", "png")
GAP = 0.15  # inches above a row of panels, for their letters


class Made(NamedTuple):
    """The result of an item: whether its files exist, why panels are missing, and its table."""

    done: bool
    missing: dict[str, str]
    table: side.PaperTable | side.Excerpt | None = None

    @property
    def ours(self) -> bool:
        """Whether the item contains our results; a table may contain only the paper's values."""
        return self.done and (self.table is None or self.table.found)


# The kinds of figures that show distributions, orders or correlations of networks, and the least number of
# networks for which they show anything.
FEWEST = {**dict.fromkeys(("box", "heatmap", "hist", "ranks", "scatter"), 6), "cells grid": 4}

# Maps the beginning of a missing metric's name, or of the message about missing details, to the command that
# makes it.
MAKERS = {
    "'ntk.": "rb-measure ntk --kernel twice --attack fgsm,pgd",
    "'jacobian.": "rb-measure jacobian --on both",
    "'hessian.": "rb-measure hessian --on both",
    "'corrupt.": "rb-corrupt all --severity 1-5",
    "the confidence of": "rb-attack ... --detail (clean accuracy too) and rb-corrupt ... --detail",
    "the confusion of": "rb-attack ... --detail (clean accuracy too) and rb-corrupt ... --detail",
    "'ge.pr": "rb-ge pr",
    "'ge.": "rb-ge attack ATTACK --eps DISTANCE",
    "'pr.": "rb-pr --gamma LIST",
    "'probacc.": "rb-pr --rho LIST",
    **{
        f"'{name}": f"rb-attack {name} --eps LIST"
        for name in ("fgsm", "pgd", "apgd-ce", "cw", "square", "aa")
    },
}


def reason(error: RbError) -> str:
    """The reason why a panel was not drawn. If metrics are missing, the reason names the command that
    computes them, not the existing metrics."""
    head, *rest = re.split(r" Metrics: | They have: ", str(error), maxsplit=1)
    head = re.sub(r" Did you mean .*\?", "", head)
    if rest and " Measure it" in rest[0]:
        return f"{head} Measure it{rest[0].partition(' Measure it')[2]}"
    makers = [made for start, made in MAKERS.items() if start in head]
    lacking = f" {makers[0]} computes it." if makers and (rest or "no record has" in head) else ""
    return head + lacking


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Disable the garbage collector, which would visit the objects of all records again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def figure_of(calls: Sequence[PanelCall], records: Path | None, width: float) -> Figure:
    """The figure of a panel, `width` inches wide. The first call reads the file `records`, if any. Raises
    RbError if a tool fails."""
    files = [] if records is None else [str(records)]
    memory = MemoryStreams()
    with without_collection(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # users see them when they run the command lines on the page
        for call in calls[:-1]:
            memory = MemoryStreams(python_calls.call(call.tool, [*call.words, *files], call.options, memory))
            files = []
        last = calls[-1]
        options = {**last.options, "output": "", "width": width}
        python_calls.call(last.tool, [*last.words, *files], options, memory)
    if memory.result is None:
        raise RbError("There are no records to draw.")
    drawn: Figure = memory.result
    kind = " ".join([*last.words, last.options.get("view", "")]).strip()
    if kind in FEWEST and (count := int(str(drawn.get_label()))) < FEWEST[kind]:
        found = words.counted(count, "network")
        raise RbError(f"It would show {found}, but at least {FEWEST[kind]} are needed.")
    return drawn


class FigurePanel(Artist):
    """A finished figure whose lower left corner is at x, y (inches) in another figure. matplotlib cannot move
    axes between figures, but all positions in a figure follow from its box in inches."""

    def __init__(self, panel: Figure, x: float, y: float) -> None:
        super().__init__()
        self.panel = panel
        panel.bbox_inches.set(panel.bbox_inches.translated(x, y))

    def draw(self, renderer: RendererBase) -> None:
        assert self.figure is not None
        self.panel.set_dpi(self.figure.dpi)
        self.panel.draw(renderer)


def joined(panels: Sequence[tuple[str, Figure]], width: float) -> Figure:
    """One figure of `width` inches that contains all panels, with a letter above each panel. Each row
    contains as many panels as fit. If the legends of several panels explain the same colours, one legend
    below the last of these panels replaces them."""
    rows: list[list[tuple[str, Figure]]] = []
    x = math.inf
    for panel in panels:
        x += panel[1].get_figwidth()
        if x > 1.001 * width:
            rows, x = [*rows, []], panel[1].get_figwidth()
        rows[-1].append(panel)
    for row in rows:
        renderer.level([figure for _, figure in row])
    with style.applied():
        whole = renderer.blank(width)
        legend, sharing = renderer.share_legend(whole, [figure for _, figure in panels])
        below = legend.get_window_extent().height / whole.dpi if legend else 0.0
        heights = [max(figure.bbox_inches.y1 for _, figure in row) + GAP for row in rows]
        top = total = sum(heights) + below
        whole.set_figheight(total)
        for row, height in zip(rows, heights, strict=True):
            x = 0.0
            for letter, figure in row:
                how: dict[str, Any] = {"va": "top", "weight": "bold", "size": style.size()}
                whole.text((x + 0.03) / width, (top - 0.03) / total, f"({letter})", **how)
                whole.add_artist(FigurePanel(figure, x, top - GAP - figure.bbox_inches.y1))
                x += figure.get_figwidth()
            top -= height
            if legend and any(figure is sharing[-1] for _, figure in row):
                top -= below
                legend.set_bbox_to_anchor((0, top / total, 1, below / total))
    return whole


def draw(item: Item, folder: Path, width: float) -> dict[str, str]:
    """Write the files of a figure, `width` inches wide. Returns the reason for each panel that cannot be
    drawn, which takes the place of the panel. `folder` is the folder of the paper's figures."""
    records = folder / item.records if item.from_records else None
    missing: dict[str, str] = {}
    drawn = []
    for letter, each in item.widths(width).items():
        try:
            drawn.append((letter, figure_of(item.panels[letter], records, each)))
        except RbError as error:
            missing[letter] = reason(error)
            with style.applied():
                drawn.append((letter, renderer.note(f"not drawn: {missing[letter]}", each)))
    if len(missing) < len(drawn):
        whole = drawn[0][1] if len(item.panels) == 1 else joined(drawn, width)
        for ending in ENDINGS:
            (folder / f"{item.stem}.{ending}").write_bytes(base.encode(whole, ending))
    return missing


@dataclass(frozen=True)
class FigureCall(Call):
    """The call of `draw` in a form that an engine can run."""

    item: Item
    folder: Path
    width: float

    def __call__(self, run: Run) -> dict[str, str]:
        return draw(self.item, self.folder, self.width)


@cache
def _matches(metric: str, names: tuple[str, ...]) -> bool:
    return any(fnmatchcase(metric, one) for one in names)


def metrics_of(item: Item) -> tuple[str, ...]:
    """The metrics and patterns whose details a figure shows."""
    return tuple(one for calls in item.panels.values() for one in calls[-1].options["metric"].split(","))


# A metric and the details after it. There is no brace between them, so they are of the same entry.
_DETAIL = re.compile(
    rb'("metric":"([^"\\]*)"[^"{}]*(?:"[^"\\]*"[^"{}]*)*),"detail":\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}'
)


def without_details(line: bytes, names: tuple[str, ...]) -> bytes:
    """The line of a record without the details of metrics that match none of the names, because parsing these
    details would take most of the time."""
    return _DETAIL.sub(lambda found: found[0] if _matches(found[2].decode(), names) else found[1], line)


def with_details(record: Mapping[str, Any], item: Item) -> dict[str, Any]:
    names = metrics_of(item)
    shown = (item.detail, "images", "stored")
    entries = [
        {
            "metric": entry["metric"],
            "value": entry["value"],
            "detail": {key: value for key, value in entry["detail"].items() if key in shown},
        }
        for entry in record.get("evals") or ()
        if isinstance(entry.get("detail"), dict) and _matches(entry["metric"], names)
    ]
    kept = {key: record[key] for key in ("schema", "arch", "dataset", "checkpoint") if key in record}
    return {**kept, "metrics": {one["metric"]: one["value"] for one in entries}, "evals": entries}


class PaperRun:
    """The items of a paper at a scale, with their records, the folder of their files, and their results."""

    def __init__(self, name: str, scale: str, reproduced: Path, width: float) -> None:
        self.paper = items.paper(name, scale)
        self.scale, self.width = scale, width
        self.reproduced, self.folder = reproduced, reproduced / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / "made.json"
        self.known: dict[str, str] = json.loads(self.log.read_text()) if self.log.exists() else {}

    def whole(self, of: str = "") -> Path:
        return self.reproduced / f"{of or self.paper.records}-{self.scale}.jsonl"

    def read(self, of: str = "") -> list[dict[str, Any]]:
        """Write the parts of the records that figures and tables show. Details of evaluations may be a
        thousand times as large as the other fields, so each figure of details has its own file."""
        if not self.whole(of).exists():
            return []
        found: list[dict[str, Any]] = []
        with without_collection(), self.whole(of).open("rb") as stream, contextlib.ExitStack() as files:
            details = [
                (item, files.enter_context(side.replacing(self.folder / item.records)))
                for item in self.paper.items.values()
                if item.detail and not of
            ]
            # An excerpt shows the confidences on clean images.
            names = ("acc", *(name for item, _ in details for name in metrics_of(item)))
            for record in side.each(without_details(line, names) for line in stream):
                # An excerpt shows the layout of the first record's confidences.
                found.append(side.essential(record, confidences=not found))
                for item, file in details:
                    if record.get("dataset") == found[0].get("dataset"):
                        file.write(dumps(with_details(record, item)) + b"\n")
        return found

    def load(self) -> None:
        """Read the records, and write the parts that figures draw."""
        self.module = side.comparison(self.paper.records)
        for item in self.paper.items.values():  # remove records of another scale
            if item.detail and not self.whole().exists():
                (self.folder / item.records).unlink(missing_ok=True)
        self.records = self.read()
        self.others = {item.of: self.read(item.of) for item in self.paper.items.values() if item.of}
        for_figures = getattr(self.module, "for_figures", list)
        for of, some in {"": for_figures(self.records), **self.others}.items():
            file = self.folder / items.records_file(of)
            if some:
                with side.replacing(file) as stream:
                    stream.writelines(dumps(record) + b"\n" for record in some)
            else:
                file.unlink(missing_ok=True)

    def make(self, jobs: int = 1) -> dict[str, Made]:
        """Map the numbers of all items except tables to their results. At most `jobs` figures are drawn at
        once."""
        shown = {number: item for number, item in self.paper.items.items() if item.panels or item.reason}
        made = {number: self.ready(item) for number, item in shown.items()}
        missing = [shown[number] for number, one in made.items() if one is None]
        run = Run.of(jobs=jobs, warn=lambda text: click.echo(text, err=True))
        with engine_for([], run, len(missing)) as engine:
            calls = [FigureCall(item, self.folder, self.width) for item in missing]
            for place, report in engine.map(calls):
                item, failed = missing[place], {"": report.problem} if report.problem else {}
                made[item.number] = self.drawn(item, failed or report.result)
        return {number: one for number, one in made.items() if one is not None}

    def compare(self) -> dict[str, Made]:
        """Create the claims and the tables. The searches in a table may take hours, so figures come first."""
        self.theory = side.theory(self.records)
        self.tables: dict[str, side.PaperTable | side.Excerpt] = {}
        self.claims: list[side.Claim] = []
        if self.records:
            self.tables = {**self.module.tables(self.records, self.scale, *self.others.values())}
            self.claims = self.module.claims(self.records, self.scale, self.tables)
            for item in self.paper.items.values():
                if item.bound:
                    self.tables[item.number] = side.bound_table(self.records, item.number, item.bound)
        shown = {number: item for number, item in self.paper.items.items() if not item.panels}
        return {number: self.table(item) for number, item in shown.items() if not item.reason}

    def ready(self, item: Item) -> Made | None:
        """The result of an item that needs no drawing; None for a figure that has to be drawn."""
        if item.reason:
            return Made(False, {"": item.reason})
        records = self.folder / item.records
        if item.from_records and not records.exists():
            return Made(False, {"": f"{self.whole(item.of)} does not exist. {self._maker(item)}"})
        date = records.stat().st_mtime if item.from_records else 0.0
        made = all(file.exists() and file.stat().st_mtime >= date for file in self._files(item))
        if made and self.known.get(item.stem) == self._key(item):
            return Made(True, {})
        for file in self._files(item):
            file.unlink(missing_ok=True)
        self.known.pop(item.stem, None)
        return None

    def drawn(self, item: Item, missing: dict[str, str]) -> Made:
        """The result of a figure that has just been drawn, without the panels in `missing`."""
        if not missing:
            self.known[item.stem] = self._key(item)
            with side.replacing(self.log) as stream:  # immediately, because the run may end at any time
                stream.write(json.dumps(self.known, indent=1).encode() + b"\n")
        return Made(self._files(item)[0].exists(), missing)

    def _files(self, item: Item) -> list[Path]:
        return [self.folder / f"{item.stem}.{ending}" for ending in ENDINGS]

    def _key(self, item: Item) -> str:
        """The commands that draw a figure; the figure is drawn again when these commands change."""
        return "\n".join(item.commands(self.folder, self.width).values())

    def table(self, item: Item) -> Made:
        """Write a table or an excerpt. The result has a reason if nothing in it was reproduced."""
        made = self.tables.get(item.number)
        records = self.folder / item.records
        read = records if records.exists() else self.whole(item.of)
        nothing = {"": f"{read} has no results for it. {item.maker or self._maker(item)}"}
        if made is None or not made.rows():
            return Made(False, nothing)
        for ending, text in made.files().items():
            (self.folder / f"{item.stem}.{ending}").write_text(text)
        return Made(True, {} if made.found else nothing, made)

    def _maker(self, item: Item) -> str:
        return f"make reproduce-{item.of or self.paper.records} SCALE={self.scale} creates it."


def page(run: PaperRun, made: Mapping[str, Made]) -> str:
    style = {"style-src": templates.file("report.css")}
    values = {"run": run, "made": made, "bounds": side.THEORY}
    return templates.page("paper.html", style, values, "img-src 'self' file:")


def draw_all(name: str, scale: str, reproduced: Path, width: float, jobs: int) -> None:
    """Draw a paper's items, at most `jobs` at the same time, and write the page of the paper."""
    run = PaperRun(name, scale, reproduced, width)
    run.load()
    done = run.make(jobs) | run.compare()
    made = {number: done[number] for number in run.paper.items}
    index = run.folder / "index.html"
    index.write_text(page(run, made))
    for number, one in made.items():
        for letter, why in one.missing.items():
            if not run.paper.items[number].reason:
                click.echo(f"{number} {letter}".strip() + f": {why}", err=True)
    drawn = sum(one.ours for one in made.values())
    click.echo(f"{index} shows {drawn} of the {len(made)} figures, tables and theorems of {run.paper.title}.")
