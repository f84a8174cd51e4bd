"""Defaults from a file: `--config FILE`, else `rbtools.yaml` in the working directory over the user's own.

A file has a section for each tool, and `all` for what tools share. Keys are long options without their
dashes, and below the name of a subcommand those of that one:

    all: {store: results, jobs: 2}
    rb-train: {method: trades, epochs: 50}
    rb-attack: {eps: 8, pgd: {steps: 50}}

The command line overrides the environment, which overrides the file. For safety, a file cannot let programs
run, nor name a path outside the working directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click

from rbtools.cli import safe_yaml, tools
from rbtools.datasets import WITH_PATH
from rbtools.errors import UsageError, near, unknown
from rbtools.plain_files import read_settings

NAME = "rbtools.yaml"
VARIABLE = "RB_CONFIG"
NONE = "none"
ALL = "all"
META = "rbtools.config"
ORIGINS = "rbtools.origins"
# Options that a file cannot set, and why; "" for those that make no sense there.
FORBIDDEN = {
    "allow-code": "it lets programs run",
    "live": "it starts trainings",
    "config": "",
    "print-config": "",
    "help": "",
    "version": "",
}
_PATHS = ("FILE", "DIR", "PATH")
SHARED: set[str] = set()
"""The long options that mean the same in every tool, which `all` may set; cli/options.py adds them."""


class ConfigFile(NamedTuple):
    """A file of defaults: its path, as the user wrote it, and its sections."""

    path: str
    sections: dict[str, Any]


class ConfigKey(NamedTuple):
    """A key of a file with its value, its place, and whether it is for all tools."""

    name: str
    value: Any
    path: str
    place: str
    shared: bool


def files(ctx: click.Context, arguments: Sequence[str]) -> list[ConfigFile]:
    """The files that apply to this command line, in increasing priority. Raises UsageError."""
    config_files: list[ConfigFile] | None = ctx.meta.get(META)
    if config_files is None:
        from_python = ctx.find_root().obj is not None  # its functions have defaults of their own
        unread = ctx.resilient_parsing or from_python
        config_files = [] if unread else [_read(path) for path in _paths(arguments)]
        ctx.meta[META] = config_files
    return config_files


def _paths(arguments: Sequence[str]) -> list[str]:
    words = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    if {"-h", "--help", "--version"} & set(words):  # help is fast, and works with an invalid file
        return []
    named = os.environ.get(VARIABLE)
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option == "--config":
            named = value if equals else words[place + 1] if place + 1 < len(words) else None
    if named == NONE:
        return []
    if named is not None:
        if os.path.isdir(named) or not os.path.exists(named):
            what = "is a folder" if os.path.isdir(named) else "does not exist"
            raise UsageError(f"The configuration {named} {what}. Expected a YAML file, or none for no file.")
        return [named]
    return [path for path in (_of_the_user(), NAME) if os.path.isfile(path)]


def _of_the_user() -> str:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "rbtools", "config.yaml")


def _read(path: str) -> ConfigFile:
    """The checked contents of a file. Raises UsageError."""
    import yaml  # only where there is a file: --help and most runs do without

    try:
        sections = safe_yaml.parse(read_settings(path))
    except yaml.MarkedYAMLError as wrong:
        at = "" if wrong.problem_mark is None else f": line {wrong.problem_mark.line + 1}"
        raise UsageError(f"{path}{at}: {wrong.problem}. Expected YAML: a section per tool.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as wrong:
        raise UsageError(f"{path}: {' '.join(str(wrong).split())}. Expected YAML in UTF-8.") from None
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}. --config none does without.") from None
    sections = {} if sections is None else sections
    if not isinstance(sections, dict):
        raise UsageError(f"{path} is {_kind(sections)}. Expected a section per tool, such as rb-train:.")
    _check_sections(path, sections)
    return ConfigFile(path, {name: {} if value is None else value for name, value in sections.items()})


def _check_sections(path: str, sections: Mapping[Any, Any]) -> None:
    names = [ALL, *(f"rb-{tool.replace('_', '-')}" for tool in tools.TOOLS)]
    for name, value in sections.items():
        if name not in names:
            raise unknown(f"section in {path}:", str(name), names, UsageError)
        if value is not None and not isinstance(value, dict):
            raise UsageError(f"{path}: {name} is {_kind(value)}. Expected options and their values below it.")


def words(ctx: click.Context, arguments: Sequence[str], covers: str | None = None) -> list[str]:
    """The files' settings for this tool as words of a command line, for code that reads these before click.

    Nothing if the command line has the option `covers`.
    """
    tokens: list[str] = []
    if covers is not None and any(word.partition("=")[0] == covers for word in arguments):
        return tokens
    for key in _keys(ctx, arguments):
        if not isinstance(key.value, dict | bool) and key.value is not None:
            tokens += [f"--{key.name}", _text(key.value)]
    return tokens


def apply(ctx: click.Context, params: Sequence[click.Parameter], arguments: Sequence[str]) -> None:
    """Set the defaults of this command from the files. Raises UsageError for invalid settings."""
    options = {
        flag[2:]: param
        for param in params
        if isinstance(param, click.Option)
        for flag in param.opts
        if flag.startswith("--")
    }
    covered = _covered(ctx, arguments)
    defaults: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key in _keys(ctx, arguments):
        if isinstance(key.value, dict):
            _check_subcommand(ctx, key)
            continue
        if key.name in FORBIDDEN and key.value is not False:
            why = FORBIDDEN[key.name]
            reason = f": {why}. Say it on the command line" if why else ""
            raise UsageError(f"{key.path}: {key.name} cannot be set by a file{reason}.")
        param = options.get(key.name)
        if param is None or (key.shared and key.name not in SHARED):
            _check_elsewhere(ctx, key, options)
            continue
        value = _value(param, key)
        if param.name is not None and not (covered and key.name not in SHARED):
            defaults[param.name], origins[param.name] = value, key.path
    ctx.default_map = defaults
    ctx.meta[ORIGINS] = origins


def _covered(ctx: click.Context, arguments: Sequence[str]) -> bool:
    """Whether the command line has the option that sets all of the tool's own options (--preset)."""
    option = getattr(ctx.command, "covers", None)
    return option is not None and any(word.partition("=")[0] == option for word in arguments)


