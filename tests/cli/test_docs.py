"""Man pages and completions, which are the generator's, and help, which explains every option."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

from rbtools.cli import docs, tools
from tests.runner import one, run

ROOT = Path(__file__).resolve().parents[2]


@cache
def generated() -> dict[str, str]:
    return docs.files()


@pytest.mark.slow
def test_the_files_are_what_the_commands_say_and_none_is_left_of_a_tool_that_is_gone() -> None:
    found = {
        f"{folder}/{path.name}": path
        for folder in ("man", "completions")
        for path in (ROOT / folder).iterdir()
    }
    assert set(found) == set(generated())
    stale = [name for name, path in found.items() if path.read_text("utf-8") != generated()[name]]
    assert not stale, "run `make docs` and commit it"


def test_the_pages_about_records_and_entries_know_every_field_of_one(trained: dict[str, Any]) -> None:
    pages = [(ROOT / f"man/rb-{name}.5").read_text("utf-8") for name in ("record", "entry")]
    text = "".join(pages).replace("\\-", "-")
    record = one(run("attack", "fgsm --n 20", [trained["pgd"]]))
    fields = {*record, *record["arch"], *record["train"], *(key for one in record["evals"] for key in one)}
    known = set(re.findall(r"[a-z_0-9]+", text))
    assert fields - known - {"mine"} == set()


@pytest.mark.parametrize("tool", tools.TOOLS)
def test_the_whole_help_explains_every_option(tool: str) -> None:
    pages = [page for page in tools.pages(tools.tool(tool)) if "--" not in page.words]
    page = pages[-1]  # the command itself, or the last of its subcommands
    page.context.meta.pop("rbtools.classes", None)
    options = [param for param in page.command.get_params(page.context) if isinstance(param, click.Option)]
    records = [option.get_help_record(page.context) for option in options]
    rows = re.findall(r"^  (-.*)", run(tool, [*page.words.split()[1:], "--help-all"]).stdout, re.M)
    flag = re.compile(r"--[a-z][\w-]*")
    assert {one for record in records if record for one in flag.findall(record[0])} <= {
        one for row in rows for one in flag.findall(re.split(r"\s{2,}", row)[0])
    }


@pytest.mark.parametrize("tool", tools.TOOLS)
def test_the_help_explains_the_options_of_its_examples(tool: str) -> None:
    text = run(tool, "--help").stdout
    examples = re.findall(rf"^ +(rb-{tool} .*|.*\| rb-{tool} .*)$", text, re.M)
    used = {flag for line in examples for flag in re.findall(r"(?<= )--[a-z][\w-]*", own_part(line, tool))}
    explained = set(
        re.findall(r"--[a-z][\w-]*", "\n".join(re.findall(r"^  (--\S+.*|-\w, --.*)$", text, re.M)))
    )
    groups = "[OPTIONS] COMMAND" in text or "[OPTIONS] ATTACK" in text
    assert groups or used <= explained
    assert not re.search(r"[a-z]-\n", text)


def own_part(line: str, tool: str) -> str:
    """The words of a line that belong to the tool."""
    return next(part for part in line.split(" | ") if f"rb-{tool} " in f"{part} ")


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_tab_completes_in_bash() -> None:
    typed = {
        "rb-attack squ": "square",
        "rb-attack pgd --restar": "--restarts",
        "rb-attack pgd --norm li": "linf",
        "rb-store verif": "verify",
        "rb-train --method erm,trad": "erm,trades",
        "rb-train --preset pr": "prbench prbench-code",
        "rb-attack pgd --dataset digits,cinic": "digits,cinic10",
        "rb-attack pgd --normalize cifar100": "cifar100",
        "rb-rank --by pg": "pgd20.8",
        "rb-train --regularize mixup,cu": "mixup,cutout",
        "rb-pr --defend jp": "jpeg",
    }
    script = f"source '{ROOT}/completions/rbtools.bash'\n"
    for words in typed:
        script += f"COMPREPLY=(); COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
        script += '$(complete -p $COMP_WORDS | grep -o "_rb[a-z_]*") $COMP_WORDS; echo "${COMPREPLY[*]}"\n'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == [*typed.values()], done.stderr
