"""The man pages that do not describe a command: rbtools(7), rb-record(5) and rb-entry(5).

The text of each page is in `NAME.SECTION.txt` in this folder. The file begins with one line about the page.
Then come headings (`# NAME`), paragraphs, terms (each line begins with `term :: meaning`), and indented
lines, which are shown unchanged. If an indented line begins with `$ `, these two characters are not shown,
and the tests run the command. `{tools}` is replaced by the list of all tools, and `{record}`, `{train}` and
`{evals}` by lists of fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import NamedTuple

from rbtools.records import schema

PAGES = (("rb-record", 5), ("rb-entry", 5), ("rbtools", 7))
_GROUPS = {
    "label": "What the entry describes, and where it was created:",
    "result": "The result:",
    "cost": "The cost of the measurement:",
}
_TERM = re.compile(r"^(?=\S[^\n]* :: )", re.M)


class Code(NamedTuple):
    """Lines that are shown unchanged, and the commands in these lines that can be run."""

    lines: list[str]
    commands: list[str]


class Prose(NamedTuple):
    name: str
    section: int
    summary: str
    body: dict[str, list[str | dict[str, str] | Code]]

    def commands(self) -> list[str]:
        codes = [part for parts in self.body.values() for part in parts if isinstance(part, Code)]
        return [command for code in codes for command in code.commands]


def pages(tools: Mapping[str, str]) -> list[Prose]:
    """All pages that do not describe a command. `tools` maps the name of each tool to a line about it."""
    terms = {
        "{tools}": "\n".join(f"{name} :: {summary}" for name, summary in tools.items()),
        "{record}": _fields(schema.RECORD),
        "{train}": _fields(schema.TRAIN),
        "{evals}": _entry_fields(),
    }
    return [_page(name, section, terms) for name, section in PAGES]


def _fields(fields: Iterable[schema.Field]) -> str:
    return "\n".join(f"{field.name} :: {field.doc[0].upper()}{field.doc[1:]}." for field in fields)


def _entry_fields() -> str:
    groups: dict[str, list[schema.Field]] = {}
    for field in schema.EVALS:
        groups.setdefault(_GROUPS.get(field.group, f"The protocol, {field.group}:"), []).append(field)
    return "\n\n".join(f"{title}\n\n{_fields(fields)}" for title, fields in groups.items())


def _page(name: str, section: int, terms: Mapping[str, str]) -> Prose:
    text = resources.files(__package__).joinpath(f"{name}.{section}.txt").read_text("utf-8")
    for mark, listed in terms.items():
        text = text.replace(mark, listed)
    summary, *headed = re.split(r"^# (.+)\n", text, flags=re.M)
    body = {
        heading: [_part(piece) for piece in re.split(r"\n{2,}", under.strip("\n"))]
        for heading, under in zip(headed[::2], headed[1::2], strict=True)
    }
    return Prose(name, section, summary.strip(), body)


def _part(text: str) -> str | dict[str, str] | Code:
    if text.startswith("    "):
        lines = [line[4:] for line in text.split("\n")]
        commands: list[str] = []
        for line in lines:  # a line without a mark continues a command
            if line.startswith("$ "):
                commands.append(line[2:])
            elif commands:
                commands[-1] += " " + line.strip()
        return Code([re.sub(r"^[$ ] ", "", line) for line in lines] if "$ " in text else lines, commands)
    if _TERM.match(text):
        pairs = [item.partition(" :: ") for item in _TERM.split(text) if item]
        return {term: " ".join(meaning.split()) for term, _, meaning in pairs}
    return " ".join(text.split())
