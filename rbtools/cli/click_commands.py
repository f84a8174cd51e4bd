"""click with the exit statuses and one-line errors of rbtools, and with registered classes as subcommands
whose fields are their options.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import shlex
import sys
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from rbtools import __version__, registry
from rbtools.cli import command_line, config, events, exit_status, option_groups
from rbtools.cli.method_options import for_people, legible, method_options
from rbtools.cli.tools import CONTEXT, params_of
from rbtools.errors import RbError, unknown


class _Main:
    """`main()` of every command: run it, and exit with its status."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: object,
    ) -> typing.NoReturn:
        command = typing.cast(click.Command, self)
        arguments = list(sys.argv[1:] if args is None else args)
        name = prog_name or str(command.name)
        command_line.note(str(command.name), arguments if args is None else None)
        command._main_shell_completion(extra, name, complete_var or "_RB_COMPLETE")
        with exit_status.caught(command, name) as result:
            with command.make_context(name, arguments, **extra) as context:  # type: ignore[arg-type]
                outcome = command.invoke(context)
            result.status = int(outcome() if callable(outcome) else outcome or exit_status.DONE)
        status = result.status
        events.ended(status)
        early = status in (exit_status.INTERRUPTED, exit_status.TERMINATED, exit_status.GONE)
        if args is None and early:
            # Everything is written and released. Skip torch's shutdown, which takes half a second (three on a
            # busy machine).
            exit_status.flush()
            os._exit(status)
        sys.exit(status)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return legible(option_groups.with_help_all(super().get_params(ctx)))  # type: ignore[misc]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The first paragraphs and the examples; with --help-all the whole text."""
        first, *more = inspect.cleandoc(typing.cast(click.Command, self).help or "").split("\n\n")
        if not option_groups.every(ctx):
            more = [one for place, one in enumerate(more) if not place or one.startswith("\b\nExample")]
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n\n".join([first, *more]))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options in groups, those of the chosen classes first; the commands below this one."""
        command = typing.cast(click.Command, self)
        names = {option.name for option in method_options(ctx.meta.get("rbtools.classes", ()))}
        title = f"Options of {_chosen(ctx)}"
        option_groups.write(formatter, option_groups.sections(ctx, command.get_params(ctx), names, title))
        if isinstance(command, click.Group):
            command.format_commands(ctx, formatter)
        of_packages = list(getattr(getattr(self, "registry", None), "plugins", ()))
        if of_packages:
            with formatter.section("From installed packages"):
                formatter.write_text(", ".join(of_packages))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`--version` with `-v`, and nothing else, prints more: click's option would not see the second."""
        if len(args) == 2 and "--version" in args and {"-v", "--verbose"} & set(args):
            from rbtools.cli import versions

            click.echo("\n".join(versions.lines(ctx.command_path)))
            ctx.exit()
        return super().parse_args(ctx, args)  # type: ignore[misc,no-any-return]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, after a look at its numbers."""
        for param in self.get_params(ctx):  # JSON cannot hold NaN, infinity, integers beyond 64 bits
            value = ctx.params.get(param.name or "")
            if isinstance(value, int) and abs(value) > registry.MOST:
                raise click.BadParameter(
                    f"{value} is too large. Expected {registry.MOST} at most.", ctx, param
                )
            if isinstance(value, float) and not math.isfinite(value):
                raise click.BadParameter(f"{value} is no finite number.", ctx, param)
        return super().invoke(ctx)  # type: ignore[misc]

    def get_short_help_str(self, limit: int = 45) -> str:
        """The first paragraph: click would end it after "(Goodfellow et al."."""
        text = inspect.cleandoc(typing.cast(click.Command, self).help or "")
        return " ".join(text.split("\n\n")[0].split())


def _chosen(ctx: click.Context) -> str:
    """The choice as it is typed: pgd, or --method trades."""
    option = getattr(ctx.command, "option", None)
    if option is None:
        return str(ctx.info_name)
    return f"{option} {','.join(cls.name for cls in ctx.meta['rbtools.classes'])}"


def _need_allow_code(names: Sequence[str], args: Sequence[str], ctx: click.Context) -> None:
    """Refuse a class of the user's without --allow-code, before its module is imported."""
    own_code = next((name for name in names if name.startswith(registry.OWN)), None)
    if own_code is not None and "--allow-code" not in args:
        raise click.UsageError(
            f"{own_code} is a program, which would run. If you trust it, add --allow-code.", ctx
        )


