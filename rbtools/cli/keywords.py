"""Keyword arguments of Python as the options of a command, which it checks like those of a command line."""

from __future__ import annotations

import keyword
import os
from collections.abc import Iterable, Mapping, Sequence
from inspect import Parameter
from typing import Any

import click
import orjson

from rbtools.cli import tools
from rbtools.cli.streams import MemoryStreams
from rbtools.errors import UsageError

Record = dict[str, Any]
# Options that only a stream, a terminal, an output file or several processes need.
_STREAM = frozenset({"files", "errors", "allow_empty", "shard", "in_place", "form", "shown"})
_MESSAGES = frozenset({"quiet", "verbose", "log", "config", "help", "help_all", "version"})
_MESSAGES |= {"dry_run"}
_PROCESSES = frozenset({"jobs", "jobs_per_gpu", "engine", "address", "unordered"})
_OF_CHECKPOINT = frozenset({"arch", "normalize"})


def call(
    tool: str | click.Command, words: Sequence[str], options: Mapping[str, Any], streams: MemoryStreams
) -> list[Record]:
    """Run a command and return the records that it writes. Raises RbError if it fails.

    words: its subcommand and arguments; options: its options by their Python names; streams: its input.
    """
    from rbtools.cli.exit_status import sentence

    page = tools.tool(tool)
    try:
        line = arguments(page, words, options, streams)
        with page.command.make_context(page.words, line, obj=streams) as context:
            page.command.invoke(context)
    except click.ClickException as wrong:
        raise UsageError(sentence(wrong)) from None
    return [orjson.loads(line) for line in streams.lines]


def option_names(option: click.Option) -> list[str]:
    """The Python names of an option: that of its value, then those of its flags."""
    flags = [flag[2:].replace("-", "_") for flag in option.opts if flag.startswith("--")]
    names = [str(option.name), *(f"{flag}_" if keyword.iskeyword(flag) else flag for flag in flags)]
    return list(dict.fromkeys(names))


def _python_options(params: Iterable[click.Parameter], page: tools.Page) -> dict[str, click.Option]:
    """The options among these that a call may give, by the names of their values."""
    options = {str(param.name): param for param in params if isinstance(param, click.Option)}
    left_out = (
        _STREAM | _MESSAGES | (_PROCESSES - {"jobs"} if page.words.startswith("rb-search") else _PROCESSES)
    )
    left_out |= _OF_CHECKPOINT if "checkpoint" in options else frozenset()
    return {name: option for name, option in options.items() if name not in left_out}


def parameters(tool: str, words: Sequence[str] = ()) -> list[Parameter]:
    """The options of a command, and of all below it, as parameters of a Python function with their defaults.
    Those of a registered class depend on the choice and are left to `**options`.
    """
    page = tools.find(tools.tool(tool), words)
    options = _python_options(tools.own_params(page), page)
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default_of(option, page.context))
        for name, option in options.items()
        if not option.hidden
    ]


def explained(tool: str, words: Sequence[str] = ()) -> str:
    """A line for each option of `parameters`: its Python name, and its sentence in the command's help."""
    page = tools.find(tools.tool(tool), words)
    options = _python_options(tools.own_params(page), page)
    return "\n".join(
        f"    {name}: {' '.join((option.help or '').split())}"
        for name, option in options.items()
        if not option.hidden
    )


def default_of(option: click.Option, context: click.Context) -> Any:
    """An option's default in Python."""
    value = option.get_default(context)
    if option.is_flag and option.secondary_opts == []:
        return value is True
    return value if isinstance(value, (str, int, float)) else () if option.multiple else None


def arguments(
    page: tools.Page, words: Sequence[str], options: Mapping[str, Any], streams: MemoryStreams
) -> list[str]:
    """Words and options as a command line; records and mappings among the values become files of the streams.

    An unknown name is passed on: the command refuses it.
    """
    page = tools.find(page, words)
    python_options = _python_options(page.command.get_params(page.context), page)
    by_name = {name: option for option in python_options.values() for name in reversed(option_names(option))}
    tokens = list(words)
    for name, value in options.items():
        option = by_name.get(name)
        if name == "store" and value is None:
            value = "none"
        outside = _STREAM | _MESSAGES | _PROCESSES | _OF_CHECKPOINT
        if (option is None and name in outside) or (name == "checkpoint" and not _of_weights(value)):
            raise UsageError(f"{name} is for streams of records on the command line. Leave it out here.")
        tokens += _tokens(name, option, value, streams)
    return tokens


def _of_weights(value: object) -> bool:
    """Whether --checkpoint names a folder of weights, or a member of the file that the record names."""
    return value is None or os.path.isdir(str(value))


def _tokens(name: str, option: click.Option | None, value: object, streams: MemoryStreams) -> list[str]:
    flag = f"--{name.rstrip('_').replace('_', '-')}"
    if option is None:
        return [flag] if isinstance(value, bool) else [f"{flag}={as_typed(value)}"]
    if value is None:
        return []
    flag = next(flag for flag in option.opts if flag.startswith("--"))
    if option.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"{flag} is {value!r}. Expected True or False.")
        return [flag] if value else list(option.secondary_opts[:1])
    if isinstance(value, Mapping) and option.multiple:
        streams.files |= value
        value = list(value)
    elif isinstance(value, Mapping) or (
        isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value)
    ):
        streams.files[name] = value
        value = name
    if name == "indices" and isinstance(value, Iterable) and not isinstance(value, str):
        value = ",".join(f"{number}-{number}" for number in value)
    if option.multiple and isinstance(value, Iterable) and not isinstance(value, str):
        return [f"{flag}={as_typed(item)}" for item in value]
    return [f"{flag}={as_typed(value)}"]


def as_typed(value: object) -> str:
    """A value as the command line takes it: lists with commas, pairs of lists with a space between."""
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    folder = getattr(value, "folder", None)  # a store
    if folder is not None:
        return str(folder)
    if not isinstance(value, Iterable):
        return str(value)
    items = [as_typed(item) for item in value]
    nested = any(not isinstance(item, (str, int, float)) for item in value)
    return (" " if nested else ",").join(items)
