"""Words of a command line to paste into a shell, made from untrusted values. Values are quoted, only options
of the tools are used, and values with control characters are refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from functools import cache
from typing import TypeGuard

from rbtools import registry

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Unsayable(Exception):
    """A value that must not go into a command line."""


@cache
def own_options(method: type) -> tuple[str, ...]:
    """The names, as records have them, of the options of a registered class."""
    return tuple(registry.public_name(field) for field in registry.options(method))


@cache
def distances(method: type | None) -> frozenset[str]:
    """The options of a registered class that are distances in the unit of --eps."""
    fields = () if method is None else registry.options(method)
    return frozenset(["eps", *(registry.public_name(f) for f in fields if f.metadata["unit"] == "eps")])


def word(value: object) -> str:
    """A value as the shell takes it. Raises Unsayable for control characters and what is no plain value."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Unsayable("a setting in the record is no number and no text.")
    text = value if isinstance(value, str) else number(value)
    if CONTROL.search(text):
        raise Unsayable("a name in the record holds control characters.")
    return shlex.quote(text)


def number(value: float) -> str:
    """The shortest text that reads as this number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def distance(value: float, norm: str = "linf") -> str:
    """A distance of [0, 1] as on the command line: L-infinity in 1/255, others unchanged.

    One below 0.1/255 is written so, since the tools refuse 0.031 for having two readings.
    """
    if norm != "linf":
        return number(value)
    short = f"{value * 255:g}"
    text = short if float(short) / 255 == value else number(value * 255)
    return f"{text}/255" if 0 < float(text) < 0.1 else text


def radius(value: float) -> str:
    """A radius on [0, 1]; as 8/255 if it is exactly that and has no shorter decimal form."""
    short = number(value)
    return f"{round(value * 255)}/255" if len(short) > 7 and round(value * 255) / 255 == value else short


def option(name: str, value: object, norm: str = "linf", of: type | None = None) -> list[str]:
    """`--step-size 2`, `--nesterov`, nothing for None; `--name=-x` where the value looks like an option.
    of: the registered class whose option it is.
    """
    flag = "--" + name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, list):
        value = ",".join(number(item) if is_number(item) else str(item) for item in value) or "none"
    text = word(distance(value, norm) if name in distances(of) and is_number(value) else value)
    return [f"{flag}={text}"] if text.startswith(("-", "'-")) else [flag, text]


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def joined(*parts: str | Iterable[str]) -> str:
    words: list[str] = []
    for part in parts:
        words += [part] if isinstance(part, str) else part
    return " ".join(words)
