"""Help in groups: --help explains the common options and names the others, --help-all explains all."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

from rbtools.cli import docs, option_groups, tools

PAGES = [
    page
    for name in tools.TOOLS
    for page in tools.pages(tools.tool(name))
    if not isinstance(page.command, click.Group) and "--" not in page.words
]


def shown(page: tools.Page, flag: str) -> str:
    tool, *words = page.words.split()
    command: click.Command = tools.tool(tool.removeprefix("rb-")).command
    return CliRunner().invoke(command, [*words, flag]).stdout


def explained(text: str) -> set[str]:
    """The options that stand at the beginning of a line."""
    return {
        flag for line in re.findall(r"^  (-.*)", text, re.M) for flag in re.findall(r"--[a-z][\w-]*", line)
    }


def options(page: tools.Page) -> set[str]:
    context = click.Context(page.command)  # with the default choice, where an option chooses classes
    return {
        f"--{option_groups.long_name(param)}"
        for param in page.command.get_params(context)
        if isinstance(param, click.Option) and not param.hidden
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.words)
def test_help_explains_or_names_every_option_and_help_all_explains_it(page: tools.Page) -> None:
    brief = shown(page, "--help")
    named = set(re.findall(r"--[a-z][\w-]*", " ".join(re.findall(r"^  And (.*?\.)$", brief, re.M | re.S))))
    assert options(page) <= explained(brief) | named
    if named:
        assert "--help-all" in explained(brief)
        assert options(page) <= explained(shown(page, "--help-all"))


def test_every_name_of_a_group_is_an_option_of_some_tool() -> None:
    names = {name for group in option_groups.GROUPS for name in (*group.shown, *group.more)}
    assert {f"--{name}" for name in names} <= set().union(*map(options, PAGES)) | {"--version"}


def test_the_options_of_the_chosen_class_come_first_and_common_ones_last() -> None:
    page = tools.find(tools.tool("attack"), ["pgd"])
    titles = re.findall(r"^(\w.*):$", shown(page, "--help"), re.M)
    assert titles == ["Options of pgd", "Options", *(group.title for group in option_groups.GROUPS)]


def test_a_sink_names_no_option_that_it_refuses() -> None:
    for tool in ("rank", "corr", "plot"):
        for page in tools.pages(tools.tool(tool)):
            text = page.command.get_help(page.context)
            assert not re.search(r"--(shard|in-place|retry-errors)\b", text)


def test_no_manual_page_is_long() -> None:
    texts = docs.files()
    lines = {path: text.count("\n") for path, text in texts.items() if path.startswith("man/")}
    assert {path: count for path, count in lines.items() if count > 500} == {}


@pytest.mark.parametrize("tool", tools.TOOLS)
def test_no_help_has_a_default_twice(tool: str) -> None:
    page = tools.tool(tool)
    for param in page.command.get_params(page.context):
        if isinstance(param, click.Option) and (shown := param.get_help_record(page.context)):
            assert shown[1].count("default: ") <= 1, shown
