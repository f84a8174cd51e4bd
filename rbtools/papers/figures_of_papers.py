"""Every numbered figure and table of a paper, from the records of its reproduction, and a page of all.

reproduced/PAPER/ gets figN.pdf and figN.png, with all panels of the paper's figure, tableN.md and tableN.tex
with the printed values beside ours, and index.html, which has captions, claims, and of each item what is
missing and which command makes it. `items` lists them. A file that is newer than its records
and was made by the same command is not made again, so that an interrupted run resumes.
"""

from __future__ import annotations

import contextlib
import html
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from fnmatch import fnmatchcase
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.testing import CliRunner
from matplotlib.artist import Artist
from matplotlib.transforms import Bbox

from rbtools.cli import tools
from rbtools.cli.streams import MemoryStreams
from rbtools.papers import sidebyside as side
from rbtools.papers.items import PAPERS
from rbtools.papers.items.base import WORDS, Item, Paper
from rbtools.plots import base, style
from rbtools.records import dumps
from rbtools.scoring import render

if TYPE_CHECKING:
    from matplotlib.backend_bases import RendererBase
    from matplotlib.figure import Figure

ENDINGS = ("pdf", "png")
GAP = 0.15  # inches between rows of panels


class Made(NamedTuple):
    """The result of an item: its file without ending ("" for none); by panel its command, and the reason if
    it is missing."""

    file: str
    commands: dict[str, str]
    missing: dict[str, str]
    html: str = ""


# The command for a metric that records lack, by the beginning of its name, and the command that stores
# details.
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


# What a tool says because one before it in the pipe has failed.
LATER = ("was not written", "no records came in")


def reason(said: str) -> str:
    """The reason why a tool drew nothing, from its standard error, and the command for the missing
    metrics."""
    lines = [line.partition(": ")[2].removeprefix("error: ") for line in said.splitlines() if ": " in line]
    none = [line for line in lines if "holds for no record" in line]
    text = (
        none
        or [line for line in lines if not any(one in line for one in LATER)]
        or lines
        or ["It was not drawn."]
    )[-1]
    head, *rest = re.split(r" Metrics: | They have: ", text, maxsplit=1)
    head = re.sub(r" Did you mean .*\?", "", head)
    if rest and " Measure it" in rest[0]:
        return f"{head} Measure it{rest[0].partition(' Measure it')[2]}"
    makers = [made for start, made in MAKERS.items() if start in head]
    lacking = f" {makers[0]} makes it." if makers and (rest or "no record has" in head) else ""
    return head + lacking


def execute(command: str) -> str:
    """Run a command line, one tool in this process and a pipe in a shell; return its standard error."""
    if " | " in command:
        line = ["bash", "-o", "pipefail", "-c", command]
        # The tools of this installation, also where its folder is not on the path.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        env = {**os.environ, "PATH": path}
        return subprocess.run(line, capture_output=True, text=True, env=env).stderr
    tool, *arguments = shlex.split(command)
    main = tools.tool(tool.removeprefix("rb-")).command
    return CliRunner().invoke(main, arguments, prog_name=tool).stderr


def figure_of(command: str) -> Any:
    """The matplotlib Figure of a command line of rb-plot, or the tool's message if it drew none."""
    tool, *arguments = shlex.split(command)
    arguments[arguments.index("-o") + 1] = ""  # no file
    memory = MemoryStreams()
    CliRunner().invoke(tools.tool("plot").command, arguments, prog_name=tool, obj=memory)
    return execute(command) if memory.result is None else memory.result


class FigurePanel(Artist):
    """A finished figure whose lower left corner lies at x, y (inches) of another.

    matplotlib cannot move axes between figures; but all positions in a figure follow from its box in inches.
    """

    def __init__(self, panel: Figure, x: float, y: float) -> None:
        super().__init__()
        self.panel = panel
        panel.bbox_inches.set(Bbox.from_bounds(x, y, *panel.get_size_inches()))

    def draw(self, renderer: RendererBase) -> None:
        """Draw the panel with the renderer of the whole figure."""
        assert self.figure is not None
        self.panel.set_dpi(self.figure.dpi)
        self.panel.draw(renderer)


def joined(panels: Sequence[tuple[str, Figure]], columns: int, width: float) -> Figure:
    """One figure of all, row by row, a letter at the upper left corner of each.

    panels: a letter and a figure each, of width / columns inches; width: of the whole, in inches.
    """
    rows = [panels[at : at + columns] for at in range(0, len(panels), columns)]
    heights = [max(figure.get_figheight() for _, figure in row) for row in rows]
    with style.applied():
        whole = base.blank(width)
        total = sum(heights) + GAP * (len(rows) - 1)
        whole.set_figheight(total)
        top = total
        for row, height in zip(rows, heights, strict=True):
            for place, (letter, figure) in enumerate(row):
                x = place * width / columns
                whole.add_artist(FigurePanel(figure, x, top - figure.get_figheight()))
                whole.text(
                    (x + 0.03) / width, top / total, f"({letter})", va="top", weight="bold", size=style.SIZE
                )
            top -= height + GAP
    return whole


