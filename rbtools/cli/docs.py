"""Writes man pages and completions from the commands themselves: `make docs`.

`python -m rbtools.cli.docs [FOLDER]` writes `man/` and `completions/` below the folder (here by
default). A test holds the files in the repository against what this writes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from rbtools.cli import completion, manual
from rbtools.cli import pages as prose
from rbtools.cli.commands import CONTEXT, OptionChooser, for_people, method_options

TOOLS = (
    "arch",
    "train",
    "attack",
    "corrupt",
    "pr",
    "ge",
    "measure",
    "score",
    "rank",
    "corr",
    "convert",
    "plot",
    "search",
    "store",
)


class Page(NamedTuple):
    """A command or subcommand: its words (`rb-ge attack pgd`), itself, and where it is parsed."""

    words: str
    command: click.Command
    context: click.Context


def tool(name: str) -> Page:
    """The command of one tool."""
    command: click.Command = importlib.import_module(f"rbtools.cli.{name}").main
    words = f"rb-{name}"
    return Page(words, command, _context(command, words, None))


def pages(page: Page) -> Iterator[Page]:
    """The command itself, then everything below it."""
    yield page
    if isinstance(page.command, OptionChooser):
        yield from _chosen(page, page.command)
    if isinstance(page.command, click.Group):
        for name in page.command.list_commands(page.context):
            below = page.command.get_command(page.context, name)
            if below is not None:
                words = f"{page.words} {name}"
                yield from pages(Page(words, below, _context(below, name, page.context)))


def _chosen(page: Page, command: OptionChooser) -> Iterator[Page]:
    """A page for each thing that an option chooses: `rb-train --method trades`."""
    for name in command.registry:
        cls = command.registry.load(name)
        help_text = for_people(cls)
        below = click.Command(name, params=list(method_options([cls])), help=help_text, add_help_option=False)
        words = f"{page.words} {command.option} {name}"
        yield Page(words, below, _context(below, name, page.context))


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    context = command.context_class(command, info_name=name, parent=parent, **CONTEXT)
    if isinstance(command, OptionChooser):
        context.meta["rbtools.classes"] = [command.registry.load(one) for one in command.registry]
    return context


def files() -> dict[str, str]:
    """All generated files: path in the repository -> text."""
    found = {}
    tools = [list(pages(tool(name))) for name in TOOLS]
    names = [of_tool[0].words for of_tool in tools]
    for of_tool in tools:
        found[f"man/{of_tool[0].words}.1"] = manual.page(of_tool, names)
    for page in prose.pages({one[0].words: one[0].command.get_short_help_str() for one in tools}):
        found[f"man/{page.name}.{page.section}"] = manual.prose_page(page, names)
    typed = [[page for page in of_tool if "--" not in page.words] for of_tool in tools]
    found["completions/rbtools.bash"] = completion.bash(typed)
    found["completions/_rbtools"] = completion.zsh(typed)
    found["completions/rbtools.fish"] = completion.fish(typed)
    return found


def main(folder: str = ".") -> None:
    """Write all files below the folder."""
    for path, text in files().items():
        target = Path(folder, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:2])
