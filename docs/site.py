"""What mkdocs calls to build the site: the README is its first page, and the reference is made from the code.

Files outside the site are named instead of linked. The pages of reference are the man pages, in Markdown, and
one of metric names; nothing in `docs/` repeats them.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

import rbtools
from rbtools.cli import docs, python_calls
from rbtools.cli.python_calls import as_keywords
from rbtools.cli.streams import MemoryStreams
from rbtools.records import metric_name

METRICS = "metric-names"
_SIGNS = {"e": "\\", "-": "-", "(aq": "'", "(ga": "`", "(ha": "^", "(ti": "~", "&": ""}
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_MAN_PAGE = re.compile(
    r"\*\*((?:rb-|rbtools)[a-z-]*)\*\*\([157]\)|\b((?:rb-|rbtools)[a-z-]*)\([157]\)|(?<=see )(rb-[a-z]+)"
)


@cache
def reference() -> dict[str, str]:
    """The pages of reference: name -> Markdown."""
    texts = {Path(path).stem: text for path, text in docs.files().items() if path.startswith("man/")}
    pages = {name: _linked(_markdown(text), set(texts)) for name, text in texts.items()}
    return {**pages, METRICS: _metrics()}


def on_config(config: Any, **_: object) -> Any:
    """Add the pages that are made here to their groups of the navigation, and the version to the footer."""
    config["copyright"] = f"rbtools {rbtools.__version__} ({rbtools.__date__}), MIT licence"
    next(group["Start"] for group in config["nav"] if "Start" in group).append({"A notebook": "notebook.md"})
    (group,) = (group["Reference"] for group in config["nav"] if "Reference" in group)
    group += [{name.replace("-", " ") if name == METRICS else name: f"{name}.md"} for name in reference()]
    return config


def on_files(files: Any, config: Any, **_: object) -> Any:
    """Add the pages that are made here to the files of the site."""
    notebook = json.loads((Path(config["docs_dir"]) / "notebook.ipynb").read_text("utf-8"))
    pages = {f"{name}.md": text for name, text in reference().items()}
    pages |= {"notebook.md": _notebook(notebook["cells"]), "leaderboard.html": _leaderboard()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: object) -> str:
    """What mkdocs calls for each page before it sets it."""
    folder = Path(config["docs_dir"])
    if page.file.src_uri == "index.md":
        markdown = _front((folder.parent / "README.md").read_text("utf-8"), folder)
    if page.file.src_uri == "figures.md":
        markdown = _gallery(markdown)
    if (
        page.file.src_uri == "tools.md"
    ):  # it names everything, so a search finds it before the page that explains
        page.meta["search"] = {"boost": 0.3}
    if page.file.src_uri != "notebook.md":
        markdown = markdown.replace("](notebook.ipynb)", "](notebook.md)")
    markdown = markdown.replace("OWNER/rbtools", config["extra"]["repository"])
    return re.sub(r"\[([^]]*)\]\(\.\./([^)]*)\)", r"\1 (`\2`)", markdown)


def on_post_build(config: Any, **_: object) -> None:
    """Lead the addresses of pages that went to the pages that have their content."""
    for old, new in config["extra"]["redirects"].items():
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={new}"><a href="{new}">moved</a>'
        (Path(config["site_dir"]) / f"{old}.html").write_text(page, "utf-8")


def _front(readme: str, folder: Path) -> str:
    """The README with the line that installs on top, then a user's photographs, and links within the site."""
    markdown = re.sub(r"\[([A-Z]+\.md)\]\(\1\)", r"`\1`", readme.replace("](docs/", "]("))
    (line,) = re.findall(
        r"^# Installing\n\n(```\n.*?^```\n)", (folder / "install.md").read_text("utf-8"), re.M | re.S
    )
    title, start = markdown.split("\n\n", 1)
    about, *sections = re.split(r"^(?=## )", start, flags=re.M)
    sections.sort(key=lambda text: not text.startswith("## Your own network"))
    return "\n".join([title, "", line, about, _QUICK, *sections])


