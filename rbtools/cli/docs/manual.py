"""Man pages in roff, from the commands' own help."""

from __future__ import annotations

import collections
import inspect
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence

import click

from rbtools import __date__, __version__
from rbtools.cli import option_groups
from rbtools.cli.click_commands import Chooser
from rbtools.cli.docs import pages as prose
from rbtools.cli.tools import Page

Record = tuple[str, str]  # the flags of an option, and its text
OPTIONS = "rbtools-options"  # the page of the options that many tools share
GENERAL = ("rb-record(5)", "rb-entry(5)", "rbtools(7)", f"{OPTIONS}(7)")  # rbtools(7) lists the tools
SEVERAL = "OPTIONS OF SEVERAL COMMANDS"
STATUS = (
    "0 if all records were processed, 1 if a record failed or a line was no record, 2 if the command line is"
    " wrong, 3 if no records came in. rbtools(7) has the others, and the environment variables."
)
_MANY = 8  # choices of an option on a tool's own page
NEEDS_ALL = ("rb-score", "rb-rank", "rb-search", "rb-corr", "rb-plot")


def tool_pages(pages: Sequence[Page], shared: Collection[Record]) -> dict[str, str]:
    """The man pages of one tool with all its subcommands; `shared` options stand in rbtools-options(7).

    Many choices of one option have a page of their own.
    """
    first = pages[0]
    name, summary, body, examples = _parts(first.command, first.words)
    by_option = [one for one in pages[1:] if "--" in one.words]
    chosen = [one for one in by_option if not _described_above(one, first)]
    leaves = [one for one in pages[1:] if one not in by_option and not isinstance(one.command, click.Group)]
    borrowed = _borrowed(leaves)
    below = [*(one for one in leaves if not any(one in same for same in borrowed.values())), *chosen]
    several = [record for record in _of_several(below) if record not in shared]
    lines = [
        _title(name, 1),
        ".SH NAME",
        f"{_escape(name)} \\- {_escape(summary)}",
        ".SH SYNOPSIS",
        *_synopsis([one for one in pages if one not in by_option]),
        ".SH DESCRIPTION",
        *_paragraphs(body[1:] or body),
        *_options(first, shared, {flag for one in chosen for flag, _ in _records(one)}),
    ]
    described: dict[str, str] = {}
    details = [line for one in below for line in _section(one, several, shared, described)]
    for words, same in borrowed.items():
        details += _borrowed_section(words, same, shared)
    if several:
        details += [f".SH {SEVERAL}", *_terms(dict(several))]
    texts = {}
    if not leaves and len(chosen) > _MANY:
        apart = f"{name}-methods"
        texts[f"{apart}.7"] = _methods_page(apart, name, details)
        lines += [".SH METHODS", *_paragraphs([f"{apart}(7) describes each --method and its options."])]
    elif details:
        lines += [".SH COMMANDS" if leaves else ".SH CHOICES", *details]
    lines += _of_many_tools(pages, shared)
    if examples:
        lines += [".SH EXAMPLES", *_code(examples)]
    lines += _expressions(pages)
    lines += _of_records(pages)
    lines += [".SH EXIT STATUS", *_paragraphs([STATUS])]
    lines += _see_also([*(f"{path[:-2]}(7)" for path in texts), *GENERAL])
    return {f"{name}.1": _text(lines), **texts}


def _methods_page(title: str, tool: str, sections: Sequence[str]) -> str:
    """The page of the methods that a tool's --method chooses from."""
    summary = f"the methods of {tool} and their options"
    about = "Each method, its source and its options. Those that several methods have are at the end."
    lines = [_title(title, 7), ".SH NAME", f"{_escape(title)} \\- {_escape(summary)}"]
    lines += [".SH DESCRIPTION", *_paragraphs([about]), ".SH METHODS"]
    return _text([*lines, *sections, *_see_also([f"{tool}(1)", *GENERAL])])


def prose_page(page: prose.Prose, tools: Sequence[str]) -> str:
    """A page that belongs to no command, in roff; `tools` are for SEE ALSO."""
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