def _keys(ctx: click.Context, arguments: Sequence[str]) -> Iterator[ConfigKey]:
    """All keys at this command's place or above it, in increasing priority."""
    tool, *below = ctx.command_path.split()
    tool = os.path.basename(tool)
    for file in files(ctx, arguments):
        for section in (ALL, tool):
            levels, place = [file.sections.get(section, {})], section
            for word in below:
                for name in word.split(","):
                    inner = levels[-1].get(name)
                    if isinstance(inner, dict):
                        levels.append(inner)
            for level in levels:
                for name, value in level.items():
                    yield ConfigKey(str(name), value, file.path, place, section == ALL)


def _check_subcommand(ctx: click.Context, key: ConfigKey) -> None:
    """Raises UsageError where a key with further keys below it is the name of no subcommand."""
    names: list[str] = []
    above: click.Context | None = ctx
    while above is not None:
        if isinstance(above.command, click.Group):
            names += above.command.list_commands(above)
        above = above.parent
    if key.name not in names:
        if not names or key.shared:
            raise UsageError(
                f"{key.path}: {key.name} of {key.place} is {_kind(key.value)}. Expected a value."
            )
        raise unknown(f"command in {key.path}: {key.place}:", key.name, names, UsageError)


def _check_elsewhere(ctx: click.Context, key: ConfigKey, options: Iterable[str]) -> None:
    """Raises UsageError for an option that no command of the tool has (of `all`: that tools do not share)."""
    known = SHARED if key.shared else _options_of(key.place)
    if key.name not in known:
        names = known if key.shared else {*known, *options}
        what = "" if not key.shared else " that tools share"
        raise UsageError(
            f"{key.path}: {key.place} has no option '{key.name}'{what}.{near(key.name, sorted(names))}"
            f" {key.place if not key.shared else 'rb-train'} --help lists them."
        )


def _options_of(name: str) -> set[str]:
    """All long options of a tool and of everything below it."""
    pages = tools.pages(tools.tool(name.removeprefix("rb-").replace("-", "_")))
    params = [param for page in pages for param in page.command.get_params(page.context)]
    return {flag[2:] for param in params for flag in param.opts if flag.startswith("--")}


def _value(param: click.Option, key: ConfigKey) -> Any:
    """A value as click takes a default. Raises UsageError for a wrong type or a path outside the working
    directory."""
    where = f"{key.path}: {key.name} of {key.place} is"
    flag = param.is_flag
    if isinstance(key.value, bool) != flag or key.value is None:
        raise UsageError(f"{where} {_shown(key.value)}. Expected {_expected(param)}.")
    if flag:
        return key.value
    several = isinstance(key.value, list) and all(isinstance(item, str | int | float) for item in key.value)
    if not isinstance(key.value, str | int | float) and not (several and isinstance(param.type, _TEXT)):
        raise UsageError(f"{where} {_kind(key.value)}. Expected {_expected(param)}.")
    text = _text(key.value)
    try:
        param.type.convert(text, param, None)
    except click.BadParameter as wrong:
        raise UsageError(
            f"{where} {_shown(key.value)}. Expected {_expected(param)}: {wrong.message}"
        ) from None
    _check_path(param, text, where)
    if param.multiple:
        return [str(item) for item in key.value] if isinstance(key.value, list) else [text]
    return text


_TEXT = click.types.StringParamType


def _check_path(param: click.Option, text: str, where: str) -> None:
    """Raises UsageError for a path that leads out of the working directory, links followed."""
    inner = next((text[len(name) + 1 :] for name in WITH_PATH if text.startswith(f"{name}:")), None)
    metavar = param.metavar or ""
    if inner is None and not any(word in metavar for word in _PATHS):
        return
    path = os.path.expanduser(text if inner is None else inner)
    here, there = os.path.realpath("."), os.path.realpath(path)
    if there != here and not there.startswith(here.rstrip(os.sep) + os.sep):
        raise UsageError(
            f"{where} {_shown(text)}, which lies outside {here}. A file cannot name that; the command line"
            " and the environment can."
        )


def _text(value: object) -> str:
    """A value as one would type it."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _expected(param: click.Option) -> str:
    if param.is_flag:
        return "true or false"
    if isinstance(param.type, click.Choice):
        return f"one of {', '.join(map(str, param.type.choices))}"
    if isinstance(param.type, click.types.IntParamType):
        return "a whole number"
    return "a number" if isinstance(param.type, click.types.FloatParamType) else "text or a number"


def _kind(value: object) -> str:
    kinds = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "empty"}
    kinds |= {int: "a number", float: "a number"}
    return next((name for kind, name in kinds.items() if isinstance(value, kind)), type(value).__name__)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f"'{value}'" if len(value) <= 60 else f"'{value[:57]}...'"
    return str(value).lower() if isinstance(value, bool | int | float) else _kind(value)
