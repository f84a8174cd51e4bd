"""Converts fields to click options with completion of values, and docstrings to help texts."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from rbtools import registry
from rbtools.check_field import kind_of
from rbtools.cli import declare
from rbtools.cli.declare import Option
from rbtools.cli.option_groups import GroupedOption


def for_people(docstring: str | None) -> str:
    """A class docstring as a help text (`steps=20` becomes --steps 20), without parts for Python users."""
    paragraphs: list[str] = []
    for paragraph in inspect.cleandoc(docstring or "").split("\n\n"):
        if paragraph.startswith(("Shape:", "Args:", "Raises", "Returns")):
            break
        paragraphs.append(_QUOTED.sub(_as_typed, paragraph))
    return "\n\n".join(paragraphs)


_FILES = click.Path()
_QUOTED = re.compile(r"`([^`]+)`")


def _as_typed(match: re.Match[str]) -> str:
    name, equals, value = match[1].partition("=")
    if equals and name.isidentifier():
        return f"--{name.replace('_', '-')} " + value.strip("'\"")
    return match[1]


def method_options(classes: Sequence[type]) -> list[click.Parameter]:
    options = declare.method_options(classes).values()
    return [rendered(one, default=None, help=_help(one.field)) for one in options]


def rendered(option: Option, **settings: object) -> click.Parameter:
    """Create a click parameter; `settings` overrides arguments of click's constructor."""
    metadata, required = option.field.metadata, option.default is registry.REQUIRED
    shown: dict[str, Any] = {"required": required, "metavar": metadata["metavar"]}
    shown = {**shown, "shell_complete": _completion(option), **settings}
    if not required:
        shown.setdefault("default", option.default)
    if not option.flags:
        return click.Argument([option.name], nargs=-1 if option.multiple else 1, **shown)
    flags = [f"{option.flags[0]}/{option.off[0]}"] if option.off else option.flags
    if option.kind is bool:
        shown["is_flag"] = True
    else:
        shown["type"] = _judged(option)
        several = option.kind is str and kind_of(option.field) in ("int", "float")
        usual = {int: "N", float: "X"}.get(option.kind, "LIST" if several else None)
        shown["metavar"] = "DISTANCE" if metadata["unit"] else metadata["metavar"] or usual
        shown["show_default"] = False if shown.get("default") == "" else None
    variable = metadata["variable"]
    shown = {"help": metadata["help"], "envvar": variable, "show_envvar": variable is not None, **shown}
    of_help = {"group": metadata["group"], "rare": metadata["rare"]}
    return GroupedOption([option.name, *flags], multiple=option.multiple, **of_help, **shown)


def _judged(option: Option) -> click.ParamType:
    """The type of an option's value. click shows and completes the type, and the option checks the value."""
    choices, bounds = option.field.metadata["choices"], option.field.metadata["bounds"]
    shown: click.ParamType = click.STRING
    if option.kind in (int, float):
        shown = click.INT if option.kind is int else click.FLOAT
    if choices and not option.field.metadata["metavar"]:
        shown = click.Choice(choices)
    elif bounds and option.kind is not str:
        shown = _range(bounds, option.kind)
    shown = copy.copy(shown)

    def convert(value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        if (problem := option.problem(str(value))) is not None:
            shown.fail(problem, param, ctx)
        return option.kind(value)

    shown.convert = convert  # type: ignore[method-assign]
    return shown


def _range(bounds: str, kind: type) -> click.ParamType:
    """The type of click for bounds such as `[0, 1)`."""
    ends = (end.strip() for end in bounds[1:-1].split(","))
    least, most = (None if "inf" in end else kind(end) if "." in end else int(end) for end in ends)
    if kind is int:
        return click.IntRange(least, most)
    open_top = bounds[-1] == ")" and most is not None
    return click.FloatRange(least, most, min_open=bounds[0] == "(", max_open=open_top)


def _help(field: dataclasses.Field[Any]) -> str:
    default, text = field.default, str(field.metadata["help"])
    if field.metadata.get("unit") == "eps" and "unit of" not in text:
        first, _, others = text.partition(". ")
        text = f"{first.rstrip('.')}, in 1/255. {others}".rstrip()
    if default is None or default is dataclasses.MISSING or default in ((), ""):
        return text
    if field.metadata.get("unit") == "eps":
        default = f"{default * 255:g}"
    elif isinstance(default, bool):
        default = "on" if default else "off"
    return f"{text}  [default: {default}]"


def _datasets(tool: str) -> list[str]:
    from rbtools.datasets import DATASETS

    return [*DATASETS, *DATASETS.plugins]


def _normalizations(tool: str) -> list[str]:
    from rbtools.datasets.normalization import NORMALIZATIONS

    return [*NORMALIZATIONS, "none", "per-image"]


def _attacks(tool: str) -> list[str]:
    from rbtools.attacks import ATTACKS

    return [*ATTACKS, *ATTACKS.plugins]


def _defences(tool: str) -> list[str]:
    from rbtools.defences import DEFENCES

    return [*DEFENCES, *DEFENCES.plugins]


def _tracked(tool: str) -> list[str]:
    from rbtools.measures import MEASURES

    return ["robust", *MEASURES, *MEASURES.plugins]


def _presets(tool: str) -> list[str]:
    groups = {"rb-train": "training", "rb-ge": "pr"}
    return [*registry.gathered(f"{groups.get(tool, tool.removeprefix('rb-'))}-presets")]


def _metrics(tool: str) -> list[str]:
    """The names of metrics as the tools measure them without options."""
    from rbtools.attacks import ATTACKS
    from rbtools.evaluation.accuracy import Attacked

    every = (ATTACKS.load(name) for name in _attacks(tool))
    return [
        "acc",
        "score",
        *(Attacked(method=cls()).name() for cls in every),
        "corrupt.mean",
        "wci",
        "ge.acc",
    ]


# By the flag of an option: the names that complete its values, given the tool.
_VALUES: dict[str, Callable[[str], list[str]]] = {
    "attack": _attacks,
    "attacks": _attacks,
    "defend": _defences,
    "track": _tracked,
    "dataset": _datasets,
    "normalize": _normalizations,
    "preset": _presets,
    "by": _metrics,
    "metric": _metrics,
    "pareto": _metrics,
    "objective": _metrics,
    "lower": _metrics,
    "higher": _metrics,
}


def _completion(option: Option) -> Callable[..., list[CompletionItem]] | None:
    """What completes the values of an option: names in a registry, or files. None if nothing does."""
    if option.flags and (names := _VALUES.get(option.flags[0][2:])) is not None:
        return lambda ctx, param, typed: completed(typed, names(str(ctx.find_root().info_name)))
    if choices := option.field.metadata["choices"]:  # of a list, which click does not complete
        return lambda ctx, param, typed: completed(typed, choices)
    metavar = option.field.metadata["metavar"] or ""
    return _FILES.shell_complete if "FILE" in metavar or "DIR" in metavar else None


def completed(typed: str, names: Sequence[str]) -> list[CompletionItem]:
    """The names that complete the last word of a list, such as erm,tr."""
    before, comma, last = typed.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in names if name.startswith(last)]
