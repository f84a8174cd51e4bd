"""Groups of options in the help and in man pages, and the option --help-all."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import click

_ALL = "rbtools.help-all"
_TERMS = 30  # the widest column of flags


class OptionGroup(NamedTuple):
    """--help explains the options in `shown` and only lists those in `more`; --help-all explains both."""

    title: str
    shown: Sequence[str]
    more: Sequence[str]


GROUPS = (
    OptionGroup(
        "Optimisation",
        ("epochs", "batch-size", "lr", "optimizer", "schedule", "weight-decay"),
        ("lr-rule", "micro-batch", "momentum", "nesterov", "milestones", "decay", "ema", "deterministic"),
    ),
    OptionGroup(
        "Regularisation",
        ("augment", "regularize"),
        (
            "label-smoothing cutout-length mixup-alpha awp-gamma awp-warmup l2 wci-weight filter filter-rule"
            " warm-steps clean-pass"
        ).split(),
    ),
    OptionGroup(
        "Validation, tracking and initial weights",
        ("val", "select", "track", "init"),
        "patience output keep every track-n stop-on stop-patience init-file resample tensorboard".split(),
    ),
    OptionGroup(
        "Model", ("checkpoint", "arch", "normalize"), ("member", "allow-code", "defend", "backward", "draws")
    ),
    OptionGroup(
        "Data",
        ("dataset", "split", "n", "resize", "crop"),
        "interpolation squash transform indices data-dir download class-map classes".split(),
    ),
    OptionGroup(
        "Running",
        ("device", "jobs", "seed"),
        (
            "batch precision prepare threads shard placeholders jobs-per-gpu engine ray-address unordered"
        ).split(),
    ),
    OptionGroup(
        "Records and store", ("store", "dry-run"), ("as", "in-place", "errors", "allow-empty", "force")
    ),
    OptionGroup("Messages and help", ("quiet", "help", "help-all"), ("verbose", "log", "config", "version")),
)
# Further options that --help only lists, in their sections.
RARE = frozenset(
    "ladder detail save-png precision-goal screen-steps relative-step step-decay eot grid target"
    " require-decided particles moves runs floor confidence passes denominator only clip truncate"
    " attack-norm step-size init-seed batchnorm iterations tolerance activation rho lipschitz"
    " lipschitz-theta smooth smooth-theta gamma softmax updates weight c failure examples largest form"
    " source save-adv reference queries".split()
)
_GROUPED = {name for group in GROUPS for name in (*group.shown, *group.more)}


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


def shared(param: click.Option) -> bool:
    """True if the option is in one of the groups. The option -o FILE is not the --output of rb-train."""
    return long_name(param) in _GROUPED and "-o" not in param.opts


def sections(
    ctx: click.Context, params: Sequence[click.Parameter], chosen: Collection[str | None], title: str
) -> Iterator[HelpSection]:
    """The help's sections: the options in `chosen` (with the heading `title`), other options, groups."""
    options = [param for param in params if isinstance(param, click.Option)]
    of_examples = used(ctx)
    others = [param for param in options if param.name not in chosen]
    yield _section(ctx, title, [one for one in options if one.name in chosen], RARE - of_examples)
    yield _section(ctx, "Options", [one for one in others if not shared(one)], RARE - of_examples)
    for group in GROUPS:
        names = (*group.shown, *group.more)
        members = [one for one in others if shared(one) and long_name(one) in names]
        members.sort(key=lambda one: names.index(long_name(one)))
        # if a method is chosen, the other options are only listed
        rare = names if ctx.meta.get("rbtools.named") and group is not GROUPS[-1] else group.more
        yield _section(ctx, group.title, members, {*rare} - of_examples)


def used(ctx: click.Context) -> set[str]:
    """The options that the examples of the help have, which it explains."""
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
    ctx: click.Context, title: str, options: Sequence[click.Option], rare: Collection[str]
) -> HelpSection:
    if every(ctx):
        return HelpSection(title, _records(ctx, options), [])
    named = [f"--{long_name(one)}" for one in options if long_name(one) in rare]
    explained = [one for one in options if long_name(one) not in rare]
    return HelpSection(title, [*map(_brief, _records(ctx, explained))], named)


def _records(ctx: click.Context, options: Sequence[click.Option]) -> list[tuple[str, str]]:
    return [record for option in options if (record := option.get_help_record(ctx))]


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
                text = f"And {', '.join(part.named)}."
                room = formatter.width - formatter.current_indent
                for line in textwrap.wrap(text, room, break_on_hyphens=False):
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")