def draw(commands: Mapping[str, str], stem: str, columns: int, width: float) -> dict[str, str]:
    """Write STEM.pdf and STEM.png of the panels; return the tool's messages on panels that cannot be drawn,
    by letter. An item that is not drawn by rb-plot has one panel, whose tool writes both files.
    """
    first = next(iter(commands.values()))
    if " | " in first or first.startswith("rb-plot corruptions"):
        for ending in ENDINGS:
            said = execute(first.replace(f"{stem}.pdf", f"{stem}.{ending}"))
        return {} if Path(f"{stem}.{ENDINGS[-1]}").exists() else {"": said}
    figures = {letter: figure_of(command) for letter, command in commands.items()}
    missing = {letter: one for letter, one in figures.items() if isinstance(one, str)}
    drawn = [(letter, one) for letter, one in figures.items() if letter not in missing]
    if drawn:
        alone = len(commands) == 1
        whole = drawn[0][1] if alone else joined(drawn, columns, width)
        for ending in ENDINGS:
            Path(f"{stem}.{ending}").write_bytes(base.encode(whole, ending))
    return missing


def detailed(item: Item) -> str:
    """Which details of evaluations a figure shows; empty if none."""
    kinds = (
        kind
        for kind in ("confidence", "confusion")
        for line in item.panels.values()
        if f"-plot {kind} " in line
    )
    return next(kinds, "")


def with_details(record: Mapping[str, Any], item: Item) -> dict[str, Any]:
    """A record with no more than the details that a figure shows."""
    kind = detailed(item)
    wanted = {word for line in item.panels.values() for word in re.findall(r"--metric '?([^ ']+)", line)}
    names = [one for words in wanted for one in words.split(",")]
    entries = [
        {
            "metric": entry["metric"],
            "value": entry["value"],
            "detail": {
                key: value for key, value in entry["detail"].items() if key in (kind, "images", "stored")
            },
        }
        for entry in record.get("evals") or ()
        if isinstance(entry.get("detail"), dict) and any(fnmatchcase(entry["metric"], one) for one in names)
    ]
    kept = {key: record[key] for key in ("schema", "arch", "dataset", "checkpoint") if key in record}
    return {**kept, "metrics": {one["metric"]: one["value"] for one in entries}, "evals": entries}