_QUICK = """[What does it not do?](limits.md) · [How long does it take?](speed.md#how-long-will-it-take) ·
[On Slurm](slurm.md) · [A notebook](notebook.md) · [A leaderboard](leaderboard.html) · [Figures](figures.md)

"""


def _gallery(markdown: str) -> str:
    """The page of figures with a card for each kind: the picture, its command, and what it shows."""
    start, figures, pages = re.split(r"^## (?:Figures|Pages)\n", markdown, flags=re.M)
    kinds = [
        f'<div class="kind" markdown>\n\n{text}\n</div>\n'
        for text in re.split(r"^(?=### )", figures, flags=re.M)[1:]
    ]
    kinds = [re.sub(r"!\[[^]]*\]\(([^)]*)\)", r"[\g<0>](\1)", text) for text in kinds]
    about = "\n\n[RobustBench's entries for CIFAR-10 as such a page](leaderboard.html)\n"
    pages = pages.replace("### `leaderboard`\n", "### `leaderboard`" + about, 1)
    return "\n".join(
        [start, "## Figures", '<div class="gallery" markdown>', *kinds, "</div>", "## Pages", pages]
    )


def _leaderboard() -> str:
    """A leaderboard of the published results that are part of rbtools."""
    published = {"published": "cifar10/Linf"}
    records = python_calls.call("convert", ["robustbench"], published, MemoryStreams())
    return str(rbtools.plot("leaderboard", records, title="RobustBench, CIFAR-10, L-infinity"))


def _notebook(cells: Iterable[dict[str, Any]]) -> str:
    """A notebook and its stored outputs in Markdown."""
    found = []
    for cell in cells:
        source = "".join(cell["source"])
        found.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = {kind: "".join(text) for kind, text in output["data"].items()}
            if "image/png" in data:
                found.append(f'<img alt="The figure" src="data:image/png;base64,{data["image/png"]}">')
            elif "text/html" in data:
                plain = re.sub(r"(?s)<style.*?</style>|(?<=<table)[^>]*", "", data["text/html"])
                found.append(re.sub(r"\n\s*\n", "\n", plain))
            else:
                found.append(f"```text\n{data['text/plain']}\n```")
    return "\n\n".join([*found, "[The notebook as a file](notebook.ipynb)"]) + "\n"


