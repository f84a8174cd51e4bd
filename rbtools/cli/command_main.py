"""The behaviour that all click commands share: running, the exit status, and the help by option groups."""

from __future__ import annotations

import inspect
import os
import sys
import typing
from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource

from rbtools.cli import events, exit_status, option_groups
from rbtools.cli.calls import ToolCall, under_way
from rbtools.cli.method_options import method_options
from rbtools.cli.streams import Streams

_WORDS = "rbtools.words"  # of the command line


class CommandMain:
    """A mix-in with the `main()` of every command, which runs the command and exits with its status."""

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
        command._main_shell_completion(extra, name, complete_var or "_RB_COMPLETE")
        with exit_status.caught(command, name) as result:
            with command.make_context(name, list(arguments), **extra) as context:  # type: ignore[arg-type]
                context.meta[_WORDS] = [str(command.name), *arguments] if args is None else None
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

    context_class: type[click.Context] = option_groups.HelpContext

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), option_groups.HELP_ALL]  # type: ignore[misc]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first paragraphs of the help and the examples; with --help-all, write the full help."""
        first, *more = inspect.cleandoc(typing.cast(click.Command, self).help or "").split("\n\n")
        if not option_groups.every(ctx):
            more = [one for place, one in enumerate(more) if not place or one.startswith("\b\nExample")]
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n\n".join([first, *more]))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        command = typing.cast(click.Command, self)
        names = {option.name for option in method_options(ctx.meta.get("rbtools.classes", ()))}
        title, params = f"Options of {_chosen(ctx)}", command.get_params(ctx)
        if more := self.of_examples(ctx, params):
            names |= {one.name for one in more}
            title = f"Options of some values of {_chosen(ctx).partition(' ')[0]}"
        option_groups.write(formatter, option_groups.sections(ctx, [*params, *more], names, title))
        if isinstance(command, click.Group):
            command.format_commands(ctx, formatter)
        of_packages = list(getattr(getattr(self, "registry", None), "plugins", ()))
        if of_packages:
            with formatter.section("From installed packages"):
                formatter.write_text(", ".join(of_packages))

    def of_examples(self, ctx: click.Context, params: Sequence[click.Parameter]) -> list[click.Option]:
        """Further options that the examples in the help use, which belong to methods that are not chosen."""
        return []

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Handle `--version -v`, because click's own --version option does not see the -v."""
        if len(args) == 2 and "--version" in args and {"-v", "--verbose"} & set(args):
            from rbtools.cli import versions

            click.echo("\n".join(versions.lines(ctx.command_path)))
            ctx.exit()
        return super().parse_args(ctx, args)  # type: ignore[misc,no-any-return]

    def invoke(self, ctx: click.Context) -> Any:
        params = self.get_params(ctx)
        flags = {str(param.name): param.opts[0] for param in params}
        sources = {name: ctx.get_parameter_source(name) for name in flags}
        root = ctx.find_root()
        call = ToolCall(
            root.info_name or "rbtools",
            {name: flags[name] for name, source in sources.items() if source is ParameterSource.COMMANDLINE},
            [name for name, source in sources.items() if source is ParameterSource.DEFAULT_MAP],
            root.find_object(Streams),
            root.meta.get(_WORDS),
        )
        with under_way(call):
            return super().invoke(ctx)  # type: ignore[misc]

    def get_short_help_str(self, limit: int = 45) -> str:
        """The first paragraph of the help. Click would end the text "(Goodfellow et al., 2015)" at "al."."""
        return first_paragraph(inspect.cleandoc(typing.cast(click.Command, self).help or ""))


def first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def _chosen(ctx: click.Context) -> str:
    """The chosen names as they were typed, such as `pgd` or `--method trades`."""
    option = getattr(ctx.command, "option", None)
    if option is None:
        return str(ctx.info_name)
    return f"{option} {','.join(cls.name for cls in ctx.meta['rbtools.classes'])}"
