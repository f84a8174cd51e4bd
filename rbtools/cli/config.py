"""Reads defaults of options from the file of `--config`, or from `rbtools.yaml` in the working directory,
which overrides the user's file. A file has a section for each tool, and the section `all` for shared options.
Keys are long options without their dashes; the options of a subcommand are nested below its name:

    all: {store: results, jobs: 2}
    rb-train: {method: trades, epochs: 50}
    rb-attack: {eps: 8, pgd: {steps: 50}}

The values become click's `default_map`, so the command line and the environment override them. For safety, a
file cannot allow the user's code to run, and cannot contain a path outside the working directory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from rbtools.cli.declare import TOOLS, declared
from rbtools.cli.options import PARTS
from rbtools.cli.source import RecordSource
from rbtools.errors import UsageError, near, unknown
from rbtools.plain_files import parse_yaml, read_settings

NAME = "rbtools.yaml"
VARIABLE = "RB_CONFIG"
NONE = "none"
ALL = "all"
_META = "rbtools.config"
FORBIDDEN = ("allow-code", "live", "config", "help", "version")
_PATHS = ("FILE", "DIR", "PATH")
_OF_SOME = set("as member weights defend backward draws checkpoint arch normalize merge".split())


# The long options that mean the same in every tool, which `all` may set.
_EVERY = [one for part in (*PARTS, RecordSource) for one in declared(part).values()]
SHARED = frozenset(flag[2:] for one in _EVERY for flag in one.flags if flag.startswith("--")) - _OF_SOME


def apply(ctx: click.Context, params: Sequence[click.Parameter], arguments: Sequence[str]) -> None:
    """Set the defaults of this command from the files, as click's `default_map`. Raises UsageError."""
    options = {
        flag[2:]: one
        for one in params
        if isinstance(one, click.Option)
        for flag in one.opts
        if flag.startswith("--")
    }
    own = not covers(ctx.command, arguments)
    ctx.default_map = {
        str(options[name].name): _value(options[name], name, value)
        for name, value in settings(ctx, arguments).items()
        if name in options and (own or name in SHARED)
    }


def settings(ctx: click.Context, arguments: Sequence[str]) -> dict[str, Any]:
    """Map the keys that are valid for the command, or for its parent commands, to values."""
    if _META not in ctx.meta:
        unread = ctx.resilient_parsing or ctx.find_root().obj is not None  # figures have fixed settings
        ctx.meta[_META] = [] if unread else [(path, _read(path)) for path in _paths(arguments)]
    tool, *below = ctx.command_path.split()
    found: dict[str, Any] = {}
    for path, sections in ctx.meta[_META]:
        for section in (ALL, os.path.basename(tool)):
            level = sections.get(section) or {}
            _check_names(path, section, level)
            found |= level
            for name in (name for word in below for name in word.split(",")):
                if isinstance(level.get(name), dict):
                    level = level[name]
                    found |= level
    return {str(name): value for name, value in found.items() if not isinstance(value, dict)}


def covers(command: click.Command, arguments: Sequence[str]) -> bool:
    """True if the command line contains the option that sets all of the tool's own options (--preset)."""
    option = getattr(getattr(command, "tool", None), "covers", None)
    return option is not None and any(word.partition("=")[0] == option for word in arguments)


def text_of(value: object) -> str:
    """The value as a user would type it on the command line."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _paths(arguments: Sequence[str]) -> list[str]:
    words = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    if {"-h", "--help", "--help-all", "--version"} & set(words):  # help works even if the file is invalid
        return []
    named = os.environ.get(VARIABLE)
    for word, following in zip(words, [*words[1:], None], strict=False):
        option, equals, value = word.partition("=")
        if option == "--config":
            named = value if equals else following
    if named == NONE:
        return []
    if named is not None:
        return [named]
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return [path for path in (os.path.join(base, "rbtools", "config.yaml"), NAME) if os.path.isfile(path)]


def _read(path: str) -> dict[str, Any]:
    import yaml  # only if there is a file: --help and most runs do not need it

    try:
        sections = parse_yaml(read_settings(path)) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as wrong:
        reason = " ".join(str(wrong).split())
        raise UsageError(f"{path}: {reason}. Expected YAML with a section for each tool.") from None
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}. Expected a YAML file, or none.") from None
    names = [ALL, *(f"rb-{tool.replace('_', '-')}" for tool in TOOLS)]
    if not isinstance(sections, dict) or not all(isinstance(one or {}, dict) for one in sections.values()):
        raise UsageError(f"{path}: expected a section for each tool, such as rb-train:, with its options.")
    if (other := next((name for name in sections if name not in names), None)) is not None:
        raise unknown(f"section in {path}:", str(other), names, UsageError)
    return sections


def _check_names(path: str, section: str, level: Mapping[str, Any]) -> None:
    valid = set(SHARED) if section == ALL else None
    for name, value in level.items():
        if name in FORBIDDEN and value is not False:
            raise UsageError(f"{path}: {name} cannot be set in a file. Give it on the command line.")
        if valid is None:
            valid = TOOLS.load(section.removeprefix("rb-").replace("-", "_")).vocabulary()
        if name not in valid:
            raise UsageError(f"{path}: {section} has no option '{name}'.{near(str(name), sorted(valid))}")
        if isinstance(value, dict) and section != ALL:
            _check_names(path, section, value)


def _value(option: click.Option, name: str, value: object) -> Any:
    """The value as click expects it. Raises UsageError if a path leads out of the working directory."""
    if value is None or isinstance(value, bool) != option.is_flag:
        wanted = "true or false" if option.is_flag else "a value"
        raise UsageError(f"{name} in the configuration is {value}. Expected {wanted}.")
    if option.multiple:
        return list(map(str, value if isinstance(value, list) else [value]))
    if option.is_flag:
        return value
    from rbtools.datasets import WITH_PATH

    text = text_of(value)
    kind = next((kind for kind in WITH_PATH if text.startswith(f"{kind}:")), None)
    if kind is not None or any(word in (option.metavar or "") for word in _PATHS):
        path = os.path.expanduser(text if kind is None else text[len(kind) + 1 :])
        here, there = os.path.realpath("."), os.path.realpath(path)
        if os.path.commonpath([here, there]) != here:
            raise UsageError(
                f"{name} in the configuration is '{text}', which is outside {here}. Such a path is allowed"
                " only on the command line and in the environment."
            )
    return text
