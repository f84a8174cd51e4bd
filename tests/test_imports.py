"""The import table: which room of the package may import which, and what must stay light.

It is read from the sources, so imports inside functions count too: an edge that is only taken at run
time is an edge all the same. Only `if TYPE_CHECKING:` imports of third-party packages are free, and of
`rng`: a method may name the type of the draws that it gets, and makes none.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from rbtools.registry import rooms

PACKAGE = Path(__file__).resolve().parents[1] / "rbtools"

# What everybody may import, and the version.
COMMON = set("errors lazy registry units plain_files proportions check_field check_input graphs".split())

_LIBRARIES = set(
    "spaces models datasets threats attacks corruptions defences certification training"
    " probabilistic measures".split()
)
_NUMBERS = {"records", "scoring", "store", "rng"}

# In the order of the floors, the lowest first.
TABLE: dict[str, set[str]] = {
    "rng": set(),
    "records": set(),
    "spaces": {"records"},
    "models": {"spaces"},
    "threats": {"records", "rng"},
    "probabilistic": {"rng", "threats"},
    "attacks": {"probabilistic", "rng", "threats"},
    "corruptions": {"probabilistic", "rng"},
    "defences": {"corruptions"},
    "certification": {"probabilistic", "rng"},
    "training": {"attacks", "corruptions", "probabilistic", "rng", "threats"},
    "measures": {"rng", "attacks", "models", "threats"},
    "scoring": {"records", "probabilistic"},
    "store": {"records"},
    "datasets": {"store"},
    "execution": {"records", "store"},
    "queries": {"execution", "models", "store"},
    "inputs": {"execution", "queries", *_LIBRARIES, *_NUMBERS},
    "trainer": {"execution", "inputs", *_LIBRARIES, *_NUMBERS},
    "evaluation": {"execution", "inputs", *_LIBRARIES, *_NUMBERS},
    "jobs": {"execution", "inputs", "queries", "trainer", "evaluation", *_LIBRARIES, *_NUMBERS},
    "formats": {"records", "spaces"},
}
# Rooms that register themselves (`entry_points.txt`): they import the others, and of each other these.
OUTSIDE: dict[str, set[str]] = {
    "zoo": set(),
    "search": set(),
    "plots": set(),
    "pages": {"plots"},
    "papers": {"pages", "plots", "search", "zoo"},
}
# Never, not even inside a function: room -> packages.
NEVER = {
    "records": {"torch", "torchvision", "click", "rich"},
    "spaces": {"torch", "torchvision", "click", "rich"},
    "scoring": {"torch", "torchvision", "click", "rich"},
    "store": {"torch", "torchvision", "click", "rich"},
    "training": {"click", "rich"},
    "execution": {"click", "rich"},
    "trainer": {"click", "rich"},
    "evaluation": {"click", "rich"},
}

# Packages that must not load with `--help`, nor with a look-up in the store.
HEAVY = set("torch torchvision numpy scipy sklearn pyautoattack matplotlib pandas pyarrow".split())
LIGHT_ROOMS = ("cli", "commands", "records", "spaces", "scoring", "store", "plots")

# What `rbtools.lazy` imports at its first use -> its package.
LAZY = dict.fromkeys(("F", "Tensor", "distributed", "nn", "torch"), "torch") | {
    "np": "numpy",
    "special": "scipy",
}

TORCHVISION_DOOR = "rbtools.models.torchvision_import"


class Import(NamedTuple):
    target: str  # "rbtools.attacks.pgd", "torch.nn"
    line: int
    for_types: bool  # under `if TYPE_CHECKING:`


@cache
def imports(source: str, module: str, package: bool = False) -> tuple[Import, ...]:
    """Every import of a module's source, relative ones resolved, `from a import b` as "a.b"."""
    here = module.split(".") if package else module.split(".")[:-1]
    return tuple(_walk(ast.parse(source), here, False))


