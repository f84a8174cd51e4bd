"""Groups of options in the help and in man pages, and the option --help-all."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import click

_ALL = "rbtools.help-all"
_JOIN = "\u2011"  # a hyphen at which no line breaks
_TERMS = 30  # the widest column of flags

MESSAGES = "Messages and help"
# The headings of options that several tools have, in the order of the help; `group` of a field names one.
GROUPS = (
    "Optimisation",
    "Regularisation",
    "Validation, tracking and initial weights",
    "Model",
    "Data",
    "Running",
    "Records and store",
    MESSAGES,
)


class GroupedOption(click.Option):
    """An option that knows its heading in the help, and if it is rarely used (see `registry.param`)."""

    def __init__(self, *args: Any, group: str | None = None, rare: bool = False, **settings: Any) -> None:
        super().__init__(*args, **settings)
        assert group is None or group in GROUPS, f"The help has no heading {group!r}."
        self.group, self.rare = group, rare


class _Formatter(click.HelpFormatter):
    """Wraps text without breaking names such as --allow-code or rb-store at a hyphen."""

    def write(self, string: str) -> None:
        super().write(string.replace(_JOIN, "-"))

    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", _JOIN))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(term, text.replace("-", _JOIN)) for term, text in rows], col_max, col_spacing)


class HelpContext(click.Context):
    formatter_class = _Formatter


class HelpSection(NamedTuple):
    """A heading of the help, the options that are explained, and the flags that are only listed."""

    title: str
    records: list[tuple[str, str]]
    named: list[str]


def _explain(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_explain,
    help="Explain all options and exit.",
)


def every(ctx: click.Context) -> bool:
    """True if all options are explained (--help-all)."""
    return bool(ctx.meta.get(_ALL, False))


def long_name(param: click.Option) -> str:
    """The option's name without dashes, such as `batch` for `--batch`, or `quiet` for `-q, --quiet`."""
    return next((flag[2:] for flag in param.opts if flag.startswith("--")), "")


def sections(
    ctx: click.Context, params: Sequence[click.Parameter], chosen: Collection[str | None], title: str
) -> Iterator[HelpSection]:
    """The sections of the help: `chosen` options (with the heading `title`), other options, and groups."""
    options = [param for param in params if isinstance(param, click.Option)]
    others = [param for param in options if param.name not in chosen]
    yield _section(ctx, title, [one for one in options if one.name in chosen], _rare)
    yield _section(ctx, "Options", [one for one in others if _group(one) is None], _rare)
    for group in GROUPS:
        members = sorted((one for one in others if _group(one) == group), key=_rare)
        # if a method is chosen, the other options are only listed
        only_listed = ctx.meta.get("rbtools.named") and group != MESSAGES
        yield _section(ctx, group, members, (lambda one: True) if only_listed else _rare)


def _group(option: click.Option) -> str | None:
    return option.group if isinstance(option, GroupedOption) else MESSAGES  # --help and others of click


def _rare(option: click.Option) -> bool:
    return isinstance(option, GroupedOption) and option.rare


def used(ctx: click.Context) -> set[str]:
    """The options that the examples in the help use, which are therefore explained."""
    examples = (ctx.command.help or "").partition("\nExample")[2]
    words = shlex.split(examples.replace("\n", " "), posix=False) if examples else []
    tool, found = str(ctx.find_root().info_name), set[str]()
    here = False
    for word in words:
        here = word == tool if word.startswith("rb-") else here and word != "|"
        if here and word.startswith("--"):
            found.add(word[2:].partition("=")[0])
    return found


def _section(
    ctx: click.Context, title: str, options: Sequence[click.Option], rare: Callable[[click.Option], bool]
) -> HelpSection:
    of_examples = used(ctx)
    listed = [] if every(ctx) else [one for one in options if rare(one) and long_name(one) not in of_examples]
    records = [row for one in options if one not in listed and (row := one.get_help_record(ctx))]
    named = [f"--{long_name(one)}" for one in listed]
    return HelpSection(title, records if every(ctx) else [*map(_brief, records)], named)


def _brief(record: tuple[str, str]) -> tuple[str, str]:
    """The first sentence of a help text, and the default."""
    flags, text = record
    default = re.search(r"  \[(?:default|env var).*", text, re.S)
    whole = text.split("  [")[0]
    sentence = re.match(r".*?\.(?=\s|$)(?<! \.\.\.)", whole, re.S)
    return flags, (sentence[0] if sentence else whole) + (default[0] if default else "")


def write(formatter: click.HelpFormatter, parts: Iterator[HelpSection]) -> None:
    """Write the sections that are not empty, with all explanations in one column."""
    sections = list(parts)
    width = min(max((len(term) for part in sections for term, _ in part.records), default=0), _TERMS)
    for part in sections:
        if not part.records and not part.named:
            continue
        with formatter.section(part.title):
            if part.records:
                (term, text), *others = part.records
                formatter.write_dl([(term.ljust(width), text), *others], col_max=_TERMS)
            if part.named:
                text = f"Also available: {', '.join(part.named)}."
                room = formatter.width - formatter.current_indent
                for line in textwrap.wrap(text, room, break_on_hyphens=False):
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")