def options_page(shared: Mapping[Record, option_groups.OptionGroup], tools: Sequence[str]) -> str:
    """The page of the options that many tools share."""
    body: dict[str, list[str | dict[str, str] | prose.Code]] = {
        "DESCRIPTION": ["Each tool has those of them that its own page names."]
    }
    for group in option_groups.GROUPS:
        members = {flags: text for (flags, text), of in shared.items() if of == group}
        body[group.title.upper()] = [members]
    return prose_page(prose.Prose(OPTIONS, 7, "the options that many tools share", body), tools)


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


def _of_records(pages: Sequence[Page]) -> list[str]:
    """Whether the tool waits for all records; nothing for rb-store."""
    tool = pages[0].words
    reads = any(param.name == "files" for page in pages for param in page.command.params)
    if not reads and tool != "rb-arch":
        return []
    pace = (
        "This tool needs all records: it reads to the end of its input before it writes."
        if tool in NEEDS_ALL
        else "This tool writes each record as soon as it is done, so that all tools of a pipe work at once."
    )
    return [".SH RECORDS", *_paragraphs([f"{pace} rb-record(5) says what a record is."])]


def _expressions(pages: Sequence[Page]) -> list[str]:
    """The language of options that take an EXPR, from the docstring of the module that parses it."""
    if not any(param.metavar == "EXPR" for page in pages for param in page.command.params):
        return []
    from rbtools.records import expr

    lines = [".SH EXPRESSIONS"]
    for paragraph in inspect.cleandoc(expr.__doc__ or "").split("\n\n"):
        if paragraph.startswith("    "):
            lines += [".PP", *_code([line.strip() for line in paragraph.splitlines()])]
            continue
        for part in re.split(r"\n(?=\*\*)", paragraph.replace("`", "")):
            term, text = re.fullmatch(r"(?:\*\*(\w+)\*\*,? )?(.*)", part, re.S).groups()  # type: ignore[union-attr]
            lines += _terms({term: text}) if term else _paragraphs([text])
    return lines


def _parts(command: click.Command, words: str) -> tuple[str, str, list[str], list[str]]:
    """Name, first sentence, all paragraphs but examples (a table keeps its \\b), and the examples."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    examples = [one for one in paragraphs if one.startswith("\b\nExample")]
    rest = [one for one in paragraphs if one not in examples]
    body = [one if one.startswith("\b") else " ".join(one.split()) for one in rest]
    summary = body[0].rstrip(".") if body else words
    commands = [line.strip() for one in examples for line in one.splitlines()[2:]]
    return words, summary[0].lower() + summary[1:], body, commands


def _synopsis(pages: Sequence[Page]) -> list[str]:
    """How each command is typed; those that a registry names once, as NAME."""
    uses: dict[str, None] = {}
    for one in pages:
        if not isinstance(one.command, click.Group):
            is_name = getattr(one.command, "classes", ())
            words = f"{one.words.rpartition(' ')[0]} NAME" if is_name else one.words
            usage = " ".join(one.command.collect_usage_pieces(one.context))
            uses[f"\\fB{_escape(words)}\\fR {_escape(usage)}"] = None
    return "\n.br\n".join(uses).splitlines()


def _described_above(page: Page, first: Page) -> bool:
    """Whether a choice by option is also a subcommand, as pgd is in `rb-attack transfer --attack pgd`."""
    assert page.context.parent is not None
    command = page.context.parent.command
    return command is not first.command and command.registry is getattr(first.command, "registry", None)  # type: ignore[attr-defined]


def _borrowed(leaves: Sequence[Page]) -> dict[str, list[Page]]:
    """Commands below `rb-ge attack` and the like, by these words: rb-attack's page describes them."""
    of_words: dict[str, list[Page]] = {}
    for one in leaves:
        parent = one.context.parent
        if parent is not None and parent.parent is not None and isinstance(parent.command, Chooser):
            of_words.setdefault(one.words.rpartition(" ")[0], []).append(one)
    return of_words


def _borrowed_section(words: str, pages: Sequence[Page], shared: Collection[Record]) -> list[str]:
    """What these commands have in common, and where each of them is described."""
    parent = pages[0].context.parent
    assert parent is not None
    kind = parent.command.registry.kind  # type: ignore[attr-defined]
    text = f"Each {kind} and its options: rb-{words.split()[-1]}(1). NAME is one of these."
    every = set.intersection(*(set(_records(one)) for one in pages))
    own = [record for record in _records(pages[0]) if record in every and record not in shared]
    summary = parent.command.get_short_help_str()
    return [f".SS {_escape(words)} NAME", *_paragraphs([summary, text]), *_terms(dict(own))]


