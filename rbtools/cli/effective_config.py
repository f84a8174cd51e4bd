"""Every option of a command, its value and where the value comes from, for `--print-config`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from rbtools import registry
from rbtools.cli.config import ORIGINS

PRINT = "rbtools.print-config"
_UNSAID = ("help", "help-all", "version", "config", "print-config")


class EffectiveOption(NamedTuple):
    """An option, its value and the origin of the value."""

    name: str
    value: Any
    origin: str


def effective_config(ctx: click.Context) -> list[EffectiveOption]:
    """All options of a parsed command line with their values and origins."""
    resolve: Callable[[click.Context], dict[str, tuple[Any, str]]] | None
    resolve = getattr(ctx.command, "resolve", None)
    resolved = resolve(ctx) if resolve else {}
    options = []
    defaults = _defaults(ctx)
    for param in ctx.command.get_params(ctx):
        flags = [flag[2:] for flag in param.opts if flag.startswith("--")]
        if not isinstance(param, click.Option) or param.hidden or not flags or flags[0] in _UNSAID:
            continue
        value, origin = ctx.params.get(str(param.name)), _origin(ctx, param)
        if origin == "default":
            value = defaults.get(str(param.name), value) if value is None else value
            value, origin = resolved.get(str(param.name), (value, origin))
        options.append(EffectiveOption(flags[0], value, origin))
    return options


def _defaults(ctx: click.Context) -> dict[str, Any]:
    """The defaults of the chosen classes' fields, as they are typed."""
    classes = ctx.meta.get("rbtools.classes", [])
    fields = [field for cls in classes for field in registry.options(cls)]
    norm = ctx.params.get("norm") or "linf"
    return {field.name: as_typed(field, field.default, norm) for field in reversed(fields)}


def as_typed(field: dataclasses.Field[Any], value: object, norm: str = "linf") -> Any:
    """A field's value as the command line takes it: distances in 1/255 where the norm is L-infinity."""
    if value == () or value is None:
        return None
    if field.metadata.get("unit") != "eps" or norm != "linf" or not isinstance(value, (int, float)):
        return value
    number = float(f"{value * 255:g}")
    return int(number) if number.is_integer() else number


def _origin(ctx: click.Context, param: click.Option) -> str:
    source = ctx.get_parameter_source(str(param.name))
    sources = click.core.ParameterSource
    if source is sources.COMMANDLINE:
        return "command line"
    if source is sources.ENVIRONMENT:
        return f"environment, {param.envvar}"
    if source is sources.DEFAULT_MAP:
        return str(ctx.meta[ORIGINS].get(str(param.name), "default"))
    return "default"


def asked(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Note that `--print-config` was given."""
    if value:
        ctx.meta[PRINT] = True


def shown(ctx: click.Context) -> str:
    """The effective configuration as a file that --config reads; a comment gives the origin of each value."""
    tool, *below = ctx.command_path.split()
    lines = [f"# {ctx.command_path}: what is in force, and where it comes from."]
    heads = [os.path.basename(tool), *below]
    lines += [f"{'  ' * depth}{head}:" for depth, head in enumerate(heads)]
    indent = "  " * len(heads)
    entries = [(_line(option), option.origin) for option in effective_config(ctx)]
    width = min(max((len(line) for line, _ in entries), default=0), 48)
    lines += [f"{indent}{line:<{width}}  # {origin}" for line, origin in entries]
    return "\n".join(lines)


def _line(option: EffectiveOption) -> str:
    if option.value is None:
        return f"# {option.name}: not set"
    if isinstance(option.value, bool):
        return f"{option.name}: {str(option.value).lower()}"
    if isinstance(option.value, int | float):
        return f"{option.name}: {option.value!r}"
    if isinstance(option.value, list | tuple):
        return f"{option.name}: {_quoted(','.join(map(str, option.value)))}"
    return f"{option.name}: {_quoted(str(option.value))}"


def _quoted(text: str) -> str:
    """Text as YAML reads it back."""
    import json

    return json.dumps(text, ensure_ascii=False)
