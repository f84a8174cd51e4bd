"""Man pages in roff, from the commands' own help."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence

import click

from rbtools import __date__, __version__
from rbtools.cli.docs import pages as prose
from rbtools.cli.tools import Page

STATUS = {
    "0": "All records were processed, or there were none.",
    "1": "A record failed or a line was no record; it is on standard output with an error.",
    "2": "The command line is wrong.",
    "130": "Interrupted (Ctrl-C). What was finished is written and in the store.",
    "141": "The reader of standard output closed it.",
    "143": "Terminated. What was finished is written and in the store.",
}
ENVIRONMENT = {
    "RB_STORE": "The default of --store.",
    "RB_DATA": "The default of --data-dir.",
    "RB_CONFIG": "The default of --config.",
    "NO_COLOR": "No colours on the terminal.",
}
RECORDS = (
    "A record describes one model: one JSON object on one line."
    ' "metrics" holds its results, a name and a number; "evals" says how each was measured.'
    " A field that a tool does not know passes through untouched, and so does a record with an"
    ' "error", which an earlier tool could not work on; rb-rank, rb-corr, rb-search, rb-plot and'
    " rb-convert leave such a record out and say how many there were."
)
DIVIDING = (
    (
        "With --shard I/N a tool works on each N-th record only, from the I-th on. Many processes, on one"
        " machine or on many that see the same folder, then divide the work over one store, and each may"
        " be stopped and started again. --shard auto takes the shard of its task in a Slurm job. This script,"
        " given to sbatch, works on a file (records.jsonl) in an array of eight:",
        "#!/bin/sh\n"
        "#SBATCH --array=1-8 --gpus=1\n"
        "{use} --shard auto records.jsonl > part-$SLURM_ARRAY_TASK_ID.jsonl",
    ),
    (
        "Shards without a record, because there are more shards than records, help with the images of the"
        " records of others in a Slurm job, and with --checkpoint all shards share the images of the one"
        " model: rb-attack, rb-corrupt, rb-pr, rb-ge and rb-measure. The parts together are what one process"
        " writes: a shard that helps writes nothing. Without --shard the tasks of a Slurm job share the"
        " images of every record, and each writes all records; so do the workers of --jobs once no more"
        " records come. GNU parallel, with as many at once as there are cores:",
        "parallel '{use} --shard {{}}/8 records.jsonl > part-{{}}.jsonl' ::: 1 2 3 4 5 6 7 8",
    ),
    (
        "A makefile, for make -j 8 (a rule on one line needs no tab):",
        "all: $(patsubst %,part-%.jsonl,1 2 3 4 5 6 7 8)\n"
        "part-%.jsonl: records.jsonl ; {use} --shard $*/8 $< > $@",
    ),
    (
        "When all have ended, the same command without --shard finds everything in the store and writes"
        " the records in the order of the file:",
        "{use} records.jsonl > all.jsonl",
    ),
)
USES = {
    "rb-train": "rb-train --method trades",
    "rb-attack": "rb-attack pgd --eps 8",
    "rb-pr": "rb-pr --gamma 0.1",
    "rb-corrupt": "rb-corrupt all",
    "rb-ge": "rb-ge acc",
    "rb-measure": "rb-measure all",
    "rb-verify": "rb-verify --n 500",
    "rb-search": "rb-search local --objective pgd20.8",
}
NEEDS_ALL = ("rb-score", "rb-rank", "rb-search", "rb-corr", "rb-plot")


def page(pages: Sequence[Page], tools: Sequence[str]) -> str:
    """The man page of one tool with all its subcommands."""
    first = pages[0]
    name, summary, body, examples = _parts(first.command, first.words)
    below = [one for one in pages[1:] if "--" not in one.words]
    chosen = [one for one in pages[1:] if "--" in one.words]
    lines = [
        _title(name, 1),
        ".SH NAME",
        f"{_escape(name)} \\- {_escape(summary)}",
        ".SH SYNOPSIS",
        *_synopsis([one for one in pages if one not in chosen]),
        ".SH DESCRIPTION",
        *_paragraphs(body[1:] or body),
        *_options(first, {flag for one in chosen for flag, _ in _records(one)}),
    ]
    if below or chosen:
        lines.append(".SH COMMANDS" if below else ".SH CHOICES")
    shared = _flags(below)
    for one in [*below, *chosen]:
        lines += _section(one, shared)
    lines += _common(below)
    if examples:
        lines += [".SH EXAMPLES", *_code(examples)]
    lines += _expressions(pages)
    lines += _of_records(pages)
    lines += _dividing(pages)
    lines += [".SH EXIT STATUS", *_terms(STATUS), ".SH ENVIRONMENT", *_terms(_environment(pages))]
    lines += _see_also([*(f"{tool}(1)" for tool in tools if tool != name), "rb-record(5)", "rbtools(7)"])
    return _text(lines)


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
    others = {"rb-record": ["rbtools(7)"], "rbtools": ["rb-record(5)"]}[page.name]
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


def _environment(pages: Sequence[Page]) -> dict[str, str]:
    """The variables that one of these commands reads."""
    known = {param.envvar for page in pages for param in page.command.params}
    return {name: text for name, text in ENVIRONMENT.items() if name in known or name == "NO_COLOR"}


def _of_records(pages: Sequence[Page]) -> list[str]:
    """What records are, and whether the tool waits for all of them; nothing for rb-store."""
    tool = pages[0].words
    reads = any(param.name == "files" for page in pages for param in page.command.params)
    if not reads and tool != "rb-arch":
        return []
    pace = (
        "This tool needs all records: it reads to the end of its input before it writes."
        if tool in NEEDS_ALL
        else "This tool writes each record as soon as it is done, so that all tools of a pipe work at once."
    )
    return [".SH RECORDS", *_paragraphs([RECORDS, pace])]


def _dividing(pages: Sequence[Page]) -> list[str]:
    """How several processes divide the work; only for tools with a store."""
    params = [param for page in pages for param in page.command.get_params(page.context)]
    shown = [param for param in params if not (isinstance(param, click.Option) and param.hidden)]
    flags = {flag for param in shown for flag in param.opts}
    if not {"--shard", "--store"} <= flags:
        return []
    use = USES.get(pages[0].words, pages[0].words)
    lines = [".SH DIVIDING THE WORK"]
    for text, code in DIVIDING:
        lines += [*_paragraphs([text]), *_code(code.format(use=use).split("\n"))]
    return lines


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
    uses = [
        f"\\fB{_escape(one.words)}\\fR {_escape(' '.join(one.command.collect_usage_pieces(one.context)))}"
        for one in pages
        if not isinstance(one.command, click.Group)
    ]
    return "\n.br\n".join(uses).splitlines()


def _flags(pages: Sequence[Page]) -> set[str]:
    """Options that every subcommand has: they are described once."""
    leaves = [one for one in pages if not isinstance(one.command, click.Group)]
    sets = [{record[0] for record in _records(one)} for one in leaves]
    return set.intersection(*sets) if sets else set()


def _records(page: Page) -> list[tuple[str, str]]:
    params = page.command.get_params(page.context)
    return [
        record
        for param in params
        if isinstance(param, click.Option) and (record := param.get_help_record(page.context))
    ]


def _options(page: Page, elsewhere: set[str]) -> list[str]:
    records = [record for record in _records(page) if record[0] not in elsewhere]
    return [".SH OPTIONS", *_terms(dict(records))] if records else []


def _section(page: Page, shared: set[str]) -> list[str]:
    if isinstance(page.command, click.Group):
        return []
    _, _, body, _ = _parts(page.command, page.words)
    own = {flag: text for flag, text in _records(page) if flag not in shared}
    return [f".SS {_escape(page.words)}", *_paragraphs(body), *_terms(own)]


def _common(pages: Sequence[Page]) -> list[str]:
    shared = _flags(pages)
    if not shared:
        return []
    leaf = next(one for one in pages if not isinstance(one.command, click.Group))
    common = {flag: text for flag, text in _records(leaf) if flag in shared}
    return [".SH COMMON OPTIONS", *_terms(common)]


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