def _of_several(pages: Sequence[Page]) -> list[Record]:
    """Options that two or more of the commands have; of several texts of one, that of most commands."""
    count = collections.Counter(record for one in pages for record in dict.fromkeys(_records(one)))
    best: dict[str, Record] = {}
    for record, _ in count.most_common():
        best.setdefault(record[0].split()[0], record)
    return [record for record in count if count[record] > 1 and record in best.values()]


def _records(page: Page) -> list[Record]:
    params = page.command.get_params(page.context)
    return [
        record
        for param in params
        if isinstance(param, click.Option) and (record := param.get_help_record(page.context))
    ]


def shared_options(pages: Iterable[Page]) -> dict[Record, option_groups.OptionGroup]:
    """The options of all groups as most commands have them, group by group."""
    count: dict[str, collections.Counter[Record]] = {}
    for one in pages:
        for param in one.command.get_params(one.context):
            if isinstance(param, click.Option) and (record := param.get_help_record(one.context)):
                count.setdefault(option_groups.long_name(param), collections.Counter())[record] += 1
    return {
        count[name].most_common(1)[0][0]: group
        for group in option_groups.GROUPS
        for name in (*group.shown, *group.more)
    }


def _options(page: Page, shared: Collection[Record], elsewhere: set[str]) -> list[str]:
    records = [one for one in _records(page) if one[0] not in elsewhere and one not in shared]
    return [".SH OPTIONS", *_terms(dict(records))] if records else []


def _section(
    page: Page, several: Collection[Record], shared: Collection[Record], described: dict[str, str]
) -> list[str]:
    """One command; `described` has the last word of the first command for each list of further options."""
    _, _, body, _ = _parts(page.command, page.words)
    records = [record for record in _records(page) if record not in shared]
    own = {flag: text for flag, text in records if (flag, text) not in several}
    lines = [f".SS {_escape(page.words)}", *_paragraphs(body), *_terms(own)]
    below = [record for record in records if record in several]
    if below:
        names, word = _names(below), page.words.split()[-1]
        first = described.setdefault(names, word)
        listed = f"those of {first}" if first != word and len(below) > 2 else names
        lines += _paragraphs([f"{'Also' if own else 'Options'}, described below: {listed}."])
    return lines


def _of_many_tools(pages: Sequence[Page], shared: Collection[Record]) -> list[str]:
    """The names of the options that rbtools-options(7) describes."""
    has = {record for one in pages for record in _records(one)}
    names = [record for record in shared if record in has]
    text = f"{OPTIONS}(7) describes these, which many tools have: {_names(names)}."
    return [".SH OPTIONS OF MANY TOOLS", *_paragraphs([text])]


def _names(records: Iterable[Record]) -> str:
    """--quiet of `-q, --quiet`, --steps of `--steps N`."""
    return ", ".join(
        next(word for word in flags.split() if word.startswith("--")).rstrip(",") for flags, _ in records
    )


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
    """A text on lines of at most 80 characters, as roff's checkers want them; none looks like a request."""
    lines = textwrap.wrap(text, 78, break_long_words=False, break_on_hyphens=False)
    return [f"\\&{line}" if line[:1] in (".", "'") else line for line in lines]


def _code(lines: Sequence[str]) -> list[str]:
    """Lines as they are, with the spaces that line up a table."""
    return [".nf", ".RS", *map(_escape_line, lines), ".RE", ".fi"]


def _quoted(text: str) -> str:
    return '"' + _escape(text) + '"'


def _escape(text: str) -> str:
    """Text that roff sets as it is: hyphens to copy and paste, no line that looks like a request."""
    return _escape_line(" ".join(text.split()))


def _escape_line(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"[^\x00-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", text)
    text = text.replace("'", "\\(aq").replace("`", "\\(ga").replace("^", "\\(ha").replace("~", "\\(ti")
    return f"\\&{text}" if text[:1] in (".", "\\") and not text.startswith("\\-") else text
