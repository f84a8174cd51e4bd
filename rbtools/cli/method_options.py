"""A registered class as the command line shows it: its fields as options, its docstring as help."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from rbtools import registry


def for_people(cls: type) -> str:
    """A class's docstring as help: its first paragraphs, without those for Python users.

    `steps=20` in it becomes --steps 20; other backticks are removed.
    """
    paragraphs: list[str] = []
    for paragraph in inspect.cleandoc(cls.__doc__ or "").split("\n\n"):
        if paragraph.startswith(("Shape:", "Args:", "Raises", "Returns")):
            break
        paragraphs.append(_QUOTED.sub(_as_typed, paragraph))
    return "\n\n".join(paragraphs)


_QUOTED = re.compile(r"`([^`]+)`")


def _as_typed(match: re.Match[str]) -> str:
    name, equals, value = match[1].partition("=")
    if equals and name.isidentifier():
        return f"--{name.replace('_', '-')} " + value.strip("'\"")
    return match[1]


_hints = functools.cache(typing.get_type_hints)


def method_options(classes: Sequence[type]) -> list[click.Option]:
    """The options for the fields of these classes; a field that several share is one option.

    Their value is None if they are not given, so that the class's own default holds.
    """
    options: dict[str, click.Option] = {}
    for cls in classes:
        hints = _hints(cls)
        for field in registry.options(cls):
            if field.name not in options:
                hint = hints[field.name]
                options[field.name] = click.Option(
                    _names(field, hint), default=None, help=_help(field), **_type(field, hint)
                )
    return list(options.values())


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def spec_options(
    cls: type,
    defaults: Mapping[str, object],
    shared: Mapping[str, Decorator],
) -> list[Decorator]:
    """Decorators for the fields of a dataclass that is a command's own options, with their defaults.

    `defaults` replaces defaults of fields; `shared` has the options of fields that are no `param`.
    """
    hints = _hints(cls)
    decorators = []
    for field in dataclasses.fields(cls):
        if field.name in shared:
            decorators.append(shared[field.name])
        elif "help" in field.metadata:
            typed = field.metadata["typed"]
            default = defaults.get(field.name, field.default if typed is None else typed)
            settings = _type(field, hints[field.name])
            if typing.get_origin(hints[field.name]) is tuple and typed is None:
                settings |= {"multiple": True}
            decorators.append(
                click.option(
                    *_names(field, hints[field.name]),
                    default=default,
                    help=field.metadata["help"],
                    **settings,
                )
            )
    return decorators


def _kind(hint: object) -> type:
    kinds: list[type] = [kind for kind in (typing.get_args(hint) or (hint,)) if kind is not type(None)]
    return kinds[0]


def _names(field: dataclasses.Field[Any], hint: object) -> list[str]:
    """The name of the value, and the flags that it is typed with."""
    flag = "--" + registry.public_name(field).replace("_", "-")
    switch = [f"{flag}/--no-{flag[2:]}"] if _kind(hint) is bool else [flag]
    return [field.name, *(field.metadata["flags"] or switch)]


def _type(field: dataclasses.Field[Any], hint: object) -> dict[str, Any]:
    """The type of an option's value, and its placeholder in the help."""
    kind, metadata = _kind(hint), field.metadata
    if kind is bool:
        return {"is_flag": True}
    if metadata["unit"]:
        return {"type": str, "metavar": "DISTANCE"}
    given: Any = kind if kind in (int, float) and not isinstance(metadata["typed"], str) else str
    if metadata["choices"] and not metadata["metavar"]:
        given = click.Choice(metadata["choices"])
    elif metadata["bounds"]:
        given = _range(metadata["bounds"], kind)
    return {"type": given, "metavar": metadata["metavar"]}


def _range(bounds: str, kind: type) -> click.ParamType:
    """`[0, 1)` as click has it."""
    least, most = (None if "inf" in end else int(end) for end in bounds[1:-1].split(","))
    if kind is int:
        return click.IntRange(least, most)
    open_top = bounds[-1] == ")" and most is not None
    return click.FloatRange(least, most, min_open=bounds[0] == "(", max_open=open_top)


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


def _names_of_files(ctx: click.Context, param: click.Parameter, text: str) -> list[CompletionItem]:
    """What tells a shell to complete names of files."""
    return [CompletionItem(text, type="file")]


def legible(params: list[click.Parameter]) -> list[click.Parameter]:
    """The parameters as help should show them: numbers as N and X, and no default that is empty."""
    for param in params:
        if any(word in (param.metavar or "") for word in ("FILE", "DIR")):
            param._custom_shell_complete = _names_of_files
        if isinstance(param, click.Option) and not param.is_flag:
            if param.metavar is None and isinstance(param.type, click.types.IntParamType):
                param.metavar = "N"
            elif param.metavar is None and isinstance(param.type, click.types.FloatParamType):
                param.metavar = "X"
            if param.default == "":
                param.show_default = False
    return params
