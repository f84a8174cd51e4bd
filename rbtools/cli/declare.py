"""Declares a tool as a function and the dataclasses whose fields are its options.

The declaration is the same for the command line and for Python. `click_commands` reads the options from a
command line, and `python_calls` reads them from the keyword arguments of a Python function. Both modules call
the tool's function with the same objects.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from rbtools import registry
from rbtools.check_field import MOST, within
from rbtools.errors import RbError, UsageError, near, near_option, unknown
from rbtools.registry import Registry

F = TypeVar("F", bound=Callable[..., Any])
type_hints = functools.cache(typing.get_type_hints)


class Option(NamedTuple):
    """An option of a tool: a field made by `registry.param`, and its Python name.

    `kind` is the type of the field's value, or str if the value is typed as a string. If `multiple` is true,
    the option may be given several times and its value is a tuple.
    """

    name: str
    field: dataclasses.Field[Any]
    kind: type
    multiple: bool = False

    @classmethod
    def of(cls, field: dataclasses.Field[Any], hint: object) -> Option:
        kinds: list[type] = [kind for kind in (typing.get_args(hint) or (hint,)) if kind is not type(None)]
        metadata, kind = field.metadata, kinds[0]
        typed, words = metadata["typed"], "|" in (metadata["metavar"] or "")  # such as N|auto
        default = field.default if typed is registry.REQUIRED else typed
        if isinstance(default, (str, bool)):
            kind = type(default)
        number = kind in (int, float) and not metadata["unit"] and not words
        multiple = typing.get_origin(hint) is tuple and typed is registry.REQUIRED
        return cls(field.name, field, kind if number or kind is bool else str, multiple)

    @property
    def default(self) -> Any:
        """The value if the user gives none; registry.REQUIRED if the user must give a value."""
        typed = self.field.metadata["typed"]
        return self.field.default if typed is registry.REQUIRED else typed

    @property
    def flags(self) -> list[str]:
        """The flags that precede the value or switch the option on; empty for a positional argument."""
        if self.field.metadata["positional"]:
            return []
        return list(self.field.metadata["flags"] or [f"--{self._long}"])

    @property
    def off(self) -> list[str]:
        return [f"--no-{self._long}"] if self.kind is bool and not self.field.metadata["flags"] else []

    def problem(self, text: str) -> str | None:
        choices, bounds = self.field.metadata["choices"], self.field.metadata["bounds"]
        if choices and not self.field.metadata["metavar"] and text not in choices:
            return f"'{text}' is not one of {', '.join(map(repr, choices))}.{near(text, choices)}"
        if self.kind not in (int, float):
            return None
        try:
            value = self.kind(text)
        except ValueError:
            return f"'{text}' is not a {'whole number' if self.kind is int else 'number'}."
        if not math.isfinite(value):
            return f"{value} is not a finite number."
        if abs(value) > MOST:
            return f"{value} is too large. Expected at most {MOST}."
        if bounds and not within(bounds)[0](value):
            return f"{value} {_outside(bounds)}."
        return None

    @property
    def _long(self) -> str:
        return registry.public_name(self.field).replace("_", "-")


def _outside(bounds: str) -> str:
    """The words that describe a number outside bounds such as [1, inf)."""
    least, most = bounds[1:-1].split(", ")
    if most == "inf":
        return f"is less than {least}" if bounds[0] == "[" else f"is not above {least}"
    if bounds[0] == "[":
        return f"is not in the range {least}<=x<{'=' if bounds[-1] == ']' else ''}{most}"
    return f"is not in the range {least}<x<{'=' if bounds[-1] == ']' else ''}{most}"


class OptionBundle(NamedTuple):
    """Options that a function receives as one argument, `name`; `make` creates the value of the argument."""

    name: str
    make: Callable[..., Any]
    options: Sequence[Option]


def takes(
    name: str, cls: type, *fields: str, make: Callable[..., Any] | None = None, **changed: object
) -> Callable[[F], F]:
    """A decorator that adds fields of a dataclass to a function as options: all fields, or the named ones.

    The function receives an object of the class, or the object that `make` returns for the values. `changed`
    contains other declarations of some fields (made by `registry.param`), or other defaults.
    """
    options = declared(cls, changed)
    chosen = [options[field] for field in fields] if fields else list(options.values())
    return adding(OptionBundle(name, make or cls, chosen))


def declared(cls: type, changed: Mapping[str, object] = MappingProxyType({})) -> dict[str, Option]:
    """The options of a dataclass, some of them with a different declaration or default (`changed`)."""
    options = dict(_as_written(cls))
    for name, option in options.items():
        if name in changed:
            field, new = option.field, changed[name]
            if not isinstance(new, dataclasses.Field):
                new = registry.param(new, **{**field.metadata, "typed": registry.REQUIRED})
            new = copy.copy(new)
            new.name, new.type = field.name, field.type
            new.metadata = {**new.metadata, "group": field.metadata["group"], "rare": field.metadata["rare"]}
            options[name] = Option.of(new, type_hints(cls)[name])
    return options


@functools.cache
def _as_written(cls: type) -> dict[str, Option]:
    return {field.name: Option.of(field, type_hints(cls)[field.name]) for field in registry.options(cls)}


def adding(bundle: OptionBundle) -> Callable[[F], F]:
    """A decorator that adds a bundle of options to a function."""

    def decorate(function: F) -> F:
        vars(function)["bundles"] = [bundle, *bundles_of(function)]
        return function

    return decorate


def bundles_of(function: Callable[..., Any]) -> list[OptionBundle]:
    return list(vars(function).get("bundles", ()))


def method_options(classes: Sequence[type]) -> dict[str, Option]:
    """The options for the fields of registered classes; a field that several classes share is one option."""
    options: dict[str, Option] = {}
    for cls in classes:
        for field in registry.options(cls):
            option = Option.of(field, type_hints(cls)[field.name])
            pairs = "=" in (field.metadata["metavar"] or "")  # other tuples are typed as one list
            option = option._replace(multiple=option.multiple and pairs)
            if field.name == strength_of([cls]) != "eps":  # a list, in the place of --eps
                option = option._replace(kind=str)
            options.setdefault(field.name, option)
    return options


def strength_of(classes: Sequence[Any]) -> str:
    """The option that takes a list of strengths: --eps, or the one that the attack's threat declares."""
    threats: list[Any] = [getattr(cls, "within", None) for cls in classes]
    return next((threat.strength for threat in threats if hasattr(threat, "strength")), "eps")


