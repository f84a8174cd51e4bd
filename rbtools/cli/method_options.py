"""A registered class as the command line shows it: its fields as options, its docstring as help."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Sequence
from typing import Any

import click

from rbtools import registry


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


def legible(params: list[click.Parameter]) -> list[click.Parameter]:
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
