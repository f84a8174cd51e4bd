"""Defaults from a file: `--config FILE`, else `rbtools.yaml` in the working directory over the user's own.

A file has a section for each tool, and `all` for shared options. Keys are long options without their
dashes, and below the name of a subcommand those of that one:

    all: {store: results, jobs: 2}
    rb-train: {method: trades, epochs: 50}
    rb-attack: {eps: 8, pgd: {steps: 50}}

The command line overrides the environment, which overrides the file. For safety, a file cannot let programs
run, nor name a path outside the working directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click

from rbtools.cli import tools
from rbtools.cli.option_parts import Compound, Part
from rbtools.datasets import WITH_PATH
from rbtools.errors import UsageError, near, unknown
from rbtools.plain_files import read_settings

NAME = "rbtools.yaml"
VARIABLE = "RB_CONFIG"
NONE = "none"
ALL = "all"
_META = "rbtools.config"
_DEEPEST = 50  # levels of YAML, which PyYAML reads by recursion
# Options that a file cannot set, and why.
FORBIDDEN = {"allow-code": ": it lets programs run", "live": ": it starts trainings"}
FORBIDDEN |= dict.fromkeys(("config", "help", "version"), "")
_PATHS = ("FILE", "DIR", "PATH")
SHARED: set[str] = set()
"""The long options that mean the same in every tool, which `all` may set; cli/options.py adds them."""


class ConfigKey(NamedTuple):
    """A key of a file, its value, and the section that it stands in."""

    name: str
    value: Any
    path: str
    section: str

    @property
    def place(self) -> str:
        """Its position in the file, for messages."""
        return f"{self.path}: {self.name} of {self.section}"


def apply(ctx: click.Context, params: Sequence[click.Parameter], arguments: Sequence[str]) -> None:
    """Set the defaults of this command from the files, as click's `default_map`. Raises UsageError."""
    options = {
        flag[2:]: param
        for param in params
        if isinstance(param, click.Option)
        for flag in param.opts
        if flag.startswith("--")
    }
    covered = covers(ctx.command, arguments)
    defaults: dict[str, Any] = {}
    for key in keys(ctx, arguments):
        option = options.get(key.name)
        if isinstance(key.value, dict):
            _check_subcommand(ctx, key)
        elif key.name in FORBIDDEN and key.value is not False:
            reason = FORBIDDEN[key.name] and f"{FORBIDDEN[key.name]}. Say it on the command line"
            raise UsageError(f"{key.path}: {key.name} cannot be set by a file{reason}.")
        elif option is None or (key.section == ALL and key.name not in SHARED):
            _check_elsewhere(key, options)
        elif key.name in SHARED or not covered:
            defaults |= _values(ctx, option, key, list(params))
    ctx.default_map = defaults


def keys(ctx: click.Context, arguments: Sequence[str]) -> Iterator[ConfigKey]:
    """All keys at this command's place or above it, in increasing priority. Raises UsageError."""
    tool, *below = ctx.command_path.split()
    for path, sections in _files(ctx, arguments):
        for section in (ALL, os.path.basename(tool)):
            levels = [sections.get(section, {})]
            for name in (name for word in below for name in word.split(",")):
                if isinstance(levels[-1].get(name), dict):
                    levels.append(levels[-1][name])
            for level in levels:
                yield from (ConfigKey(str(name), value, path, section) for name, value in level.items())


def covers(command: click.Command, arguments: Sequence[str]) -> bool:
    """Whether the command line has the option that sets all of the tool's own options (--preset)."""
    option = getattr(command, "covers", None)
    return option is not None and any(word.partition("=")[0] == option for word in arguments)


