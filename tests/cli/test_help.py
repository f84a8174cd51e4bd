"""Help in groups: --help explains the common options and names the others, --help-all explains all."""

from __future__ import annotations

import re

import click
import pytest

from rbtools.cli import option_groups, tools
from rbtools.training import METHODS
from tests.runner import run

MOST = 110  # lines of --help


def every_page() -> list[tools.Page]:
    """Each command, with the options of its default choice where an option chooses."""
    pages = [page for name in tools.TOOLS for page in tools.pages(tools.tool(name))]
    for page in pages:
        page.context.meta.pop("rbtools.classes", None)
    return [page for page in pages if page.command.add_help_option]


PAGES = every_page()
# Of the names of a registry the first: the others have other options of the same form.
SOME = {
    page.words.rpartition(" ")[0] if hasattr(page.command, "classes") else page.words: page for page in PAGES
}


def options(page: tools.Page) -> set[str]:
    """The long options at the start of the rows of a command's help."""
    params = page.command.get_params(page.context)
    records = [param.get_help_record(page.context) for param in params if isinstance(param, click.Option)]
    return {flag for record in records if record for flag in re.findall(r"--[a-z][\w-]*", record[0])}


def explained(text: str) -> set[str]:
    """The options that stand at the beginning of a line."""
    lines = re.findall(r"^  (-.*)", text, re.M)
    return {flag for line in lines for flag in re.findall(r"--[a-z][\w-]*", re.split(r"\s{2,}", line)[0])}


def test_help_is_short() -> None:
    counts = {
        page.words: page.command.get_help(page.context).count("\n") + 1
        for page in PAGES
        if not tools.chooses_by_option(page.command)
    }
    for words in ("", *(f"--method {name} " for name in METHODS)):
        counts[f"rb-train {words}"] = run("train", f"{words}--help").stdout.count("\n")
    assert {words: count for words, count in counts.items() if count > MOST} == {}


def test_no_help_shows_an_object_of_python() -> None:
    for page in PAGES:
        options = [one for one in page.command.get_params(page.context) if isinstance(one, click.Option)]
        text = str([option.get_help_record(page.context) for option in options])
        assert not re.search(r"Sentinel|UNSET|<\w+ object|\[(default: )?None\b", text), page.words


@pytest.mark.parametrize("page", SOME.values(), ids=lambda page: page.words)
def test_help_explains_or_names_every_option_and_help_all_explains_it(page: tools.Page) -> None:
    tool, *words = page.words.removeprefix("rb-").split()
    brief = run(tool, [*words, "--help"]).stdout
    named = set(re.findall(r"--[a-z][\w-]*", " ".join(re.findall(r"^  And (.*?\.)$", brief, re.M | re.S))))
    off = {flag for flag in options(page) if flag.startswith("--no-")}
    assert options(page) - off <= explained(brief) | named
    assert "--help-all" in explained(brief)
    assert options(page) == explained(run(tool, [*words, "--help-all"]).stdout)


def test_every_name_of_a_group_is_an_option_of_some_tool() -> None:
    names = {name for group in option_groups.GROUPS for name in (*group.shown, *group.more)}
    assert {f"--{name}" for name in names} <= set().union(*map(options, PAGES)) | {"--version"}


def test_the_options_of_the_chosen_class_come_first_and_common_ones_last() -> None:
    titles = re.findall(r"^(\w.*):$", run("attack", "pgd --help").stdout, re.M)
    assert titles == ["Options of pgd", "Options", *(group.title for group in option_groups.GROUPS[3:])]
