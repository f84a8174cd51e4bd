"""How commands are made of registered things: their options, their help, and the messages for typing
errors."""

from __future__ import annotations

import re

import click
import pytest

from rbtools.cli import tools
from tests.runner import run


@pytest.mark.parametrize(("tool", "kept"), [("rank", False), ("train", True)])
def test_an_interruption_promises_only_what_is_true(
    tool: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(context: click.Context) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tools.tool(tool).command, "invoke", interrupted)
    result = run(tool)
    assert result.exit_code == 130
    promise = "; what was finished is written and in the store" if kept else ""
    assert result.stderr == f"rb-{tool}: error: interrupted{promise}.\n"


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


@pytest.mark.parametrize("page", SOME.values(), ids=lambda page: page.words)
def test_help_explains_or_names_every_option_and_help_all_explains_it(page: tools.Page) -> None:
    tool, *words = page.words.removeprefix("rb-").split()
    brief = run(tool, [*words, "--help"]).stdout
    named = set(re.findall(r"--[a-z][\w-]*", " ".join(re.findall(r"^  And (.*?\.)$", brief, re.M | re.S))))
    off = {flag for flag in options(page) if flag.startswith("--no-")}
    assert options(page) - off <= explained(brief) | named
    assert "--help-all" in explained(brief)
    assert options(page) == explained(run(tool, [*words, "--help-all"]).stdout)
