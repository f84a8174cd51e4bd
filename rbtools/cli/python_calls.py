"""Calls tools from Python: keyword arguments become the values of options."""

from __future__ import annotations

import contextlib
import keyword
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any

import orjson

from rbtools import registry
from rbtools.cli.calls import ToolCall, under_way
from rbtools.cli.declare import TOOLS, Option, Tool, method_options
from rbtools.cli.shared import done
from rbtools.cli.streams import MemoryStreams
from rbtools.errors import UsageError, near

Record = dict[str, Any]
# Options that are only for streams, terminals, output files or several processes.
_NOT_IN_PYTHON = frozenset(
    "files errors allow_empty shard placeholders in_place form shown quiet verbose log config dry_run plan"
    " help help_all version".split()
)
_PROCESSES = frozenset({"jobs", "jobs_per_gpu", "engine", "address", "unordered"})
_OF_CHECKPOINT = frozenset({"arch", "normalize"})


@contextlib.contextmanager
def _in_python_words() -> Iterator[None]:
    try:
        yield
    except UsageError as wrong:
        words = re.sub("'(--[a-z-]+)'", r"\1", str(wrong)).replace("No such option", "No such argument")
        raise UsageError(as_keywords(words)) from wrong.__cause__


@_in_python_words()
def call(
    tool: str | Tool, words: Sequence[str], keywords: Mapping[str, Any], streams: MemoryStreams
) -> list[Record]:
    """Run a tool and return the records that it writes. Raises RbError if the tool fails.

    `words` contains the subcommand, the choice and the arguments; `keywords` maps Python names of options to
    values.
    """
    main: Tool = TOOLS.load(tool) if isinstance(tool, str) else tool
    found, names, rest = _find(main, words)
    if found.by is not None:
        names = _chosen(found, keywords)
    classes = found.load(names, keywords.get("allow_code") is True) if names else []
    values = {option.name: _default(option) for option in found.options}
    values |= dict.fromkeys(method_options(classes))
    for argument in (option for option in found.options if rest and not option.flags):
        values[argument.name] = tuple(rest) if argument.multiple else rest[0]
    options = _of_python([*found.options_beside(classes), *method_options(classes).values()], main.name)
    known = {word: option for option in options.values() for word in reversed(option_names(option))}
    given = {}
    for word, value in keywords.items():
        no_weights = word == "checkpoint" and value is not None and not os.path.isdir(str(value))
        if word not in known or no_weights:
            raise UsageError(_refusal(word, found, classes, known))
        option = known[word]
        if value is not None or word == "store":
            values[option.name] = _value(option, "none" if value is None else value, streams)
            if value is not False or option.off:  # False has no meaning for a switch without --no-NAME
                given[option.name] = option.flags[0]
    if (missing := next((name for name in values if values[name] is registry.REQUIRED), None)) is not None:
        needed = next(option for option in found.options if option.name == missing)
        raise UsageError(f"{main.name} needs {missing}=. {needed.field.metadata['help']}")
    with under_way(ToolCall(main.name, given, (), streams)):
        done(found.run(values) if found.registry is None else found.chosen(names, values, classes))
    return [orjson.loads(line) for line in streams.lines]


def _refusal(word: str, tool: Tool, classes: Sequence[type], known: Iterable[str]) -> str:
    left_out = (name for option in tool.options if option.name not in known for name in option_names(option))
    if word in {*left_out, *_NOT_IN_PYTHON, *_PROCESSES, *_OF_CHECKPOINT, "checkpoint"}:
        return f"{word} only applies to streams of records on the command line. Leave it out here."
    flags = [f"--{name.replace('_', '-')}" for name in known]
    return tool.no_such_option(f"--{word.rstrip('_').replace('_', '-')}", classes, flags)


def _find(tool: Tool, words: Sequence[str]) -> tuple[Tool, list[str], Sequence[str]]:
    """Split the words into the selected command, names of its registry, and the remaining words."""
    for place, word in enumerate(words):
        if word in tool.commands:
            tool = tool.commands[word]
        elif tool.registry is not None and tool.by is None:
            return tool, tool.names(word), words[place + 1 :]
        elif tool.holds_only:
            raise UsageError(f"No such command '{word}'.{near(word, tool.commands)}")
        else:
            return tool, [], words[place:]
    return tool, [], ()


