"""Commands of click: registered classes become subcommands, and the fields of a class become options."""

from __future__ import annotations

import functools
import re
import shlex
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rbtools import __version__, registry
from rbtools.cli import config, option_groups
from rbtools.cli.command_main import CommandMain, first_paragraph
from rbtools.cli.declare import Tool
from rbtools.cli.method_options import completed, for_people, method_options
from rbtools.cli.method_options import rendered as rendered_option
from rbtools.errors import RbError

CONTEXT: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "show_default": True,
}


class Command(CommandMain, click.Command):
    classes: Sequence[type] = ()  # the registered classes of a subcommand
    tool: Tool | None = None  # the tool of these classes

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = with_pairs(args)
        if self.classes:
            ctx.meta["rbtools.classes"] = list(self.classes)
        config.apply(ctx, self.get_params(ctx), args)
        return super().parse_args(ctx, args)


PAIR = "--normalize"  # the only option whose value may be two arguments


def with_pairs(args: Sequence[str]) -> list[str]:
    """Join the two words of `--normalize MEAN STD`, because click expects a fixed number of words."""
    words = list(args)
    end = words.index("--") if "--" in words else len(words)
    for place, word in enumerate(words[:end]):
        word, equals, value = word.partition("=")
        second = place + 1 if equals else place + 2
        first = value if equals else words[place + 1] if place + 1 < end else ""
        if word == PAIR and second < end and _is_number(first) and _is_number(words[second]):
            words[second - 1] = f"{words[second - 1]} {words.pop(second)}"
            break
    return words


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+\d.,e]*", text) is not None and any(map(str.isdigit, text))


