"""The tools and their subcommands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeGuard

import click

from rbtools.cli.click_commands import CONTEXT, OptionChooser, rendered
from rbtools.cli.declare import TOOLS, Tool
from rbtools.cli.method_options import for_people, method_options


class Page(NamedTuple):
    """A command or subcommand: its words (such as `rb-ge attack pgd`), the command, and click's context."""

    words: str
    command: click.Command
    context: click.Context


def tool(named: str | Tool) -> Page:
    declared: Tool = TOOLS.load(named) if isinstance(named, str) else named
    command, words = rendered(declared), declared.name
    return Page(words, command, _context(command, words, None))


def pages(page: Page) -> Iterator[Page]:
    yield page
    if chooses_by_option(page.command):
        yield from _chosen(page, page.command)
    if isinstance(page.command, click.Group):
        for name in page.command.list_commands(page.context):
            yield from pages(_below(page, page.command, name))


def chooses_by_option(command: click.Command) -> TypeGuard[OptionChooser]:
    """True if an option of the command selects names of a registry."""
    return hasattr(command, "registry") and not isinstance(command, click.Group)


def _below(page: Page, group: click.Group, name: str) -> Page:
    command = group.get_command(page.context, name)
    assert command is not None
    return Page(f"{page.words} {name}", command, _context(command, name, page.context))


def _chosen(page: Page, command: OptionChooser) -> Iterator[Page]:
    """One page for each choice of an option, such as `rb-train --method trades`."""
    for name in command.registry:
        cls = command.registry.load(name)
        help_text = for_people(cls.__doc__)
        params = method_options([cls])
        below = click.Command(name, params=params, help=help_text, add_help_option=False)
        words = f"{page.words} {command.option} {name}"
        yield Page(words, below, _context(below, name, page.context))


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    context = command.context_class(command, info_name=name, parent=parent, **CONTEXT)
    if chooses_by_option(command):
        context.meta["rbtools.classes"] = [command.registry.load(choice) for choice in command.registry]
    return context
