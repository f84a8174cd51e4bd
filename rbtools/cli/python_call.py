"""A tool called from Python: keyword arguments make its command line, and records stay in memory.

A function of `rbtools.api` runs the command itself, so both share one declaration of the options, and both
refuse the same values with the same sentence.
"""

from __future__ import annotations

import keyword
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter
from typing import TYPE_CHECKING, Any

import click
import orjson

from rbtools.cli import tools
from rbtools.cli.output import RecordWriter
from rbtools.cli.source import RecordSource, file_path
from rbtools.cli.terminal import Terminal
from rbtools.errors import RbError, UsageError
from rbtools.records import Line, dumps, lines, read

if TYPE_CHECKING:
    from rbtools.cli.events import Log

Record = dict[str, Any]
# Options that only a stream, a terminal, an output file or several processes need.
_STREAM = frozenset({"files", "strict", "allow_empty", "retry_errors", "shard", "in_place", "form", "shown"})
_MESSAGES = frozenset({"quiet", "verbose", "log", "config", "print_config", "help", "help_all", "version"})
_MESSAGES |= {"dry_run", "device_rate"}
_PROCESSES = frozenset({"jobs", "jobs_per_gpu", "engine", "address", "unordered"})
_OF_CHECKPOINT = frozenset({"checkpoint", "arch", "normalize", "prompts"})


class PythonCall:
    """One call. records: the input of the tool; files: values in place of files, by name.

    `lines`: the records that the tool writes, as text; `result`: a result that is no record, such as a
    figure.
    """

    def __init__(self, records: Iterable[Record] = (), *, files: Mapping[str, Any] | None = None) -> None:
        self.records = records
        self.files = dict(files or {})
        self.result: Any = None
        self.lines: list[bytes] = []

    def run(
        self, tool: str | click.Command, words: Sequence[str], options: Mapping[str, Any]
    ) -> list[Record]:
        """Run a tool and return the records that it writes. Raises RbError if it fails.

        words: its subcommand and arguments; options: its options by their Python names.
        """
        from rbtools.cli.exit_status import sentence

        page = tools.tool(tool)
        try:
            line = arguments(page, words, options, self)
            with page.command.make_context(page.words, line, obj=self) as context:
                page.command.invoke(context)
        except click.ClickException as wrong:
            raise UsageError(sentence(wrong)) from None
        return [orjson.loads(line) for line in self.lines]


def current() -> PythonCall | None:
    """The Python call that runs the command; None on a command line."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.find_root().find_object(PythonCall)


class _MemoryWriter(RecordWriter):
    """Keeps the lines of a call."""

    def __init__(self, lines: list[bytes]) -> None:
        self._kept = lines

    def restore(self) -> None:
        """Nothing to do: standard output was not redirected."""

    def line(self, text: bytes) -> None:
        self._kept.append(text)

    def poll(self) -> None:
        """Memory has no reader that could close."""

    def is_terminal(self) -> bool:
        return False

    def same_file(self, path: str) -> bool:
        return False

    def same_as_input(self) -> bool:
        return False


def record_writer() -> RecordWriter:
    """Where the command writes its records: standard output, or the memory of a call."""
    call = current()
    return RecordWriter() if call is None else _MemoryWriter(call.lines)


class _Warnings(Terminal):
    """Messages of a call: errors are raised, warnings are Python's, and the rest is left out."""

    def _line(self, text: str) -> None:
        kind, _, rest = text.partition(": ")
        if kind == "error":
            raise RbError(rest)
        if kind == "warning":
            warnings.warn(rest, stacklevel=2)


def terminal(tool: str, quiet: bool, verbose: bool, log: Log | None) -> Terminal:
    """Where the messages of the command go."""
    if current() is not None:
        return _Warnings(tool, quiet=True)
    return Terminal(tool, quiet=quiet, verbose=verbose, log=log)