class Command(_Main, click.Command):
    """A command without subcommands."""

    classes: Sequence[type] = ()  # the registry's name of a subcommand

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = with_pairs(args)
        if self.classes:
            ctx.meta["rbtools.classes"] = list(self.classes)
        config.apply(ctx, self.get_params(ctx), args)
        return super().parse_args(ctx, args)


PAIR = "--normalize"  # the only option whose value may be two arguments


def with_pairs(args: Sequence[str]) -> list[str]:
    """`--normalize MEAN STD` with its two words as one: click's options take one or two, not either."""
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


class Group(_Main, click.Group):
    """A command that only groups other commands."""

    kind = "command"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names, typed = self.list_commands(ctx), list(args)
        if not args and not ctx.resilient_parsing:
            raise click.UsageError(f"No {self.kind} is named. Choose one of: {', '.join(names)}.", ctx)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as wrong:
            line = [names[0], wrong.option_name, "..."]
            chosen = next((word for word in typed if word.split(",")[0] in names), None)
            if chosen is not None:
                typed.remove(chosen)
                line = [chosen, *typed]
            raise click.UsageError(
                f"No option '{wrong.option_name}' stands before the {self.kind}. Options follow it:"
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
    """A command whose subcommands are the names in a registry.

    With `many`, a name may be a list (`fog,frost`, or `all`): the callback gets the list, and the command has
    the options of all of them. `add_command` adds commands to the registry's names; `--NAME VALUE` in front
    of all else is the same as the command NAME.
    """

    registry: registry.Registry
    work: Callable[..., int]
    many = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.registry, *(["all"] if self.many else []), *self.commands]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for name in self.commands:
            for place, word in enumerate(args[: args.index("--") if "--" in args else None]):
                if word == f"--{name}":
                    return super().parse_args(ctx, [name, *args[place + 1 :], *args[:place]])
                if word.startswith(f"--{name}="):
                    value = word.partition("=")[2]
                    return super().parse_args(ctx, [name, value, *args[place + 1 :], *args[:place]])
            if args and args[0] == name:
                break
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, name: str) -> click.Command:
        if name in self.commands:
            return self.commands[name]
        names = self._names(name)
        classes = [self.registry.load(item) for item in names]
        help_text = for_people(classes[0]) if len(names) == 1 else f"Every one of: {', '.join(names)}."
        choice = {self._dest(): names if self.many else names[0]}
        command = Command(
            name,
            params=[*method_options(classes), *params_of(self.work)],
            callback=_with_params(self.work, choice, classes),
            help=help_text,
            context_settings=CONTEXT,
        )
        command.classes = classes
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name.startswith("-"):
            return super().resolve_command(ctx, args)
        other = next((item for item in self._names(name) if not self.registry.knows(item)), None)
        if name not in self.commands and other is not None:
            raise click.UsageError(str(unknown(self.kind, other, self.list_commands(ctx))), ctx)
        _need_allow_code(self._names(name), args, ctx)
        try:
            return name, self.get_command(ctx, name), args[1:]
        except RbError as wrong:
            raise click.UsageError(str(wrong), ctx) from None

    def _names(self, text: str) -> list[str]:
        if not self.many:
            return [text]
        if "all" in text.split(","):
            return list(self.registry.all)
        return list(dict.fromkeys(filter(None, text.split(","))))

    def _dest(self) -> str:
        return self.registry.kind.replace(" ", "_") + ("s" if self.many else "")


