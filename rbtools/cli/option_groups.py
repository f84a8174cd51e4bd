"""The groups of options in help and manual pages, and --help-all."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import click

_ALL = "rbtools.help-all"
_TERMS = 30  # the widest column of flags


class OptionGroup(NamedTuple):
    """Options that many tools share: --help explains `shown` and names `more`, which --help-all explains."""

    title: str
    shown: tuple[str, ...]
    more: tuple[str, ...]


GROUPS = (
    OptionGroup("Model", ("checkpoint", "arch", "normalize", "defend"), ("allow-code",)),
    OptionGroup("Data", ("dataset", "split", "n"), ("data-dir", "download")),
    OptionGroup("Running", ("device", "jobs", "seed"), ("batch", "precision", "prepare", "threads", "shard")),
    OptionGroup(
        "Records and store", ("store", "dry-run"), ("as", "in-place", "errors", "allow-empty", "force")
    ),
    OptionGroup("Messages and help", ("quiet", "verbose", "help", "help-all"), ("log", "config", "version")),
)
_GROUP_OF = {name: group for group in GROUPS for name in (*group.shown, *group.more)}


class HelpSection(NamedTuple):
    """A heading of the help, options with their texts, and flags that are only named."""

    title: str
    records: list[tuple[str, str]]
    named: list[str]


def _explain(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_help_all = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_explain,
    help="Explain the options too that --help only names, and exit.",
)


def with_help_all(params: Sequence[click.Parameter]) -> list[click.Parameter]:
    """The parameters, with --help-all where --help leaves an option unexplained."""
    if any(long_name(param) in group.more for param in _options(params) for group in GROUPS):
        return [*params, _help_all]
    return list(params)


def _options(params: Sequence[click.Parameter]) -> list[click.Option]:
    return [param for param in params if isinstance(param, click.Option) and not param.hidden]


def long_name(param: click.Option) -> str:
    """`batch` of `--batch`, `quiet` of `-q, --quiet`."""
    return next((flag[2:] for flag in param.opts if flag.startswith("--")), "")


def shared(param: click.Option) -> bool:
    """Whether the option is in one of the groups."""
    return long_name(param) in _GROUP_OF


def sections(
    ctx: click.Context, params: Sequence[click.Parameter], chosen: Collection[str | None], title: str
) -> Iterator[HelpSection]:
    """The sections of a command's help: the options of its chosen classes under `title` (`chosen` has their
    names), its own options, then the groups."""
    every = ctx.meta.get(_ALL, False)
    options = _options(params)
    ungrouped = [param for param in options if param.name not in chosen and not shared(param)]
    yield HelpSection(title, _records(ctx, [one for one in options if one.name in chosen]), [])
    yield HelpSection("Options", _records(ctx, ungrouped), [])
    for group in GROUPS:
        members = [
            one for one in options if one.name not in chosen and _GROUP_OF.get(long_name(one)) == group
        ]
        if every:
            yield HelpSection(group.title, _records(ctx, members), [])
            continue
        explained = sorted(
            (one for one in members if long_name(one) in group.shown),
            key=lambda one: group.shown.index(long_name(one)),
        )
        named = [f"--{long_name(one)}" for one in members if one not in explained]
        yield HelpSection(group.title, [*map(_brief, _records(ctx, explained))], named)


def _records(ctx: click.Context, options: Sequence[click.Option]) -> list[tuple[str, str]]:
    return [record for option in options if (record := option.get_help_record(ctx))]


def _brief(record: tuple[str, str]) -> tuple[str, str]:
    """The first sentence of a text, and the default."""
    flags, text = record
    default = re.search(r"  \[(?:default|env var).*", text, re.S)
    sentence = re.match(r".*?\.(?=\s|$)(?<! \.\.\.)", text.split("  [")[0], re.S)
    return flags, (sentence[0] if sentence else text) + (default[0] if default else "")


def write(formatter: click.HelpFormatter, parts: Iterator[HelpSection]) -> None:
    """Write the sections that are not empty, with all texts in one column."""
    every = list(parts)
    width = min(max((len(term) for part in every for term, _ in part.records), default=0), _TERMS)
    for part in every:
        if not part.records and not part.named:
            continue
        with formatter.section(part.title):
            if part.records:
                (term, text), *others = part.records
                formatter.write_dl([(term.ljust(width), text), *others], col_max=_TERMS)
            if part.named:
                formatter.write_text(f"And {', '.join(part.named)}.")
