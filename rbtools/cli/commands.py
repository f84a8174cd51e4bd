"""click, the way rbtools uses it: exit statuses, one-line errors, and registered things as
subcommands whose fields are their options.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import re
import signal
import sys
import traceback
import typing
from collections.abc import Callable, Sequence
from typing import Any

import click

from rbtools import __version__, registry
from rbtools.cli import config, events, in_force
from rbtools.cli.output import ReaderGone, Stop, Terminated
from rbtools.cli.screen import Screen
from rbtools.errors import RbError, UsageError, near

DONE, FAILED, USAGE, INTERRUPTED, GONE, TERMINATED = 0, 1, 2, 130, 141, 143
CONTEXT: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "show_default": True,
}


class _Main:
    """What `main()` does for every command: run, then end with the status that says how it went."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        command = typing.cast(click.Command, self)
        arguments = list(sys.argv[1:] if args is None else args)
        name = prog_name or str(command.name)
        command._main_shell_completion(extra, name, complete_var)
        status = _status(command, name, arguments, extra)
        events.ended(status)
        if args is None and status in (INTERRUPTED, TERMINATED, GONE):
            # Everything is written and released. What is left is torch's taking itself apart, half a
            # second of it (three on a busy machine), and whoever stopped us should not wait for that.
            _flush()
            os._exit(status)
        sys.exit(status)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.main(*args, **kwargs)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return _legible(super().get_params(ctx))  # type: ignore[misc]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, or with `--print-config` say what it would run with."""
        if ctx.meta.get(in_force.PRINT):
            click.echo(in_force.shown(ctx))
            return DONE
        return super().invoke(ctx)  # type: ignore[misc]

    def get_short_help_str(self, limit: int = 45) -> str:
        """The first paragraph: click would end it after "(Goodfellow et al."."""
        text = inspect.cleandoc(typing.cast(click.Command, self).help or "")
        return " ".join(text.split("\n\n")[0].split())


def _status(command: click.Command, name: str, arguments: list[str], extra: dict[str, Any]) -> int:
    screen = Screen(name)
    try:
        if _in_main_thread():
            signal.signal(signal.SIGTERM, _terminate)
        with command.make_context(name, arguments, **extra) as context:
            return int(command.invoke(context) or DONE)
    except click.exceptions.Exit as wanted:
        return wanted.exit_code
    except click.ClickException as wrong:
        context_ = getattr(wrong, "ctx", None)
        path = context_.command_path if context_ is not None else name
        screen.error(f"{_sentence(wrong)} Try '{path} --help'.")
        return USAGE
    except Stop as stop:
        screen.error(str(stop))
        return FAILED
    except RbError as wrong:
        screen.error(str(wrong))
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        screen.clear()
        screen.error(f"interrupted{_what_is_kept(command)}.")
        return INTERRUPTED
    except Terminated:
        screen.clear()
        screen.error(f"terminated{_what_is_kept(command)}.")
        return TERMINATED
    except (ReaderGone, BrokenPipeError):
        _drop_stdout()
        return GONE
    except Exception:
        screen.clear()
        traceback.print_exc()
        screen.error("this is a bug in rbtools; please report it with the lines above.")
        return FAILED


def _what_is_kept(command: click.Command) -> str:
    return "; what was finished is written and in the store" if _stores(command) else ""


def _stores(command: click.Command) -> bool:
    """Whether the command, or one that it holds, keeps its work in the store."""
    params = [*command.params, *getattr(getattr(command, "work", None), "__click_params__", ())]
    held = getattr(command, "commands", {}).values()
    return any(param.name == "no_store" for param in params) or any(map(_stores, held))


def _terminate(number: int, frame: Any) -> None:
    raise Terminated