class OptionChooser(_Main, click.Command):
    """A command where one option (`--method trades`) chooses classes, whose fields are further options.

    `covers` names an option that sets all of the command's own options (`--preset`): if it is on the command
    line, a file's settings of them are ignored.
    """

    covers: str | None = None

    registry: registry.Registry
    option: str
    choose: Callable[[Sequence[str]], str]

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
        _need_allow_code(names, args, ctx)
        try:
            default = self.choose([*args, *said])
            ctx.meta["rbtools.named"] = {name: self.registry.load(name) for name in names}
            ctx.meta["rbtools.classes"] = [self.registry.load(name) for name in names or [default]]
        except RbError as wrong:
            raise click.UsageError(str(wrong), ctx) from None
        config.apply(ctx, self.get_params(ctx), args)
        try:
            rest = super().parse_args(ctx, args)
            self._refuse_choices(ctx)
            return rest
        except click.NoSuchOption as wrong:
            for cls in ctx.meta["rbtools.classes"]:
                for field in registry.options(cls):
                    if wrong.option_name == f"--{field.metadata['elsewhere']}":
                        raise click.UsageError(
                            f"No option '{wrong.option_name}' for {self.option} {cls.name}: here that is"
                            f" --{registry.public_name(field)}. {field.metadata['help']}",
                            ctx,
                        ) from None
            having = [name for name in self.registry if wrong.option_name in self._flags(name)]
            if not having:
                raise
            raise click.UsageError(
                f"Option '{wrong.option_name}' belongs to {self.option} {' and '.join(having)}, but"
                f" {self.option} is {','.join(names) or default}.",
                ctx,
            ) from None

    def _refuse_choices(self, ctx: click.Context) -> None:
        """Refuse `rb-train trades`: it names no file, but a choice."""
        for word in ctx.params.get("files") or ():
            if word in self.registry and not Path(word).exists():
                raise click.UsageError(
                    f"'{word}' is a {self.registry.kind}. Write {self.option} {word}.", ctx
                )

    def _flags(self, name: str) -> list[str]:
        """The options of a choice."""
        options = method_options([self.registry.load(name)])
        return [flag for option in options for flag in [*option.opts, *option.secondary_opts]]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's own help, and that of each chosen class; of these --help has the first paragraphs."""
        named = ctx.meta.get("rbtools.named", {})
        if not named or option_groups.every(ctx):
            super().format_help_text(ctx, formatter)
        for name, cls in named.items():
            with formatter.section(f"{self.option} {name}"):
                paragraphs = for_people(cls).split("\n\n")
                formatter.write_text("\n\n".join(paragraphs[: None if option_groups.every(ctx) else 2]))

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        classes = ctx.meta.get("rbtools.classes") or [self.registry.load(self.choose(()))]
        return legible([*method_options(classes), *super().get_params(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        fields = {option.name for option in method_options(ctx.meta["rbtools.classes"])}
        given = {name: ctx.params.pop(str(name)) for name in fields}
        ctx.params["params"] = {name: value for name, value in given.items() if value is not None}
        return super().invoke(ctx)


def _with_params(
    work: Callable[..., int], choice: dict[str, Any], classes: Sequence[type]
) -> Callable[..., int]:
    fields = [str(option.name) for option in method_options(classes)]

    def callback(**kwargs: object) -> int:
        given = {name: kwargs.pop(name) for name in fields}
        chosen = {name: value for name, value in given.items() if value is not None}
        return work(**choice, params=chosen, **kwargs)

    return callback


C = typing.TypeVar("C", bound=click.Command)
F = typing.TypeVar("F", bound=Callable[..., Any])


def version_option(command: C) -> C:
    """Add --version, with the same text in every tool."""
    return click.version_option(
        __version__,
        message="%(prog)s (rbtools) %(version)s",
        help="Show the version and exit; with -v those of Python, torch and the packages in use.",
    )(command)


def command(
    *,
    choose: registry.Registry | None = None,
    many: bool = False,
    option: str | None = None,
    default: str | Callable[[Sequence[str]], str] = "",
) -> Callable[[F], click.Command]:
    """Make a command. With `choose`, a registry's names are its subcommands (`many`: lists of them); with
    `option` as well, the option of that name chooses among them; `default` is the choice without that option,
    or a function that gets it from the words of the command line.
    """

    def decorate(function: F) -> click.Command:
        name = _tool_name(function)
        common: dict[str, Any] = {"context_settings": CONTEXT, "help": function.__doc__}
        params = params_of(function)
        if choose is None:
            return version_option(Command(name, params=params, callback=function, **common))
        if option is None:
            chooser = Chooser(name, no_args_is_help=False, **common)
            chooser.registry, chooser.many, chooser.work = choose, many, function
            chooser.kind = choose.kind
            return version_option(chooser)
        by_option = OptionChooser(name, params=params, callback=function, **common)
        by_option.registry, by_option.option = choose, option
        by_option.choose = default if callable(default) else lambda words: default
        return version_option(by_option)

    return decorate


def _tool_name(function: Callable[..., Any]) -> str:
    """rb-attack for a function in attack.py. The name comes from the file, since `python -m` renames the
    module."""
    return "rb-" + Path(inspect.unwrap(function).__code__.co_filename).stem


def group(function: Callable[..., Any]) -> click.Group:
    """Make a command that only holds other commands."""
    name = _tool_name(function)
    return version_option(
        Group(name, callback=function, help=function.__doc__, context_settings=CONTEXT, no_args_is_help=False)
    )
