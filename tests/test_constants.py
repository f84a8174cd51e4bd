"""Numbers that come from papers and codes change on purpose only: `constants.json` has all of them.

These are the defaults of everything that is registered, the presets, and the numbers at module level in the
rooms whose results depend on them. `python -m tests.test_constants` writes the file after an intended change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import json
import math
import pkgutil
import re
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import rbtools
from rbtools import registry
from rbtools.attacks import ATTACKS
from rbtools.certification import CERTIFIERS
from rbtools.corruptions import CORRUPTIONS
from rbtools.measures import MEASURES
from rbtools.papers import evaluation_presets, training_presets
from rbtools.probabilistic import NOISES
from rbtools.search import SEARCHES
from rbtools.trainer.recipe import Recipe
from rbtools.training import METHODS

FILE = Path(__file__).with_name("constants.json")
REGISTRIES = (ATTACKS, CERTIFIERS, CORRUPTIONS, MEASURES, METHODS, NOISES, SEARCHES)
ROOMS = (
    "attacks certification corruptions datasets defences evaluation formats jobs measures probabilistic"
    " scoring search trainer training"
).split()


def plain(value: Any) -> Any:
    """The value as JSON, with dataclasses and tuples taken apart. Raises TypeError for anything else."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {repr(key): plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(type(value))


def _numeric(value: Any) -> bool:
    """Whether the value is a number, or a table that contains one."""
    if isinstance(value, list | dict):
        return any(map(_numeric, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int | float) and not math.isnan(value)


def found() -> dict[str, Any]:
    """What the package has, by the name of a method, preset or module."""
    all_of: dict[str, Any] = {
        "training recipe": {field.name: field.default for field in registry.options(Recipe)}
    }
    for one in REGISTRIES:
        for name in one:
            fields = [field for field in dataclasses.fields(one.load(name)) if field.default is not MISSING]
            defaults = {field.name: plain(field.default) for field in fields}
            severities = {"severities": plain(one.load(name).severities)} if one is CORRUPTIONS else {}
            all_of[f"{one.kind} {name}"] = severities | defaults
    for module in (evaluation_presets, training_presets):
        for name, value in vars(module).items():
            if name.isupper() and not name.startswith("_"):
                all_of[f"{module.__name__}.{name}"] = plain(value)
    for room in ROOMS:
        path = Path(rbtools.__file__).with_name(room)
        for info in pkgutil.iter_modules([str(path)], f"rbtools.{room}."):
            module = importlib.import_module(info.name)
            for name in re.findall(r"^(?=.* = )(\w.*?)(?::.*)? = ", inspect.getsource(module), re.MULTILINE):
                for one in filter(str.isupper, name.split(", ")):
                    with contextlib.suppress(TypeError):  # a table of functions or types
                        if _numeric(value := plain(getattr(module, one))):
                            all_of[f"{info.name}.{one}"] = value
    return json.loads(json.dumps(all_of, default=repr))


def test_constants_are_those_of_the_list() -> None:
    known = json.loads(FILE.read_text("utf-8"))
    now = found()
    assert {name: now[name] for name in now if now[name] != known.get(name)} == {}
    assert now.keys() == known.keys()


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(found().items())]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