class Below(Mapping[str, click.Command]):
    """Maps names to the subcommands of a tool, whose options are created when they are first used."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.tools = tools

    def __getitem__(self, name: str) -> click.Command:
        return rendered(self.tools[name])

    def __contains__(self, name: object) -> bool:
        return name in self.tools

    def __iter__(self) -> Iterator[str]:
        return iter(self.tools)

    def __len__(self) -> int:
        return len(self.tools)


class Group(CommandMain, click.Group):
    kind = "command"
    tool: Tool

    def help_of(self, name: str) -> str:
        """The help of a subcommand, which is available before its options are created."""
        return self.tool.commands[name].help

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            names = self.list_commands(ctx)
            formatter.write_dl([(name, first_paragraph(self.help_of(name))) for name in names])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names, typed = self.list_commands(ctx), list(args)
        if not args and not ctx.resilient_parsing:
            raise click.UsageError(f"No {self.kind} is given. Choose one of: {', '.join(names)}.", ctx)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as wrong:
            line = [names[0], wrong.option_name, "..."]
            chosen = next((word for word in typed if word.split(",")[0] in names), None)
            if chosen is not None:
                typed.remove(chosen)
                line = [chosen, *typed]
            raise click.UsageError(
                f"Option '{wrong.option_name}' must come after the {self.kind}. Write:"
                f" {ctx.command_path} {shlex.join(line)}",
                ctx,
            ) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            for name, command in self.commands.items():
                methods = getattr(command, "registry", None)
                if methods is not None and args[0].split(",")[0] in methods:
                    kind = methods.kind
                    line = [name, *filter(None, [getattr(command, "option", None)]), args[0]]
                    raise click.UsageError(
                        f"'{args[0]}' is the name of {'an' if kind[0] in 'aeiou' else 'a'} {kind}. Write:"
                        f" {ctx.command_path} {shlex.join(line)}",
                        ctx,
                    ) from None
            raise


class Chooser(Group):
    """A command whose subcommands are the names in a registry and in `tool.commands` (also `--NAME`)."""

    registry: registry.Registry

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self.registry.kind

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self.tool.listed

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        chosen = bool(args) and args[0].split(",")[0] in self.registry  # its --preset is an option
        for name in () if chosen else self.commands:
            for place, word in enumerate(args[: args.index("--") if "--" in args else None]):
                if word == f"--{name}":
                    return super().parse_args(ctx, [name, *args[place + 1 :], *args[:place]])
                if word.startswith(f"--{name}="):
                    value = word.partition("=")[2]
                    return super().parse_args(ctx, [name, value, *args[place + 1 :], *args[:place]])
            if args and args[0] == name:
                break
        return super().parse_args(ctx, args)

    def help_of(self, name: str) -> str:
        if name in self.commands:
            return super().help_of(name)
        names = self.tool.names(name)
        if len(names) != 1:
            return f"All of these: {', '.join(names)}."
        return for_people(self.registry.docstring(names[0]))

    def get_command(self, ctx: click.Context, name: str) -> click.Command:
        if name in self.commands:
            return self.commands[name]
        names = self.tool.names(name)
        classes = [self.registry.load(item) for item in names]
        command = Command(
            name,
            params=[*method_options(classes), *map(rendered_option, self.tool.options_beside(classes))],
            callback=lambda **values: self.tool.chosen(names, values, classes),
            help=self.help_of(name),
            context_settings=CONTEXT,
        )
        command.classes, command.tool = classes, self.tool
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name.startswith("-"):
            return super().resolve_command(ctx, args)
        try:
            if name not in self.commands:
                self.tool.load(self.tool.names(name), "--allow-code" in args)
            return name, self.get_command(ctx, name), args[1:]
        except RbError as wrong:
            raise click.UsageError(str(wrong), ctx) from None


class OptionChooser(CommandMain, click.Command):
    """A command with an option, such as `--method`, that chooses classes with further options."""

    tool: Tool
    registry: registry.Registry
    option: str

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named: list[str] = []
        args = with_pairs(args)
        settings = {} if config.covers(self, args) else config.settings(ctx, args)
        said = [f"--{name}={config.text_of(value)}" for name, value in settings.items()]
        for position, word in enumerate(before := [*said, *args]):
            if word == "--":
                break
            if word == self.option and position + 1 < len(before):
                named = before[position + 1].split(",")
            elif word.startswith(self.option + "="):
                named = word.partition("=")[2].split(",")
        names = [name for name in (part.strip() for part in named) if name]
        try:
            chosen = names or [self.tool.default([*args, *said])]
            classes = ctx.meta["rbtools.classes"] = self.tool.load(chosen, "--allow-code" in args)
        except RbError as wrong:
            raise click.UsageError(str(wrong), ctx) from None
        ctx.meta["rbtools.named"] = dict(zip(names, classes, strict=False))
        config.apply(ctx, self.get_params(ctx), args)
        rest = super().parse_args(ctx, args)
        self._refuse_choices(ctx)
        return rest

    def of_examples(self, ctx: click.Context, params: Sequence[click.Parameter]) -> list[click.Option]:
        if ctx.meta.get("rbtools.named"):
            return []
        known, used = {one.name for one in params}, option_groups.used(ctx)
        every = method_options([cls for _, cls in self.registry.loaded()])
        more = [one for one in every if isinstance(one, click.Option) and one.name not in known]
        return [one for one in more if option_groups.long_name(one) in used]

    def _refuse_choices(self, ctx: click.Context) -> None:
        """Raise an error for `rb-train trades`, where the word is a method and not a file."""
        for word in ctx.params.get("files") or ():
            if word in self.registry and not Path(word).exists():
                raise click.UsageError(
                    f"There is no file '{word}'. The {self.registry.kind} is {self.option} {word}.", ctx
                )

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        named = ctx.meta.get("rbtools.named", {})
        if not named or option_groups.every(ctx):
            super().format_help_text(ctx, formatter)
        for name, cls in named.items():
            with formatter.section(f"{self.option} {name}"):
                paragraphs = for_people(cls.__doc__).split("\n\n")
                formatter.write_text("\n\n".join(paragraphs[: None if option_groups.every(ctx) else 2]))

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        classes = ctx.meta.get("rbtools.classes") or [self.registry.load(self.tool.default(()))]
        beside = {option.name for option in self.tool.options_beside(classes)}
        own = [
            param
            for param in super().get_params(ctx)
            if param.name in beside or param.name not in {option.name for option in self.tool.options}
        ]
        return [*method_options(classes), *own]


def _callback(tool: Tool) -> Callable[..., Any]:
    if tool.by is None:
        return lambda **values: tool.run(values)
    return lambda **values: tool.chosen((), values, click.get_current_context().meta["rbtools.classes"])


def _listed(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Print one line for each command, with the first sentence of the help and the paragraph "Needs ..."."""
    if not value or ctx.resilient_parsing:
        return
    group = typing.cast(Group, ctx.command)
    names = group.list_commands(ctx)
    for name in names:
        first, *others = group.help_of(name).split("\n\n")
        needs = [paragraph for paragraph in others if paragraph.startswith("Needs ")]
        shows = " ".join(first.split()).partition(". ")[0].removesuffix(".")
        click.echo(" ".join([f"{name:{max(map(len, names))}}  {shows}.", *needs]).replace("\n", " "))
    ctx.exit()


def _completing(choices: registry.Registry | None) -> dict[str, Any]:
    """The setting of an option that chooses names of a registry: its values can be completed."""
    assert choices is not None
    return {"shell_complete": lambda ctx, param, typed: completed(typed, [*choices, *choices.plugins])}


@functools.cache
def rendered(tool: Tool) -> click.Command:
    common: dict[str, Any] = {"context_settings": CONTEXT, "help": tool.help}
    if tool.holds_commands:
        group = (Chooser if tool.registry is not None else Group)(tool.name, no_args_is_help=False, **common)
        group.commands, group.tool = Below(tool.commands), tool  # type: ignore[assignment]
        command: Any = group
    else:
        params = [
            rendered_option(one, **(_completing(tool.registry) if tool.by in one.flags else {}))
            for one in tool.options
        ]
        kind = Command if tool.by is None else OptionChooser
        command = kind(tool.name, params=params, callback=_callback(tool), **common)
    if tool.registry is not None:
        command.tool, command.registry, command.option = tool, tool.registry, tool.by
    if tool.lists:
        flag: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}
        command.params.append(
            option_groups.GroupedOption(["--list"], callback=_listed, help=tool.lists, **flag)
        )
    shown: click.Command = click.version_option(
        __version__,
        cls=option_groups.GroupedOption,
        group=option_groups.MESSAGES,
        rare=True,
        message="%(prog)s (rbtools) %(version)s",
        help="Show the version and exit; -v adds the versions of Python, torch and other packages.",
    )(command)
    return shown
