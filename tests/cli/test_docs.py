"""Man pages and completions, which are the generator's, and help: it explains or names every option."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

from rbtools.cli import docs, tools
from tests.runner import one, run

ROOT = Path(__file__).resolve().parents[2]
MAN_PAGES = [f"man/{path.name}" for path in sorted((ROOT / "man").iterdir())]


@cache
def generated() -> dict[str, str]:
    return docs.files()


def options(page: tools.Page) -> list[click.Option]:
    return [param for param in page.command.get_params(page.context) if isinstance(param, click.Option)]


def test_the_files_are_what_the_commands_say_and_none_is_left_of_a_tool_that_is_gone() -> None:
    found = {
        f"{folder}/{path.name}": path
        for folder in ("man", "completions")
        for path in (ROOT / folder).iterdir()
    }
    assert set(found) == set(generated())
    stale = [name for name, path in found.items() if path.read_text("utf-8") != generated()[name]]
    assert not stale, "run `make docs` and commit it"


def test_files_are_written_below_a_folder_of_choice() -> None:
    docs.main("elsewhere")
    written = {str(path.relative_to("elsewhere")) for path in Path("elsewhere").rglob("*.*")}
    assert written | {"completions/_rbtools"} == set(generated())


@pytest.mark.parametrize("tool", tools.TOOLS)
def test_help_is_of_finished_sentences_without_python(tool: str) -> None:
    texts: dict[str, str] = {}
    for page in tools.pages(tools.tool(tool)):
        texts[page.words] = page.command.help or ""
        texts |= {f"{page.words} {option.opts[0]}": option.help or "" for option in options(page)}
        if "--" not in page.words:
            assert not page.command.get_short_help_str(1000).endswith(("...", " al", " al.")), page.words
    for name, text in texts.items():
        sentence = re.sub(r"\s*\[default: .*\]$", "", text.strip(), flags=re.S)
        assert sentence, f"{name} has no help"
        if " --" in name or "\b" not in text:
            assert sentence.endswith((".", ":")), f"the help of {name} ends in '{sentence[-20:]}'"
        assert not re.search(r"`|\bNone\b|\bTrue\b|\bFalse\b|\w=\"", text), f"{name}: {text}"


def test_the_pages_about_records_and_entries_know_every_field_of_one(trained: dict[str, Any]) -> None:
    pages = [(ROOT / f"man/rb-{name}.5").read_text("utf-8") for name in ("record", "entry")]
    text = "".join(pages).replace("\\-", "-")
    record = one(run("attack", "fgsm --n 20", [trained["pgd"]]))
    fields = {*record, *record["arch"], *record["train"], *(key for one in record["evals"] for key in one)}
    known = set(re.findall(r"[a-z_0-9]+", text))
    assert fields - known - {"mine"} == set()


def test_no_line_of_text_is_taken_for_a_request() -> None:
    known = re.compile(r"\.(TH|SH|SS|PP|TP|br|nf|fi|RS|RE)( |$)")
    for line in (line for path in MAN_PAGES for line in generated()[path].splitlines()):
        assert known.match(line) or line[:1] not in (".", "'"), line
        assert line.isascii()


def pages_of(tool: str) -> Iterable[tools.Page]:
    """Each command, with the options of its default choice where an option chooses.

    Of the names of a registry one: the others have other options of the same form.
    """
    some = {}
    for page in tools.pages(tools.tool(tool)):
        page.context.meta.pop("rbtools.classes", None)
        if page.command.add_help_option:
            of_registry = bool(getattr(page.command, "classes", ()))
            some[of_registry, page.words.rpartition(" ")[0] if of_registry else page.words] = page
    return some.values()


def flags(page: tools.Page) -> set[str]:
    """The long options at the start of the rows of a command's help."""
    records = [option.get_help_record(page.context) for option in options(page)]
    return {flag for record in records if record for flag in re.findall(r"--[a-z][\w-]*", record[0])}


def explained(text: str) -> set[str]:
    """The options at the beginning of a line below the first heading."""
    lines = re.findall(r"^  (-.*)", re.split(r"^\S.*:$", text, maxsplit=1, flags=re.M)[1], re.M)
    return {flag for line in lines for flag in re.findall(r"--[a-z][\w-]*", re.split(r"\s{2,}", line)[0])}


@pytest.mark.parametrize("tool", tools.TOOLS)
def test_help_explains_or_names_every_option_and_help_all_explains_it(tool: str) -> None:
    for page in pages_of(tool):
        words = page.words.split()[1:]
        brief = run(tool, [*words, "--help"]).stdout
        named = set(
            re.findall(r"--[a-z][\w-]*", " ".join(re.findall(r"^  And (.*?\.)$", brief, re.M | re.S)))
        )
        off = {flag for flag in flags(page) if flag.startswith("--no-")}
        assert flags(page) - off <= explained(brief) | named
        assert "--help-all" in explained(brief)
        assert flags(page) == explained(run(tool, [*words, "--help-all"]).stdout)