def _in_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _drop_stdout() -> None:
    """Keep Python from flushing into a closed pipe at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError:
        return


def _sentence(wrong: click.ClickException) -> str:
    text = " ".join(wrong.format_message().split())
    return text if text.endswith((".", "?", "!")) else text + "."


def _legible(params: list[click.Parameter]) -> list[click.Parameter]:
    """The parameters as help should show them: numbers as N and X, and no default that is empty."""
    for param in params:
        if isinstance(param, click.Option) and not param.is_flag:
            if param.metavar is None and isinstance(param.type, click.types.IntParamType):
                param.metavar = "N"
            elif param.metavar is None and isinstance(param.type, click.types.FloatParamType):
                param.metavar = "X"
            if param.default == "":
                param.show_default = False
    return params


class Command(_Main, click.Command):
    """A command without subcommands."""

    classes: Sequence[type] = ()  # of a subcommand that a registry's name makes

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = with_pairs(args)
        if self.classes:
            ctx.meta["rbtools.classes"] = list(self.classes)
        if config.files(ctx, args):
            config.apply(ctx, self.get_params(ctx), args)
        return super().parse_args(ctx, args)


PAIR = "--normalize"  # the option whose value may be two words


def with_pairs(args: Sequence[str]) -> list[str]:
    """`--normalize MEAN STD` with its two words as one: click's options take one or two, not either."""
    found = list(args)
    end = found.index("--") if "--" in found else len(found)
    for place, word in enumerate(found[:end]):
        word, equals, value = word.partition("=")
        second = place + 1 if equals else place + 2
        first = value if equals else found[place + 1] if place + 1 < end else ""
        if word == PAIR and second < end and _is_number(first) and _is_number(found[second]):
            found[second - 1] = f"{found[second - 1]} {found.pop(second)}"
            break
    return found


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+\d.,e]*\d[-+\d.,e]*", text) is not None


class Group(_Main, click.Group):
    """A command that only holds other commands."""

    kind = "command"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "no_args_is_help": False})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names = self.list_commands(ctx)
        if not args and not ctx.resilient_parsing:
            raise click.UsageError(f"No {self.kind} is named. Choose one of: {', '.join(names)}.", ctx)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as wrong:
            raise click.UsageError(
                f"No option '{wrong.option_name}' stands before the {self.kind}. Options follow it:"
                f" {ctx.command_path} {names[0]} {wrong.option_name} ...",
                ctx,
            ) from None