class PaperRun:
    """A paper's items at a scale: the records, the folder of the files, and the finished items."""

    def __init__(self, name: str, scale: str, reproduced: Path, width: float) -> None:
        self.name, self.scale, self.width = name, scale, width
        self.paper: Paper = PAPERS[name]
        self.reproduced, self.folder = reproduced, reproduced / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.pool: ProcessPoolExecutor | None = None
        self.lock = threading.Lock()
        self.log = self.folder / "made.json"
        self.known: dict[str, str] = json.loads(self.log.read_text()) if self.log.exists() else {}

    def records(self, of: str = "") -> Path:
        """The file that is drawn: what figures show of the records of a reproduction, else all of them."""
        chosen = self._chosen(of)
        return chosen if chosen.exists() else self.whole(of)

    def _chosen(self, of: str) -> Path:
        return self.folder / (f"records-{of}.jsonl" if of else "records.jsonl")

    def whole(self, of: str = "") -> Path:
        """The records of a reproduction."""
        return self.reproduced / f"{of or self.paper.records}-{self.scale}.jsonl"

    def maker(self, item: Item) -> str:
        """The command that makes the records of an item."""
        return f"make reproduce-{item.of or self.paper.records} SCALE={self.scale}"

    def read(self, of: str = "") -> list[dict[str, Any]]:
        """What figures and tables show of the records of a reproduction; the details of evaluations, which
        may be a thousand times as large, go into a file for each figure of them.
        """
        items = {} if of else {number: one for number, one in self.paper.items.items() if detailed(one)}
        if not self.whole(of).exists():
            for number in items:
                self.details(number).unlink(missing_ok=True)
            return []
        with contextlib.ExitStack() as files:
            details = {number: files.enter_context(self._new(number).open("wb")) for number in items}
            stream = files.enter_context(self.whole(of).open("rb"))
            found: list[dict[str, Any]] = []
            for record in side.each(stream):
                # An excerpt shows how the confidences of one record are laid out.
                found.append(side.essential(record, confidences=not found))
                for number, file in details.items():
                    if record.get("dataset") == found[0].get("dataset"):
                        file.write(dumps(with_details(record, items[number])) + b"\n")
        for number in items:
            side.put(self._new(number), self.details(number))
        return found

    def details(self, number: str) -> Path:
        """The file of the details that a figure shows."""
        return self.folder / f"{number.replace(' ', '')}.jsonl"

    def _new(self, number: str) -> Path:
        return self.details(number).with_suffix(".new")

    def keep(self, records: Sequence[dict[str, Any]], of: str = "") -> None:
        """Write what the figures draw. Without records none of another scale stay."""
        chosen = self._chosen(of)
        if not records:
            chosen.unlink(missing_ok=True)
            return
        new = chosen.with_suffix(".new")
        with new.open("wb") as stream:
            stream.writelines(dumps(record) + b"\n" for record in records)
        side.put(new, chosen)

    def item(self, number: str, item: Item) -> Made:
        """Draw or write one item."""
        if item.reason:
            return Made("", {}, {"": item.reason})
        return self.figure(number, item) if item.panels else self.table(number, item)

    # --- figures --------------------------------------------------------------------------------

    def figure(self, number: str, item: Item) -> Made:
        """Draw a figure, unless it is there; a reason for each panel that cannot be made."""
        records = self.drawn(number, item)
        stem = f"fig{number.removeprefix('figure ')}"
        commands = self.commands(item, stem, records)
        needs = any("{records}" in template or "{to}" in template for template in item.panels.values())
        if needs and not records.exists():
            return Made("", commands, {"": f"There is no {records}. {self.maker(item)} makes it."})
        date = records.stat().st_mtime if needs else 0.0
        files = [self.folder / f"{stem}.{ending}" for ending in ENDINGS]
        key = "\n".join(commands.values())
        if self.known.get(stem) == key and all(one.exists() and one.stat().st_mtime >= date for one in files):
            return Made(stem, commands, {})
        for file in files:
            file.unlink(missing_ok=True)
        job = (commands, str(self.folder / stem), self.columns(item), self.width)
        said = draw(*job) if self.pool is None else self.pool.submit(draw, *job).result()
        missing = {letter: reason(text) for letter, text in said.items()}
        if not missing:
            with self.lock:  # written now, because the run may end at any time
                self.known[stem] = key
                self.log.write_text(json.dumps(self.known, indent=1) + "\n")
        return Made(stem if files[0].exists() else "", commands, missing)

    def drawn(self, number: str, item: Item) -> Path:
        """The file that an item is drawn from."""
        own = self.details(number)
        return own if detailed(item) and own.exists() else self.records(item.of)

    def columns(self, item: Item) -> int:
        """The number of panels in a row, limited by the least width that rb-plot draws."""
        return max(1, min(item.columns, len(item.panels), int(self.width / base.LEAST_WIDTH)))

    def commands(self, item: Item, stem: str, file: Path | None = None) -> dict[str, str]:
        """The command line of each panel, by its letter; `file`: of the records, if they have one of their
        own."""
        width = self.width / self.columns(item)
        records = shlex.quote(str(file or self.records(item.of)))
        lines = {}
        for letter, template in item.panels.items():
            out = f"-o {shlex.quote(str(self.folder / f'{stem}{letter}.pdf'))} --width {width:g}"
            places = {**WORDS[self.scale], "records": records, "out": out, "to": f"{out} {records}"}
            lines[letter] = template.format_map(places)
        return lines

    # --- tables ---------------------------------------------------------------------------------

    def table(self, number: str, item: Item) -> Made:
        made = self.tables.get(item.table)
        maker = item.maker or f"{self.maker(item)} makes it."
        nothing = f"{self.records(item.of)} has nothing of it. {maker}"
        stem = number.replace(" ", "")
        if isinstance(made, side.Excerpt):
            (self.folder / f"{stem}.md").write_text(made.text())
            (self.folder / f"{stem}.tex").write_text(made.latex())
            return Made(stem, {}, {}, f"<pre>{html.escape(made.lines)}</pre>")
        if made is None or not made.rows():
            return Made("", {}, {"": nothing})
        built = made.beside()
        for ending, text in (("md", render.to_markdown(built)), ("tex", render.to_latex(built))):
            head = render.heading(made.title, "latex" if ending == "tex" else ending)
            (self.folder / f"{stem}.{ending}").write_text(f"{head}\n{text}")
        rows = [[cell.value for cell in row] for row in built.rows]
        shown = _table((heading.title for heading in built.headings), rows)
        return Made(stem, {}, {} if made.ours else {"": nothing}, shown)

    def load(self) -> None:
        """Read the records, and make their tables and claims."""
        module = importlib.import_module(f"rbtools.papers.reproduce_{self.paper.records.replace('-', '_')}")
        records = self.read()
        others = {item.of: self.read(item.of) for item in self.paper.items.values() if item.of}
        self.keep(module.plain(records) if hasattr(module, "plain") else records)
        for of, some in others.items():
            self.keep(some, of)
        self.tables: dict[str, side.PaperTable | side.Excerpt] = {}
        self.claims: list[side.Claim] = []
        self.theory = side.theory(records)
        if not records:
            return
        self.tables = {**module.tables(records, self.scale, *others.values())}
        self.claims = module.claims(records, self.scale)
        if self.name == "nas-robbench-201":
            self.tables["table 2"] = module.searches(records, self.scale)

    def all(self, jobs: int) -> dict[str, Made]:
        self.load()
        # Threads wait for processes, each of which imports matplotlib once.
        with (
            ProcessPoolExecutor(jobs, get_context("spawn")) as self.pool,
            ThreadPoolExecutor(jobs) as threads,
        ):
            made = threads.map(lambda pair: self.item(*pair), self.paper.items.items())
            return dict(zip(self.paper.items, made, strict=True))


