"""Man pages in roff, made from the text that `--help` shows and from the examples."""

from __future__ import annotations

import collections
import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence

import click

from rbtools import __date__, __version__
from rbtools.cli import option_groups
from rbtools.cli.docs import pages as prose
from rbtools.cli.tools import Page

GENERAL = ("rb-record(5)", "rb-entry(5)", "rbtools(7)")  # rbtools(7) lists the tools
STATUS = (
    "0 if all records were processed, 1 if a record failed or a line was not a record, 2 if the command line"
    " is wrong, 3 if no records came in. rbtools(7) lists the other exit statuses and the environment"
    " variables."
)


def tool_page(pages: Sequence[Page]) -> str:
    name, summary, body, examples = _parts(pages[0].command, pages[0].words)
    leaves = [one for one in pages if one.words.count(" ") <= 1 + (" --" in one.words)]
    leaves = [one for one in leaves if not isinstance(one.command, click.Group) or one is not pages[0]]
    records = {one.words: _records(one) for one in leaves}
    alone = leaves[0] is pages[0]
    count = collections.Counter(record for some in records.values() for record in some.items())
    common = _records(pages[0]) | dict(record for record, met in count.items() if met > 1 and not alone)
    lines = [_title(name, 1), ".SH NAME", f"{_escape(name)} \\- {_escape(summary)}", ".SH SYNOPSIS"]
    usage = " ".join(pages[0].command.collect_usage_pieces(pages[0].context))
    lines += [f"\\fB{_escape(name)}\\fR {_escape(usage)}"]
    lines += [".SH DESCRIPTION", *_paragraphs(body[1:] or body)]
    lines += [".SH OPTIONS", *_terms(common), *_paragraphs([f"{name} --help-all explains all options."])]
    if leaves[alone:]:
        lines.append(".SH COMMANDS")
        for one in leaves[alone:]:
            own = dict(record for record in records[one.words].items() if record not in common.items())
            text = _parts(one.command, one.words)[2][:1]
            lines += [f".SS {_escape(one.words)}", *_paragraphs(text), *_terms(own)]
    if examples:
        lines += [".SH EXAMPLES", *_code(examples)]
    lines += [".SH EXIT STATUS", *_paragraphs([STATUS]), *_see_also(GENERAL)]
    return _text(lines)


def _records(page: Page) -> dict[str, str]:
    """The options that `--help` explains, with their help texts."""
    params = page.command.get_params(page.context)
    sections = option_groups.sections(page.context, params, (), "")
    return {flags: text for section in sections for flags, text in section.records}


def prose_page(page: prose.Prose, tools: Sequence[str]) -> str:
    lines = [_title(page.name, page.section), ".SH NAME"]
    lines.append(f"{_escape(page.name)} \\- {_escape(page.summary)}")
    for heading, parts in page.body.items():
        lines.append(f".SH {heading}")
        for part in parts:
            if isinstance(part, prose.Code):
                lines += _code(part.lines)
            else:
                lines += _terms(part) if isinstance(part, Mapping) else _paragraphs([part])
    others = [name for name in GENERAL if name != f"{page.name}({page.section})"]
    lines += _see_also([*(f"{tool}(1)" for tool in tools), *others])
    return _text(lines)


def _title(name: str, section: int) -> str:
    volume = {1: "User Commands", 5: "File Formats", 7: "Miscellaneous Information"}[section]
    return f'.TH {_quoted(name.upper())} {section} {__date__} {_quoted("rbtools " + __version__)} "{volume}"'


def _see_also(pages: Sequence[str]) -> list[str]:
    named = [one.partition("(") for one in pages]
    return [".SH SEE ALSO", *_filled(", ".join(f"\\fB{_escape(name)}\\fR({at}" for name, _, at in named))]


def _text(lines: Sequence[str]) -> str:
    # A heading starts a paragraph of its own, and so does a paragraph before a term.
    followed = zip(["", *lines], lines, [*lines[1:], ""], strict=False)
    return "\n".join(line for before, line, after in followed if not _idle(before, line, after)) + "\n"


def _idle(before: str, line: str, after: str) -> bool:
    return line == ".PP" and (before.startswith((".SH", ".SS")) or after.startswith((".SH", ".SS", ".PP")))


def _parts(command: click.Command, words: str) -> tuple[str, str, list[str], list[str]]:
    """The name, the first sentence, the paragraphs (a table keeps its \\b), and the examples."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    examples = [one for one in paragraphs if one.startswith("\b\nExample")]
    rest = [one for one in paragraphs if one not in examples]
    body = [one if one.startswith("\b") else " ".join(one.split()) for one in rest]
    summary = body[0].rstrip(".") if body else words
    commands = [line.strip() for one in examples for line in one.splitlines()[2:]]
    return words, summary[0].lower() + summary[1:], body, commands


def _paragraphs(paragraphs: Sequence[str]) -> list[str]:
    lines = []
    for one in paragraphs:
        is_table = one.startswith("\b\n")
        lines += [".PP", *(_code(one.splitlines()[1:]) if is_table else _filled(_escape(one)))]
    return lines


def _terms(terms: Mapping[str, str]) -> list[str]:
    return [
        line
        for term, text in terms.items()
        for line in (".TP", f"\\fB{_escape(term)}\\fR", *_filled(_escape(text)))
    ]


def _filled(text: str) -> list[str]:
    """Break a text into lines of at most 80 characters, as roff checkers require."""
    lines = textwrap.wrap(text, 78, break_long_words=False, break_on_hyphens=False)
    return [f"\\&{line}" if line[:1] in (".", "'") else line for line in lines]


def _code(lines: Sequence[str]) -> list[str]:
    return [".nf", ".RS", *map(_escape_line, lines), ".RE", ".fi"]


def _quoted(text: str) -> str:
    return '"' + _escape(text) + '"'


def _escape(text: str) -> str:
    """A text that roff prints unchanged: hyphens can be copied, and no line looks like a request."""
    return _escape_line(" ".join(text.split()))


def _escape_line(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"[^\x00-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", text)
    text = text.replace("'", "\\(aq").replace("`", "\\(ga").replace("^", "\\(ha").replace("~", "\\(ti")
    return f"\\&{text}" if text[:1] in (".", "\\") and not text.startswith("\\-") else text