class Chooser(Group):
    """A command whose subcommands are the names in a registry.

    A name may be a list (`fog,frost`, or `all`) where `many` is set: the callback then gets the list,
    and the options of all of them are there. Commands that are added (`add_command`) stand beside the
    registry's names; `--NAME VALUE` in front is the same as the command NAME.
    """

    def __init__(self, *args: Any, registry: registry.Registry, many: bool, work: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.registry, self.many, self.work = registry, many, work
        self.kind = registry.kind

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
        classes = [self.registry.load(one) for one in names]
        help_text = for_people(classes[0]) if len(names) == 1 else f"Every one of: {', '.join(names)}."
        choice = {self._dest(): names if self.many else names[0]}
        made = Command(
            name,
            params=[*method_options(classes), *_fresh(self.work)],
            callback=_with_params(self.work, choice, classes),
            help=help_text,
            context_settings=CONTEXT,
        )
        made.classes = classes
        return made

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name.startswith("-"):
            return super().resolve_command(ctx, args)
        try:
            return name, self.get_command(ctx, name), args[1:]
        except UsageError as wrong:
            raise click.UsageError(str(wrong), ctx) from None
        except RbError as wrong:
            raise click.UsageError(str(wrong), ctx) from None

    def _names(self, text: str) -> list[str]:
        if not self.many:
            return [text]
        if text == "all":
            return list(self.registry.all)
        return list(dict.fromkeys(filter(None, text.split(","))))

    def _dest(self) -> str:
        return self.registry.kind.replace(" ", "_") + ("s" if self.many else "")


class OptionChooser(_Main, click.Command):
    """A command where one option (`--method trades`) chooses, and brings further options with it.

    `covers` names an option that sets all options of the command's own (`--preset`): where the command line
    has it, what a file says of them does not count. `resolve` tells what it sets, for `--print-config`.
    """

    covers: str | None = None
    resolve: Callable[[click.Context], dict[str, tuple[Any, str]]] | None = None

    def __init__(
        self,
        *args: Any,
        registry: registry.Registry,
        option: str,
        default: str | Callable[[Sequence[str]], str],
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.registry, self.option, self.choose = registry, option, default
        self.default = default if isinstance(default, str) else default(())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named: list[str] = []
        args = with_pairs(args)
        said = config.words(ctx, args, self.covers)
        for position, word in enumerate(before := [*said, *args]):
            if word == "--":
                break
            if word == self.option and position + 1 < len(before):
                named = before[position + 1].split(",")
            elif word.startswith(self.option + "="):
                named = word.partition("=")[2].split(",")
        names = [name for name in (part.strip() for part in named) if name]
        try:
            default = self.choose if isinstance(self.choose, str) else self.choose([*args, *said])
            ctx.meta["rbtools.named"] = {name: self.registry.load(name) for name in names}
            ctx.meta["rbtools.classes"] = [self.registry.load(name) for name in names or [default]]
        except RbError as wrong:
            raise click.UsageError(str(wrong), ctx) from None
        if config.files(ctx, args):
            config.apply(ctx, self.get_params(ctx), args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as wrong:
            having = [name for name in self.registry if wrong.option_name in self._flags(name)]
            if not having:
                raise
            raise click.UsageError(
                f"Option '{wrong.option_name}' belongs to {self.option} {' and '.join(having)}, but"
                f" {self.option} is {','.join(names) or default}.",
                ctx,
            ) from None

    def _flags(self, name: str) -> list[str]:
        """The options that a choice brings with it."""
        found = method_options([self.registry.load(name)])
        return [flag for option in found for flag in [*option.opts, *option.secondary_opts]]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's own help, then that of each thing that was chosen by name."""
        super().format_help_text(ctx, formatter)
        for name, cls in ctx.meta.get("rbtools.named", {}).items():
            with formatter.section(f"{self.option} {name}"):
                formatter.write_text(for_people(cls))

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        classes = ctx.meta.get("rbtools.classes") or [self.registry.load(self.default)]
        return _legible([*method_options(classes), *super().get_params(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        if ctx.meta.get(in_force.PRINT):
            return super().invoke(ctx)
        fields = {option.name for option in method_options(ctx.meta["rbtools.classes"])}
        given = {name: ctx.params.pop(str(name)) for name in fields}
        ctx.params["params"] = {name: value for name, value in given.items() if value is not None}
        return super().invoke(ctx)


def _fresh(work: Any) -> list[click.Parameter]:
    return list(reversed(getattr(work, "__click_params__", [])))


def _with_params(work: Any, choice: dict[str, Any], classes: Sequence[type]) -> Callable[..., Any]:
    fields = [str(option.name) for option in method_options(classes)]

    def callback(**kwargs: Any) -> Any:
        given = {name: kwargs.pop(name) for name in fields}
        chosen = {name: value for name, value in given.items() if value is not None}
        return work(**choice, params=chosen, **kwargs)

    return callback


def for_people(cls: type) -> str:
    """A class's docstring as help: its first paragraphs, up to what is for Python readers.

    `steps=20` in it becomes --steps 20, the way to say it here; other backticks go.
    """
    kept: list[str] = []
    for paragraph in inspect.cleandoc(cls.__doc__ or "").split("\n\n"):
        if paragraph.startswith(("Shape:", "Args:", "Raises", "Returns")):
            break
        kept.append(_QUOTED.sub(_as_typed, paragraph))
    return "\n\n".join(kept)


_QUOTED = re.compile(r"`([^`]+)`")


def _as_typed(found: re.Match[str]) -> str:
    name, equals, value = found[1].partition("=")
    if equals and name.isidentifier():
        return f"--{name.replace('_', '-')} " + value.strip("'\"")
    return found[1]


def method_options(classes: Sequence[type]) -> list[click.Option]:
    """The options for the fields of these classes; a field that several share is one option."""
    found: dict[str, click.Option] = {}
    for cls in classes:
        hints = typing.get_type_hints(cls)
        for field in registry.options(cls):
            if field.name not in found:
                found[field.name] = _option(field, hints[field.name])
    return list(found.values())


def _option(field: dataclasses.Field[Any], hint: Any) -> click.Option:
    kinds = [kind for kind in (typing.get_args(hint) or (hint,)) if kind is not type(None)]
    kind, choices = kinds[0], field.metadata.get("choices")
    flag = "--" + registry.public_name(field).replace("_", "-")
    text = _help(field)
    if kind is bool:
        return click.Option([field.name, f"{flag}/--no-{flag[2:]}"], default=None, help=text)
    if field.metadata.get("unit"):
        return click.Option([field.name, flag], type=str, metavar="DISTANCE", default=None, help=text)
    given: Any = click.Choice(choices) if choices else kind
    return click.Option(
        [field.name, flag], type=given, metavar=field.metadata.get("metavar"), default=None, help=text
    )


def _help(field: dataclasses.Field[Any]) -> str:
    default, text = field.default, str(field.metadata["help"])
    if field.metadata.get("unit") == "eps" and "unit of" not in text:
        text = f"{text.rstrip('.')}, in 1/255."
    if default is None or default is dataclasses.MISSING or default in ((), ""):
        return text
    if field.metadata.get("unit") == "eps":
        default = f"{default * 255:g}"
    elif isinstance(default, bool):
        default = "on" if default else "off"
    return f"{text}  [default: {default}]"


C = typing.TypeVar("C", bound=click.Command)


def version_option(command: C) -> C:
    """--version, the same words in every tool."""
    return click.version_option(__version__, message="%(prog)s (rbtools) %(version)s")(command)


__all__ = [
    "CONTEXT",
    "Chooser",
    "Command",
    "OptionChooser",
    "method_options",
    "near",
    "version_option",
]
