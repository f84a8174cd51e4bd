"""Options whose value has parts: VALUE[:KEY=V[,KEY=V]], as in `--schedule step:milestones=75/90,decay=0.1`.

A part reaches the command as an option of its own, which is hidden: typed by itself it is deprecated:
accepted for one release, with a notice. The option that it is a part of lists its key in the help.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

import click

from rbtools.errors import UsageError, near

UNTIL = "0.2"  # the release that no longer accepts deprecated options
OLD_WORDS = "rbtools.old-words"  # in click's meta: notices about deprecated options
_FILLED = "rbtools.filled"  # in click's meta: parts whose value was in their option's value
_BARE = re.compile(r"(?:^|:)([a-z][a-z-]*)=")


class Part(click.Option):
    """A hidden option that is a part of another one.

    part_of: OPTION:KEY, or OPTION:ITEM:KEY for a part that belongs to one item of a list; OPTION alone where
    the option's `split` gives the value. now: the replacement, for the notice. gives: the value of OPTION
    that a deprecated flag means; the flag then takes no value.
    """

    def __init__(
        self, *args: object, part_of: str, now: str = "", gives: str | None = None, **settings: object
    ) -> None:
        if gives is not None:
            settings |= {"is_flag": True, "is_eager": True, "expose_value": False}
        super().__init__(*args, **settings | {"hidden": True})  # type: ignore[arg-type]
        self.whole, *words = part_of.replace("_", "-").split(":")
        self.key, self.item = words[-1] if words else "", words[0] if words else ""
        self.now, self.gives = now or (f"--{self.whole} {gives}" if gives else ""), gives

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        if self.name in opts and self.name not in ctx.meta.get(_FILLED, ()):
            flag = (
                self.secondary_opts[0] if opts[self.name] is False and self.secondary_opts else self.opts[0]
            )
            self.notice(ctx, flag)
            if self.gives is not None:
                self._replace(ctx, cast(dict[str, Any], opts), flag)
        return super().handle_parse_result(ctx, opts, args)

    def _replace(self, ctx: click.Context, opts: dict[str, Any], flag: str) -> None:
        """Set the value of the whole option; two deprecated flags give both values."""
        name, given = self.whole.replace("-", "_"), ctx.meta.setdefault(_FILLED, set())
        if name in opts and name not in given:
            raise UsageError(
                f"Both --{self.whole} {opts[name]} and {flag} are given. Leave out one of the two."
            )
        opts[name] = f"{opts[name]},{self.gives}" if name in opts else self.gives
        given.add(name)

    def notice(self, ctx: click.Context, word: str) -> None:
        """Print, when the command runs, the replacement of a deprecated option."""
        notices: dict[str, None] = ctx.meta.setdefault(OLD_WORDS, {})
        notices[f"{word} is now {self.now or self._typed(ctx)}; it is accepted until {UNTIL}."] = None

    def _typed(self, ctx: click.Context) -> str:
        if not self.key:
            params = ctx.command.get_params(ctx)
            whole = next(param for param in params if f"--{self.whole}" in param.opts)
            return f"--{self.whole} {whole.make_metavar(ctx)}"
        value = "" if self.is_flag else f"={self.metavar or 'V'}"
        if self.item != self.key:
            return f"--{self.whole} {self.item}:{self.key}{value}"
        return f"--{self.whole} VALUE:{self.key}{value}"

    def get_error_hint(self, ctx: click.Context | None) -> str:
        if ctx is not None and self.name in ctx.meta.get(_FILLED, ()):
            return f"'--{self.whole}'" + (f" ({self.key})" if self.key else "")
        return super().get_error_hint(ctx)

    def described(self, ctx: click.Context) -> str:
        """The key, its value and its meaning, for the help of the whole option."""
        record = click.Option([f"--{self.key}"], metavar=self.metavar, type=self.type, is_flag=self.is_flag)
        value = "" if self.is_flag else f"={record.make_metavar(ctx)}"
        item = f"{self.item}:" if self.item != self.key else ""
        text, _, default = (self.help or "").partition("  [default: ")
        # click has an object of its own for "no default"
        own = self.default if isinstance(self.default, (str, int, float)) else ""
        default = default.rstrip("]") or str(own or "")
        return f"{item}{self.key}{value}: {text.rstrip('.')}" + (
            f" [{default}]" if default and not self.is_flag else ""
        )


class Compound(click.Option):
    """An option whose value has parts.

    split: returns the values of the option and of its parts, by name, from the text before the keys.
    free: whether VALUE may have KEY=V of its own.
    """

    def __init__(
        self,
        *args: object,
        split: Callable[[str], dict[str, Any]] | None = None,
        free: bool = False,
        **settings: object,
    ) -> None:
        super().__init__(*args, **settings | {"is_eager": True})  # type: ignore[arg-type]  # before its parts
        self.split, self.free = split, free
        self.word = next(flag[2:] for flag in self.opts if flag.startswith("--"))

    def parts(self, params: list[click.Parameter]) -> list[Part]:
        """Its parts among the parameters of a command."""
        return [param for param in params if isinstance(param, Part) and param.whole == self.word]

    def divided(self, text: str, parts: list[Part]) -> dict[str, Any]:
        """The values in a text, by the names of the option and of its parts. Raises UsageError."""
        value, keys = self._keys(text, {part.key: part for part in parts if part.key})
        values: dict[str, Any] = {}
        if value:
            values = {str(self.name): value} if self.split is None else self.split(value)
        return values | keys

    def _keys(self, text: str, parts: dict[str, Part]) -> tuple[str, dict[str, Any]]:
        """The text before the keys, and the values of the keys by the names of their parts."""
        if not parts:
            return text, {}
        short = {part.item: part for part in reversed(parts.values())}
        ends = [f"{key}(?:=|$)" if part.is_flag else f"{key}=" for key, part in parts.items()]
        pattern = re.compile(rf"(?:^|:)({'|'.join(ends)})")
        values, keys = [], dict[str, Any]()
        for piece in text.split(","):
            head, colon, tail = piece.partition(":")
            if match := pattern.search(piece):
                values += [piece[: match.start()]] if match.start() else []
                part, given = parts[match[1].removesuffix("=")], piece[match.end() :]
                keys[str(part.name)] = (given or True) if part.is_flag else self._listed(part, given)
            elif colon and self.metavar == "LIST" and head in short:
                values += [head] if head not in parts else []
                keys[str(short[head].name)] = self._listed(short[head], tail)
            elif not self.free and (unknown := _BARE.search(piece)):
                raise UsageError(
                    f"--{self.word} has no '{unknown[1]}'.{near(unknown[1], parts)} It has:"
                    f" {', '.join(parts)}."
                )
            elif keys and self.metavar != "LIST" and not self.free:
                raise UsageError(f"--{self.word}: '{piece}' is no KEY=V. Lists have slashes: KEY=75/90.")
            else:
                values.append(piece)
        return ",".join(values), keys

    def _listed(self, part: Part, given: str) -> str:
        return given.replace("/", ",") if part.metavar == "LIST" else given

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        value, source = self.consume_value(ctx, opts)
        if isinstance(value, str) and source < click.core.ParameterSource.DEFAULT_MAP:
            self._fill(ctx, cast(dict[str, Any], opts), value)
        return super().handle_parse_result(ctx, opts, args)

    def _fill(self, ctx: click.Context, opts: dict[str, Any], text: str) -> None:
        """Set the values of its parts, in place of those from a file."""
        parts = self.parts(ctx.command.get_params(ctx))
        filled = ctx.meta.setdefault(_FILLED, set())
        for part in parts:
            if part.name in filled and ctx.default_map:
                cast(dict[str, Any], ctx.default_map).pop(str(part.name), None)
        values = self.divided(text, parts)
        for part in parts:
            if part.name in values and part.name in opts:
                raise UsageError(
                    f"Both --{self.word} {text} and {part.opts[0]} are given. Leave out one of the two."
                )
        opts.pop(str(self.name), None)
        opts.update(values)
        filled.update(values)

    def from_file(self, ctx: click.Context, text: str, params: list[click.Parameter]) -> dict[str, Any]:
        """The values in a text of a configuration, as `divided` has them."""
        values = self.divided(text, self.parts(params))
        ctx.meta.setdefault(_FILLED, set()).update(values)
        return values

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        parts = [part for part in self.parts(ctx.command.get_params(ctx)) if part.key]
        if record is None or not parts:
            return record
        text, bracket, extra = record[1].partition("  [")
        keys = "; ".join(part.described(ctx) for part in parts)
        return record[0], f"{text} Keys: {keys}.{bracket}{extra}"


def old_flag(flag: str, whole: str, gives: str) -> Callable[[Any], Any]:
    """A deprecated flag that stands for a value of another option."""
    return click.option(flag, cls=Part, part_of=whole, gives=gives)


class Switch(click.Option):
    """A flag and its opposite, of which help shows the one that changes the default."""

    def __init__(self, *args: object, on: bool, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self.on = on

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return record and ((self.secondary_opts if self.on else self.opts)[0], record[1].partition("  [")[0])


def option_class(part_of: str | None, is_whole: bool) -> dict[str, Any]:
    """The class of an option, as settings of click.Option: a part, a whole, or neither."""
    if part_of is not None:
        return {"cls": Part, "part_of": part_of}
    return {"cls": Compound} if is_whole else {}
