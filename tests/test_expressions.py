"""Regular expressions are linear: a megabyte of the letters that each is made of is searched at once.

Patterns are found, not listed: those in the modules of rbtools, and those given to `re` as constants. The
letters come from the patterns. A quadratic one takes hours for a megabyte, where a linear one takes
milliseconds; the processor time that ends a case is far from both.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import rbtools

try:
    from re import _constants as constants
    from re import _parser as parser
except ImportError:  # Python 3.10
    import sre_constants as constants
    import sre_parse as parser

PACKAGE = Path(rbtools.__file__).parent
SIZE = 1 << 20
SECONDS = 30  # seconds of processor time
METHODS = ("match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")
# Modules that only read texts of rbtools itself: its help, its manual pages, descriptions of packages.
OWN_TEXTS = ("cli/docs/", "cli/option_groups.py", "cli/method_options.py", "cli/versions.py", "errors.py")


def held(value: Any, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    """The patterns in a value of a module."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict) and depth < 3:
        for one in value.values():
            yield from held(one, depth + 1)
    elif isinstance(value, list | tuple) and depth < 3:
        for one in value:
            yield from held(one, depth + 1)


@cache
def sources() -> dict[str, str]:
    names = {path: str(path.relative_to(PACKAGE)) for path in sorted(PACKAGE.rglob("*.py"))}
    return {name: path.read_text("utf-8") for path, name in names.items() if not name.startswith(OWN_TEXTS)}


def used(name: str) -> list[str]:
    """How patterns of this name are used; both ends where that is not said."""
    everything = "\n".join(sources().values())
    methods = set(re.findall(rf"\b{re.escape(name)}\.({'|'.join(METHODS)})\(", everything))
    return sorted(methods) or ["match", "fullmatch"]


@cache
def patterns() -> dict[tuple[str, str], re.Pattern[Any]]:
    """(where, method) -> pattern."""
    found = {}
    for module in pkgutil.walk_packages(rbtools.__path__, "rbtools."):
        file = module.name.removeprefix("rbtools.").replace(".", "/")
        if f"{file}.py" not in sources() and f"{file}/__init__.py" not in sources():
            continue
        try:
            values = vars(importlib.import_module(module.name))
        except ImportError:  # the package that the module wraps is not installed
            continue
        for name, value in values.items():
            for number, pattern in enumerate(held(value)):
                for method in used(name):
                    found[f"{file}:{name}:{number}", method] = pattern
    for name, text in sources().items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"re.{one}" for one in METHODS}:
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    words = [*node.args[2:], *(word.value for word in node.keywords if word.arg == "flags")]
                    flags = set(re.findall(r"re\.([A-Z]+)", " ".join(map(ast.unparse, words))))
                    pattern = re.compile(first.value, sum(int(re.RegexFlag[flag]) for flag in flags))
                    found[f"{name}:{node.lineno}", ast.unparse(node.func)[3:]] = pattern
    return found


def samples(tree: Any) -> list[str]:
    """Texts of the letters of a pattern, in their order; one for each branch."""
    texts = [""]
    for code, value in tree:
        more = [""]
        if code in (constants.LITERAL,):
            more = [chr(value)]
        elif code is constants.NOT_LITERAL or code is constants.ANY:
            more = ["x"]
        elif code is constants.IN:
            more = [letter(value)]
        elif code in (constants.MAX_REPEAT, constants.MIN_REPEAT, *POSSESSIVE):
            more = samples(value[2])
        elif code is constants.SUBPATTERN:
            more = samples(value[3])
        elif code is constants.BRANCH:
            more = [text for branch in value[1] for text in samples(branch)]
        texts = [before + after for before in texts[:4] for after in more[:6]]
    return texts[:12]


POSSESSIVE = [getattr(constants, name) for name in ("POSSESSIVE_REPEAT",) if hasattr(constants, name)]
CLASSES = {"CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " ", "CATEGORY_WORD": "a"}


def letter(items: list[Any]) -> str:
    """A letter that a class admits, or for a class of what is not admitted, one that is not named."""
    named = [item for item in items if item[0] is not constants.NEGATE]
    if len(named) < len(items):
        return "x"
    code, value = named[0]
    if code is constants.CATEGORY:
        return CLASSES.get(str(value), "x")
    return chr(value[0] if code is constants.RANGE else value)


def worst(pattern: re.Pattern[Any]) -> Iterator[str]:
    """Texts of a megabyte: what the pattern begins with, then one or two of its letters without end."""
    texts: dict[tuple[str, str], None] = {}
    for text in samples(parser.parse(pattern.pattern, pattern.flags)):
        texts["", text or "x"] = None
        for place in range(len(text)):
            for width in (1, 2):
                repeated = text[place : place + width]
                texts["" if place < 2 else text[:place], repeated] = None
                texts["", repeated] = None
    for start, repeated in list(texts)[:60]:
        yield start + repeated * (SIZE // len(repeated)) + "\0"


def late(number: int, frame: Any) -> None:
    raise TimeoutError


PARTS = 8  # of the patterns: finding them takes seconds, so that it is left to the run


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_megabyte_of_the_letters_of_a_pattern_is_searched_at_once(part: int) -> None:
    for where, method in sorted(patterns())[part::PARTS]:
        searched(patterns()[where, method], method)


def searched(pattern: re.Pattern[Any], method: str) -> None:
    former = signal.signal(signal.SIGPROF, late)
    text = ""
    try:
        for text in worst(pattern):
            given: Any = text if isinstance(pattern.pattern, str) else text.encode("utf-8", "replace")
            search = getattr(pattern, method)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            result = search(type(given)(), given) if method in ("sub", "subn") else search(given)
            if method == "finditer":
                list(result)
    except TimeoutError:
        pytest.fail(f"{pattern.pattern!r} takes long for {text[:40]!r}...")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)