def _chosen(tool: Tool, keywords: Mapping[str, Any]) -> list[str]:
    assert tool.by is not None
    named = keywords.get(tool.by.lstrip("-"))
    preset = keywords.get("preset")
    words = [] if preset is None else ["--preset", as_typed(preset)]
    names = tool.default(words) if named is None else as_typed(named)
    return [name.strip() for name in names.split(",") if name.strip()]


def option_names(option: Option) -> list[str]:
    """The Python names of an option: the name of its value, then its flags (`as_` for --as)."""
    flags = [flag[2:].replace("-", "_") for flag in option.flags if flag.startswith("--")]
    words = [f"{flag}_" for flag in flags if keyword.iskeyword(flag)]
    return list(dict.fromkeys([option.name, *words, *flags]))


def _of_python(options: Iterable[Option], tool: str) -> dict[str, Option]:
    """Map the names of values to the options that a Python call of the tool may set."""
    known = {option.name: option for option in options if option.flags}
    left_out = _NOT_IN_PYTHON | (_PROCESSES - {"jobs"} if tool == "rb-search" else _PROCESSES)
    left_out |= _OF_CHECKPOINT if "checkpoint" in known else frozenset()
    return {name: option for name, option in known.items() if name not in left_out}


def _default(option: Option) -> Any:
    variable = option.field.metadata["variable"]
    return os.environ.get(variable) or option.default if variable else option.default


def parameters(tool: str, words: Sequence[str] = ()) -> dict[str, tuple[Parameter, str]]:
    """Map each option of a command to a parameter of a Python function (named as the flag) and its help text.

    The options of registered classes belong to `**options`, because they depend on the choice.
    """
    found, _, _ = _find(TOOLS.load(tool), words)
    return {
        name: (
            Parameter(_public(option), Parameter.KEYWORD_ONLY, default=_shown_default(option)),
            as_keywords(option.field.metadata["help"]),
        )
        for name, option in _of_python(found.every_option, found.name).items()
    }


def as_keywords(text: str) -> str:
    """A help text with keyword arguments instead of options: `batch_size` for `--batch-size`."""

    def argument(found: re.Match[str]) -> str:
        name = found[2].replace("-", "_")
        return found[0] if found[1] else f"`{name}_`" if keyword.iskeyword(name) else f"`{name}`"

    return re.sub(r"(rb-[a-z]+(?: [a-z]+)? )?--([a-z]+(?:-[a-z]+)*)", argument, " ".join(text.split()))


def _public(option: Option) -> str:
    """The name that pages and the command line use, such as `time` for --time and `as_` for --as."""
    return next((name for name in option_names(option)[1:] if name[:3] != "no_"), option.name)


def _shown_default(option: Option) -> Any:
    default = option.default
    return None if default is registry.REQUIRED or (default == () and not option.multiple) else default


def _value(option: Option, value: object, streams: MemoryStreams) -> Any:
    """The value as the tool expects it; records and mappings become files in memory. Raises UsageError."""
    flag = option.flags[0]
    if option.kind is bool:
        if not isinstance(value, bool):
            raise UsageError(f"{flag} is {value!r}. Expected True or False.")
        return value
    if isinstance(value, Mapping) and "=" in (option.field.metadata["metavar"] or ""):
        value = [f"{name}={as_typed(one)}" for name, one in value.items()]
    elif isinstance(value, Mapping) and option.multiple:
        streams.files |= value
        value = list(value)
    elif isinstance(value, Mapping) or (
        isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value)
    ):
        streams.files[option.name] = value
        value = option.name
    if option.multiple:
        several = [value] if isinstance(value, str) or not isinstance(value, Iterable) else value
        return tuple(map(as_typed, several))
    if option.name == "indices" and not isinstance(value, str) and isinstance(value, Iterable):
        return ",".join(f"{number}-{number}" for number in value)
    text = as_typed(value)
    problem = option.problem(text)
    if problem is not None:
        raise UsageError(f"Invalid value for '{flag}': {problem}")
    return option.kind(text)


def as_typed(value: object) -> str:
    """The value as text for the command line, with commas between items and spaces between lists."""
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