class Reference(griffe.Extension):
    """Set options as a table; attributes that are numbers or text have the docstrings of `int` and `str`."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: object) -> None:
        """What mkdocstrings calls for each attribute that it finds."""
        if "property" not in attr.labels:
            attr.docstring = None

    def on_function_instance(self, *, func: griffe.Function, **_: object) -> None:
        """What mkdocstrings calls for each function: options of a tool leave its signature for a table."""
        if func.docstring is None:
            return
        about, found, options = func.docstring.value.partition("\n\nOptions:\n")
        rows = [(name, text) for name, text in re.findall(r"^    (\w+): (.*)$", options, re.M)]
        shown = [param for param in func.parameters if param.annotation or param.name not in dict(rows)]
        table = [(name, func.parameters[name].default, text) for name, text in rows]
        func.parameters = griffe.Parameters(*shown) if found else func.parameters
        func.docstring.value = _linked(about, set(reference())) + _table(table)

    def on_class_members(self, *, node: object, cls: griffe.Class, **_: object) -> None:
        """What mkdocstrings calls for each class: the options of a method have their texts in its fields."""
        made = getattr(node, "obj", None)
        fields = dataclasses.fields(made) if dataclasses.is_dataclass(made) else ()
        rows = [
            (one.name, repr(one.default), as_keywords(one.metadata["help"]))
            for one in fields
            if "help" in one.metadata
        ]
        if cls.docstring is not None:
            cls.docstring.value += _table(rows)


def _table(rows: Iterable[tuple[str, object, str]]) -> str:
    """The options of a function or a method in Markdown."""
    lines = ["", "", "| option | default | what it does |", "|---|---|---|"]
    for name, default, text in rows:
        text, _, said = text.removesuffix("]").partition(" [default: ")  # in words, where no value is set
        lines.append(f"| `{name}` | {_cell(said) if said else f'`{default}`'} | {_cell(text)} |")
    return "\n".join(lines) if len(lines) > 4 else ""


def _cell(text: str) -> str:
    """A help text in a cell of a table: what is between backticks is code."""
    parts = text.split("`")
    texts = [f"`{part}`" if place % 2 else _escaped(part) for place, part in enumerate(parts)]
    return "".join(texts).replace("|", "&#124;")


def _metrics() -> str:
    """How names of metrics are built, and which of them are better when lower."""
    docs_of_names = [
        " ".join((inspect.getdoc(function) or "").split())
        for name, function in inspect.getmembers(metric_name, inspect.isfunction)
        if name.endswith("_name")
    ]
    forms = [f"- {text}" for text in docs_of_names if text.startswith("`")]
    lower = ", ".join(f"`{name}`" for name in sorted(metric_name.LOWER_FAMILIES))
    about = (inspect.getdoc(metric_name) or "").partition("\n\n")[2]
    lines = ["# The names of metrics", about, "## Forms"]
    lines += ["\n".join(forms)]
    lines += ["## Direction", f"Lower is better for names that begin with one of these: {lower}; and for"]
    lines[-1] += " seconds, losses, errors, gaps and mCE. Higher is better for all others."
    return "\n\n".join(lines) + "\n"


def _markdown(roff: str) -> str:
    """A man page of `rbtools.cli.docs` in Markdown."""
    lines = iter(roff.splitlines())
    found: list[str] = []
    for line in lines:
        request, _, words = line.partition(" ")
        if request == ".SH" and words == "NAME":
            name, _, summary = _plain(next(lines)).partition(" - ")
            found += [f"# {name}", "", f"{_escaped(summary[0].upper() + summary[1:])}."]
        elif request in (".SH", ".SS"):
            title = _plain(words)
            found += ["", f"## {title.capitalize()}" if request == ".SH" else f"### {_escaped(title)}", ""]
        elif request == ".nf":
            found += ["", "```", *_code(lines), "```", ""]
        elif request == ".TP":
            found += ["", f"- `{_plain(next(lines)).strip()}`:"]
        elif request == ".PP":
            found.append("")
        elif request == ".br":
            found[-1] += "  "
        elif request != ".TH":
            found.append(_set(line))
    return "\n".join(found) + "\n"


def _code(lines: Iterator[str]) -> list[str]:
    """The lines of an example, to its end."""
    return [_plain(line) for line in takewhile(lambda line: line != ".fi", lines) if line[:3] != ".RS"][:-1]


def _set(line: str) -> str:
    """A line of text: bold as in the man page, options as code."""
    parts = [_escaped(_plain(part)) for part in re.split(r"\\fB(.*?)\\fR", line)]
    return "".join(
        f"**{part}**" if place % 2 else _OPTION.sub(r"`\g<0>`", part) for place, part in enumerate(parts)
    )


def _plain(text: str) -> str:
    """A text without what roff needs."""
    text = re.sub(r"\\f[BR]", "", text)
    text = re.sub(r"\\\[u([0-9A-F]{4,5})\]", lambda found: chr(int(found[1], 16)), text)
    return re.sub(r"\\(e|-|\((?:aq|ga|ha|ti)|&)", lambda found: _SIGNS[found[1]], text)


def _escaped(text: str) -> str:
    """A text that Markdown sets as it is."""
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"^(\d+)\.", r"\1\\.", re.sub(r"([\\`*_\[\]#])", r"\\\1", text))


def _linked(text: str, pages: set[str]) -> str:
    """The text with links to the pages of reference that it names."""

    def link(found: re.Match[str]) -> str:
        name = found[1] or found[2] or found[3]
        return f"[{name}]({name}.md)" if name in pages else name

    return _MAN_PAGE.sub(link, text)