@dataclass(frozen=True)
class _GivenRecords(RecordSource):
    """The records of a call in place of standard input, and its tables in place of files."""

    call: PythonCall = field(default_factory=PythonCall)

    def writer(self) -> RecordWriter:
        return record_writer()

    def _all_lines(self, output: RecordWriter) -> Iterator[Line]:
        for name in self.files or ("-",):
            yield from self._of_file(name)

    def _of_file(self, name: str) -> Iterator[Line]:
        if name != "-" and name not in self.call.files:
            yield from super()._of_file(name)
            return
        records = self.call.records if name == "-" else self.call.files[name]
        records = [records] if isinstance(records, Mapping) else records
        yield from lines(map(dumps, records), "the records" if name == "-" else name)


def record_source(**options: object) -> RecordSource:
    """The records that the command works on."""
    call = current()
    if call is None:
        return RecordSource(**options)  # type: ignore[arg-type]
    # A caller sees that a list is empty: no program that failed can have made it.
    return _GivenRecords(**{**options, "allow_empty": True}, call=call)  # type: ignore[arg-type]


def given_file(name: str) -> Any:
    """What the call gives in place of this file; None if it is a real file."""
    call = current()
    return None if call is None else call.files.get(name)


def one_record(file: str, purpose: str) -> Record:
    """The only record of a file, or the one that the call gives in its place. Raises RbError."""
    given = given_file(file)
    records = read(file_path(file)) if given is None else [given] if isinstance(given, Mapping) else given
    good = [record for record in records if "error" not in record]
    if len(good) != 1:
        raise RbError(f"{file} holds {len(good)} records. Expected one, of the model to {purpose}.")
    return dict(good[0])


# --- keyword arguments as a command line ------------------------------------------------------------


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

    Those of a registered class, which depend on what is chosen, are left to `**options`.
    """
    page = tools.find(tools.tool(tool), words)
    options = _python_options(tools.own_params(page), page)
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default_of(option, page.context))
        for name, option in options.items()
    ]


def default_of(option: click.Option, context: click.Context) -> Any:
    """An option's default in Python."""
    value = option.get_default(context)
    if option.is_flag and option.secondary_opts == []:
        return value is True
    return value if isinstance(value, (str, int, float)) else () if option.multiple else None


def arguments(
    page: tools.Page, words: Sequence[str], options: Mapping[str, Any], call: PythonCall
) -> list[str]:
    """Words and options as a command line; records and mappings among the values become files of the call.

    An unknown name is passed on: the command refuses it.
    """
    page = tools.find(page, words)
    known = _python_options(page.command.get_params(page.context), page)
    by_name = {name: option for option in known.values() for name in reversed(option_names(option))}
    tokens = list(words)
    for name, value in options.items():
        option = by_name.get(name)
        if name == "store" and value is None:
            name, option, value = "no_store", by_name.get("no_store"), True
        if option is None and name in _STREAM | _MESSAGES | _PROCESSES | _OF_CHECKPOINT:
            raise UsageError(f"{name} is for streams of records on the command line. Leave it out here.")
        tokens += _tokens(name, option, value, call)
    return tokens


def _tokens(name: str, option: click.Option | None, value: object, call: PythonCall) -> list[str]:
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
        call.files |= value
        value = list(value)
    elif _holds_records(value):
        call.files[name] = value
        value = name
    if option.multiple and isinstance(value, Iterable) and not isinstance(value, str):
        return [f"{flag}={as_typed(item)}" for item in value]
    return [f"{flag}={as_typed(value)}"]


def _holds_records(value: object) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value)
    )


def as_typed(value: object) -> str:
    """A value as the command line takes it: lists with commas, pairs of lists with a space between."""
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    folder = getattr(value, "folder", None)  # a store
    if folder is not None:
        return str(folder)
    assert isinstance(value, Iterable)
    items = [as_typed(item) for item in value]
    nested = any(not isinstance(item, (str, int, float)) for item in value)
    return (" " if nested else ",").join(items)