def no_such_option(flag: str, flags: Iterable[str]) -> str:
    if flag in ("-o", "--out", "--output"):
        hint = " Records and tables are written to standard output: add > FILE at the end of the command."
    else:
        hint = near_option(flag, flags)
    return f"No such option '{flag}'.{hint}"


@dataclasses.dataclass(eq=False)
class Tool:
    """A tool, or a subcommand of a tool.

    If `registry` is set, its names are subcommands; with `many`, a subcommand may also be a list of names or
    "all". If `by` is also set, the names are instead the values of that option. `default` returns the choice
    if the option is not given; its argument is the list of words on the command line. The function receives
    the choice, and as `params` the fields of the chosen class that were given. `commands` are further
    subcommands; with `holds_only`, the tool has no other subcommands. `covers` is an option that sets all of
    the tool's own options (--preset) and makes the tool ignore values of these options in a configuration
    file. `lists` is the help of --list, which prints a line for each subcommand; if `lists` is empty, the
    tool has no --list. `of_eps` contains the options that apply, like --eps, only to attacks in a ball.
    """

    name: str
    function: Callable[..., Any]
    registry: Registry | None = None
    many: bool = False
    by: str | None = None
    default: Callable[[Sequence[str]], str] = lambda words: ""
    covers: str | None = None
    holds_only: bool = False
    commands: dict[str, Tool] = dataclasses.field(default_factory=dict)
    lists: str = ""
    of_eps: Sequence[str] = ()

    @property
    def options(self) -> list[Option]:
        """The tool's own options, without those of registered classes."""
        return [option for bundle in bundles_of(self.function) for option in bundle.options]

    def options_beside(self, classes: Sequence[Any]) -> list[Option]:
        """The tool's own options in addition to those of the chosen classes, which may replace --eps."""
        without = {"eps", *self.of_eps} if strength_of(classes) != "eps" else set()
        return [option for option in self.options if option.name not in without]

    @property
    def every_option(self) -> list[Option]:
        if not self.holds_only:
            return self.options
        return [option for below in self.commands.values() for option in below.every_option]

    @property
    def holds_commands(self) -> bool:
        """True if the first word after the tool is the name of a subcommand."""
        return self.holds_only or (self.registry is not None and self.by is None)

    @property
    def listed(self) -> list[str]:
        return [*(self.registry or ()), *(["all"] if self.many else []), *self.commands]

    @property
    def help(self) -> str:
        return inspect.cleandoc(self.function.__doc__ or "")

    def load(self, names: Sequence[str], allow_code: bool) -> list[type]:
        """The registered classes. Raises UsageError for unknown names and for code without --allow-code."""
        assert self.registry is not None
        strange = next((name for name in names if not self.registry.knows(name)), None)
        if strange is not None and self.by is None:
            raise unknown(self.registry.kind, strange, self.listed, UsageError)
        own_code = next((name for name in names if name.startswith(registry.OWN)), None)
        if own_code is not None and not allow_code:
            raise UsageError(f"{own_code} runs your own Python code. If you trust it, add --allow-code.")
        try:
            return [self.registry.load(name) for name in names]
        except RbError as wrong:
            raise UsageError(str(wrong)) from None

    def vocabulary(self) -> set[str]:
        """The long options and subcommand names of the tool and of all its subcommands."""
        classes = [] if self.registry is None else [cls for _, cls in self.registry.loaded()]
        options = [*self.options, *method_options(classes).values()]
        words = {flag[2:] for option in options for flag in option.flags if flag.startswith("--")}
        words |= {"help", "help-all", "version", *(["list"] if self.lists else [])}
        return words.union(self.listed, *(below.vocabulary() for below in self.commands.values()))

    def no_such_option(self, flag: str, classes: Sequence[Any], flags: Iterable[str]) -> str:
        strength, word = strength_of(classes), flag[2:].replace("-", "_")
        if strength != "eps" and word in ("eps", *self.of_eps):
            name = next(cls.name for cls in classes if strength_of([cls]) == strength)
            instead = f" Give --{strength.replace('_', '-')} LIST." if word == "eps" else ""
            return f"{name} has no option '{flag}', because its threat is not a ball.{instead}"
        if self.by is not None and self.registry is not None:
            for cls in classes:
                for field in registry.options(cls):
                    if flag == f"--{field.metadata['elsewhere']}":
                        return (
                            f"{self.by} {cls.name} has no option '{flag}', but"
                            f" --{registry.public_name(field)}: {field.metadata['help']}"
                        )
            having = [
                name
                for name, cls in self.registry.loaded()
                if any(flag in (*one.flags, *one.off) for one in method_options([cls]).values())
            ]
            if having:
                owners, chosen = " and ".join(having), ",".join(cls.name for cls in classes)
                return f"Option '{flag}' belongs to {self.by} {owners}, but {self.by} is {chosen}."
        return no_such_option(flag, flags)

    def names(self, text: str) -> list[str]:
        assert self.registry is not None
        if not self.many:
            return [text]
        if "all" in text.split(","):
            return list(self.registry.all)
        return list(dict.fromkeys(filter(None, text.split(","))))

    def run(self, values: Mapping[str, Any], **choice: object) -> Any:
        made = {
            bundle.name: bundle.make(
                **{option.name: values.get(option.name, option.default) for option in bundle.options}
            )
            for bundle in bundles_of(self.function)
        }
        return self.function(**choice, **made)

    def chosen(self, names: Sequence[str], values: Mapping[str, Any], classes: Sequence[type]) -> Any:
        assert self.registry is not None
        kind = self.registry.kind.replace(" ", "_")
        params = {name: values[name] for name in method_options(classes) if values[name] not in (None, ())}
        choice: dict[str, Any] = {} if self.by else {f"{kind}s": names} if self.many else {kind: names[0]}
        return self.run(values, params=params, **choice)

    def main(self, *args: object, **settings: object) -> typing.NoReturn:
        rendered = registry.imported("rbtools.cli.click_commands:rendered")  # calls from Python need no click
        rendered(self).main(*args, **settings)
        raise AssertionError("a command ends its process")

    __call__ = main


def command(
    choose: Registry | None = None, default: str | Callable[[Sequence[str]], str] = "", **settings: Any
) -> Callable[[Callable[..., Any]], Tool]:
    """Make a tool from a function. `choose` is the registry; `Tool` describes the other arguments."""
    chooses = default if callable(default) else lambda words: str(default)
    return lambda function: Tool(_tool_name(function), function, choose, default=chooses, **settings)


def group(**commands: Tool) -> Callable[[Callable[..., Any]], Tool]:
    return lambda function: Tool(_tool_name(function), function, holds_only=True, commands=commands)


def _tool_name(function: Callable[..., Any]) -> str:
    """The tool's name, such as rb-attack for attack.py; `python -m` renames modules, but not files."""
    return "rb-" + Path(function.__code__.co_filename).stem


_OWN = "arch train attack certify corrupt pr ge card measure score rank corr convert store verify".split()
TOOLS = Registry(
    "tool",
    {name: f"rbtools.commands.{name}:main" for name in _OWN},
    group="tools",
    last=("store", "verify"),
    closed=True,
)