def text_of(value: object) -> str:
    """A value as one would type it."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _files(ctx: click.Context, arguments: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """The files that apply to this command line and their sections, in increasing priority."""
    if _META not in ctx.meta:
        from_python = ctx.find_root().obj is not None  # Python functions have their own defaults
        unread = ctx.resilient_parsing or from_python
        ctx.meta[_META] = [] if unread else [(path, _read(path)) for path in _paths(arguments)]
    files: list[tuple[str, dict[str, Any]]] = ctx.meta[_META]
    return files


def _paths(arguments: Sequence[str]) -> list[str]:
    words = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    if {"-h", "--help", "--version"} & set(words):  # so that help is fast, and works with an invalid file
        return []
    named = os.environ.get(VARIABLE)
    for word, following in zip(words, [*words[1:], None], strict=False):
        option, equals, value = word.partition("=")
        if option == "--config":
            named = value if equals else following
    if named == NONE:
        return []
    if named is not None:
        if os.path.isdir(named) or not os.path.exists(named):
            problem = "is a folder" if os.path.isdir(named) else "does not exist"
            raise UsageError(
                f"The configuration {named} {problem}. Expected a YAML file, or none for no file."
            )
        return [named]
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return [path for path in (os.path.join(base, "rbtools", "config.yaml"), NAME) if os.path.isfile(path)]


def _read(path: str) -> dict[str, Any]:
    """The checked sections of a file. Raises UsageError."""
    import yaml  # only where there is a file: --help and most runs do without

    try:
        sections = parse_yaml(read_settings(path)) or {}
    except yaml.MarkedYAMLError as wrong:
        at = "" if wrong.problem_mark is None else f": line {wrong.problem_mark.line + 1}"
        raise UsageError(f"{path}{at}: {wrong.problem}. Expected YAML: a section per tool.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as wrong:
        raise UsageError(f"{path}: {' '.join(str(wrong).split())}. Expected YAML in UTF-8.") from None
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}. --config none does without.") from None
    if not isinstance(sections, dict):
        raise UsageError(f"{path} is no mapping. Expected a section per tool, such as rb-train:.")
    names = [ALL, *(f"rb-{tool.replace('_', '-')}" for tool in tools.TOOLS)]
    for name, value in sections.items():
        if name not in names:
            raise unknown(f"section in {path}:", str(name), names, UsageError)
        if value is not None and not isinstance(value, dict):
            raise UsageError(f"{path}: {name} is no mapping. Expected options and their values below it.")
    return {name: value or {} for name, value in sections.items()}


def _check_subcommand(ctx: click.Context, key: ConfigKey) -> None:
    """Raises UsageError where a key with further keys below it is the name of no subcommand."""
    names: list[str] = []
    above: click.Context | None = ctx
    while above is not None:
        if isinstance(above.command, click.Group):
            names += above.command.list_commands(above)
        above = above.parent
    if key.name not in names:
        if not names or key.section == ALL:
            raise UsageError(f"{key.place} is a mapping. Expected a value.")
        raise unknown(f"command in {key.path}: {key.section}:", key.name, names, UsageError)


def _check_elsewhere(key: ConfigKey, options: Mapping[str, click.Option]) -> None:
    """Raises UsageError for an option that no command of the tool has (of `all`: that tools do not share)."""
    if key.section == ALL:
        valid, of, example = SHARED, " that tools share", "rb-train"
    else:
        pages = tools.pages(tools.tool(key.section.removeprefix("rb-").replace("-", "_")))
        params = [param for page in pages for param in page.command.get_params(page.context)]
        valid = {
            flag[2:] for param in params for flag in param.opts if flag.startswith("--")
        } | options.keys()
        of, example = "", key.section
    if key.name not in valid:
        raise UsageError(
            f"{key.path}: {key.section} has no option '{key.name}'{of}.{near(key.name, sorted(valid))}"
            f" {example} --help lists them."
        )


def _values(
    ctx: click.Context, option: click.Option, key: ConfigKey, params: list[click.Parameter]
) -> dict[str, Any]:
    """The default of an option and of its parts, by their names. Raises UsageError for a wrong type or a path
    outside the working directory."""
    if key.value is None or isinstance(key.value, bool) != option.is_flag:
        shown = "empty" if key.value is None else f"'{key.value}'"
        raise UsageError(
            f"{key.place} is {shown}. Expected {'true or false' if option.is_flag else 'a value'}."
        )
    if isinstance(option, Part):
        option.notice(ctx, f"{key.name} in {key.path}")
        if option.gives is not None:
            return {option.whole.replace("-", "_"): option.gives} if key.value else {}
    if isinstance(option, Compound):
        try:
            values = option.from_file(ctx, text_of(key.value), params)
        except UsageError as wrong:
            raise UsageError(f"{key.path}: {wrong}") from None
    else:
        values = {str(option.name): key.value if option.is_flag else text_of(key.value)}
    by_name = {param.name: param for param in params if isinstance(param, click.Option)}
    for name, value in values.items():
        _check(by_name[name], value, key)
    if option.multiple:
        return {str(option.name): list(map(str, key.value if isinstance(key.value, list) else [key.value]))}
    return values


def _check(option: click.Option, value: object, key: ConfigKey) -> None:
    """Raises UsageError for a wrong type, or a path outside the working directory, links followed."""
    try:
        option.type.convert(value, option, None)
    except click.BadParameter as wrong:
        raise UsageError(f"{key.place}: {wrong.message}") from None
    inner = next(
        (name for name in WITH_PATH if isinstance(value, str) and value.startswith(f"{name}:")), None
    )
    if not isinstance(value, str) or (
        inner is None and not any(word in (option.metavar or "") for word in _PATHS)
    ):
        return
    path = os.path.expanduser(value if inner is None else value[len(inner) + 1 :])
    here, there = os.path.realpath("."), os.path.realpath(path)
    if there != here and not there.startswith(here.rstrip(os.sep) + os.sep):
        raise UsageError(
            f"{key.place} is '{value}', which lies outside {here}. A file cannot name that; the command line"
            " and the"
            " environment can."
        )


def parse_yaml(text: str) -> Any:
    """The value that the text stands for. Raises yaml.YAMLError.

    Aliases are refused: a few lines of them stand for billions of values. So are duplicate keys.
    """
    import yaml  # only where there is a file: --help and most runs do without

    class Loader(yaml.SafeLoader):
        """yaml.SafeLoader, which makes no objects and runs no code, without aliases and duplicate keys."""

        depth = 0

        def compose_node(self, parent: yaml.Node | None, index: yaml.Node | int) -> Any:
            event = self.peek_event()
            if self.check_event(yaml.AliasEvent):
                raise yaml.MarkedYAMLError(None, None, f"'*{event.anchor}' is an alias", event.start_mark)
            self.depth += 1
            if self.depth > _DEEPEST:
                raise yaml.MarkedYAMLError(None, None, f"more than {_DEEPEST} levels", event.start_mark)
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    raise yaml.MarkedYAMLError(
                        None, None, f"'{key.value}' stands there twice", key.start_mark
                    )
                seen.update([key.value] if isinstance(key, yaml.ScalarNode) else [])
            return super().construct_mapping(node, deep)

    try:
        # `load` as `safe_load` calls it.
        return yaml.load(text, Loader)  # safe: Loader is a SafeLoader
    except (ValueError, OverflowError) as error:  # an endless number, an invalid date
        raise yaml.YAMLError(str(error)) from None