# --- the page -----------------------------------------------------------------------------------

STYLE = """body{font:15px/1.45 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
img{max-width:100%;border:1px solid #ddd;margin:.3em 0}section{border-top:1px solid #ccc;padding:.6em 0}
table{border-collapse:collapse;font-size:12px;display:block;overflow-x:auto}
td,th{border:1px solid #ccc;padding:2px 6px}
td{text-align:right}td:first-child{text-align:left}.missing{color:#a33}.lacks{color:#666}code{font-size:12px}
.holds{color:#167}.FAILS{color:#a33}"""


def _table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = "".join(f"<th>{html.escape(one)}</th>" for one in heads)
    cells = ("".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _section(number: str, item: Item, made: Made, scale: str) -> Iterator[str]:
    yield f'<section id="{number.replace(" ", "")}"><h2>{number.capitalize()}</h2>'
    yield f"<p>{html.escape(item.caption)}</p>"
    whose = "In the paper" if number.startswith(("figure", "table")) else "Table of ours"
    beside = (f"{whose}: {item.axes}.", f"Verdict: {item.verdict}.")
    yield f'<p class="lacks">{"<br>".join(map(html.escape, beside))}</p>'
    stem = made.file
    if stem and item.panels:
        yield f'<p><a href="{stem}.pdf"><img src="{stem}.png" alt="{html.escape(number)}"></a></p>'
    elif stem:
        yield f'{made.html}<p><a href="{stem}.md">Markdown</a>, <a href="{stem}.tex">LaTeX</a></p>'
    for letter, reason in made.missing.items():
        where = f"{letter}: " if letter else ""
        yield f'<p class="missing">{html.escape(where + reason)}</p>'
    if item.note:
        yield f"<p>{html.escape(item.note)}.</p>"
    if item.lacks and scale != "full":
        yield f'<p class="lacks">At this scale: {html.escape(item.lacks)}.</p>'
    if made.commands:
        lines = "<br>".join(f"<code>{html.escape(command)}</code>" for command in made.commands.values())
        yield f"<details><summary>commands</summary>{lines}</details>"
    yield "</section>"


def page(run: PaperRun, made: Mapping[str, Made]) -> str:
    """The page of a paper: a file that shows the files beside it."""
    words = {True: "holds", False: "FAILS", None: "cannot be told"}
    claims = "".join(
        f'<li class="{words[one.holds].split()[0]}">{html.escape(one.words)}: {words[one.holds]}'
        f" ({html.escape(one.found)})</li>"
        for one in run.claims
    )
    drawn = sum(bool(one.file) for one in made.values())
    title = html.escape(f"{run.paper.title}, SCALE={run.scale}")
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>',
        f"<h1>{title}</h1><p>{drawn} of {len(made)} figures, tables and theorems; what is missing says"
        " why.</p>",
    ]
    for number, item in run.paper.items.items():
        parts += _section(number, item, made[number], run.scale)
    if run.theory:
        bounds = _table(side.THEORY, run.theory)
        parts.append(f'<section id="theory"><h2>Bounds of the paper</h2>{bounds}</section>')
    parts.append(f'<section id="claims"><h2>Claims of the paper</h2><ul>{claims}</ul></section></html>\n')
    return "\n".join(parts)


def draw_all(name: str, scale: str, reproduced: Path, width: float, jobs: int) -> None:
    """Draw a paper's items, `jobs` at once, and write its page."""
    run = PaperRun(name, scale, reproduced, width)
    made = run.all(jobs)
    index = run.folder / "index.html"
    index.write_text(page(run, made))
    for number, one in made.items():
        for letter, reason in one.missing.items():
            if not run.paper.items[number].reason:
                click.echo(f"{number} {letter}".strip() + f": {reason}", err=True)
    drawn = sum(bool(one.file) for one in made.values())
    click.echo(f"{index} shows {drawn} of the {len(made)} figures, tables and theorems of {run.paper.title}.")