def _walk(node: ast.AST, here: list[str], for_types: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        yield from (Import(name, child.lineno, for_types) for name in _names(child, here))
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            yield from _walk(ast.Module(child.body, []), here, True)
            yield from _walk(ast.Module(child.orelse, []), here, for_types)
        else:
            yield from _walk(child, here, for_types)


def _names(node: ast.AST, here: list[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = here[: len(here) - node.level + 1] if node.level else []
        base = ".".join([*above, node.module] if node.module else above)
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if function in ("import_module", "__import__"):
            yield str(node.args[0].value)


def room_of(name: str) -> str:
    """'attacks' for "rbtools.attacks.pgd"; '' for the package itself."""
    return name.split(".")[1] if name.count(".") else ""


def violations(source: str, module: str, package: bool = False) -> list[str]:
    """One finished line for each import that the table forbids."""
    room = room_of(module)
    found = []
    for item in imports(source, module, package):
        top, other = item.target.split(".")[0], room_of(item.target)
        lazily = LAZY.get(item.target.removeprefix("rbtools.lazy."))
        if item.for_types and (top != "rbtools" or other == "rng"):
            continue
        if other == "lazy" and lazily:
            complaint = _third_party(room, lazily, module)
        else:
            complaint = _between_rooms(room, other) if top == "rbtools" else _third_party(room, top, module)
        if complaint:
            found.append(f"{module}:{item.line} imports {item.target}: {complaint}")
    return found


def _between_rooms(room: str, other: str) -> str | None:
    # The hook waits for an import of torchvision, and imports nothing itself.
    if room == other or other in COMMON | {"torchvision_hook"} or not other or other.startswith("__"):
        return None
    if room in OUTSIDE:
        allowed = other not in OUTSIDE or other in OUTSIDE[room]
        return (
            None if allowed else f"{room} may import of the rooms outside {sorted(OUTSIDE[room]) or 'none'}"
        )
    if other in OUTSIDE:
        return "nothing inside imports a room outside"
    if room in ("cli", "commands"):
        return "nothing imports commands" if other == "commands" else None
    if other in ("cli", "commands"):
        return None if room == "api" else "only api and commands import cli"
    if room in COMMON:
        return f"{room} is below every room"
    if room not in TABLE:
        return None if room in TOP_LEVEL else f"{room} is not a room of the table"
    if other not in TABLE[room]:
        return f"{room} may import {', '.join(sorted(TABLE[room])) or 'no other room'}"
    return None


# Modules beside the rooms that may use them all: the public functions, and what starts with Python itself.
TOP_LEVEL = {"", "api", "torchvision_hook"}


def _third_party(room: str, top: str, module: str) -> str | None:
    if top in NEVER.get(room, ()):
        return f"{room} never imports {top}"
    if top in ("click", "rich") and room not in ("cli", "papers"):
        return f"only cli and papers import {top}"
    if top == "torchvision" and module != TORCHVISION_DOOR:
        return f"torchvision comes through {TORCHVISION_DOOR}"
    return None


def modules() -> dict[str, Path]:
    """Module name -> file, for all of rbtools."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_what_its_room_may(module: str) -> None:
    path = MODULES[module]
    assert violations(path.read_text("utf-8"), module, path.name == "__init__.py") == []


def registered() -> list[str]:
    """Modules named in a registry: as "module:Class" text in a room's __init__, or in its entry points."""
    texts = (path.read_text("utf-8") for path in MODULES.values() if path.name == "__init__.py")
    found = {name for text in texts for name in re.findall(r'"(rbtools\.[\w.]+):\w+"', text)}
    return sorted(
        found | {target.partition(":")[0] for group in rooms().values() for target in group.values()}
    )


# Networks are registered too, but whoever looks one up is about to build it.
LIGHT = sorted(
    {
        "rbtools.datasets",  # describe() tells shapes and classes without torch
        *(name for name in registered() if room_of(name) not in ("models", "zoo")),
        *(name for name in MODULES if room_of(name) in LIGHT_ROOMS),
    }
)


def test_light_modules_use_nothing_heavy_when_they_are_imported() -> None:
    """What comes through `rbtools.lazy` must not be used before a function runs."""
    lines = [f"import {module}" for module in LIGHT]
    lines += ["import sys", f"print(*({HEAVY!r} & sys.modules.keys()))"]
    output = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    assert output.stdout.split() == []


@pytest.mark.parametrize("room", sorted(set(map(room_of, MODULES)) - OUTSIDE.keys() - {"api"}))
def test_nothing_inside_names_a_room_outside(room: str) -> None:
    """Not in a text either, by which a module could be imported."""
    named = re.compile(rf"\brbtools[./]({'|'.join(OUTSIDE)})\b")
    inside = (path for module, path in MODULES.items() if room_of(module) == room)
    assert [str(path) for path in inside if named.search(path.read_text("utf-8"))] == []


SHARED_NAMES = {"base", "presets", "__main__"}  # modules of several rooms are called so


def classes() -> dict[str, list[str]]:
    """Class name -> the modules that have it; protocols, which say what others have, aside."""
    places: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and "Protocol" not in map(ast.unparse, node.bases):
                places.setdefault(node.name, []).append(module)
    return places


@pytest.mark.slow
def test_a_class_name_and_a_module_name_stand_once() -> None:
    assert {name: where for name, where in classes().items() if len(where) > 1} == {}
    places: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        if path.stem not in SHARED_NAMES | {"__init__"}:
            places.setdefault(path.stem, []).append(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_whether_broken_examples_leave_at_each_step_is_known_to_one_file() -> None:
    """Attacks have no branch for the CPU and one for the GPU."""
    knowing = [module for module, path in MODULES.items() if "each_step" in path.read_text("utf-8")]
    assert knowing == ["rbtools.attacks.active_examples"]
