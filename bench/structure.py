"""Figures of how the package is built: one JSON line each, for bench/RESULTS.md.

python bench/structure.py
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rbtools"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SHARED_NAMES = {"base", "__init__", "presets"}  # modules of several rooms may be called so
RAY = re.compile(r"(?<![a-z])ray(?![a-z])", re.I)
TREES = {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
Figures = Iterator[tuple[str, Any]]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path) for path in TREES}


def functions(tree: ast.AST) -> list[Any]:
    return [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]


def own(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of the functions in it."""
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, FUNCTIONS):
            yield from own(node)


def _is_any(annotation: ast.expr | None) -> bool:
    return annotation is not None and ast.unparse(annotation) in ("Any", "typing.Any")


def sizes() -> Figures:
    texts = {path: path.read_text("utf-8") for path in TREES}
    yield "Python files", len(texts)
    yield "lines", sum(text.count("\n") for text in texts.values())
    yield "the word found", sum(len(re.findall(r"\bfound\b", text)) for text in texts.values())
    yield "files that mention ray", sum(bool(RAY.search(text)) for text in texts.values())


def parameters() -> Figures:
    typed_any: Counter[str] = Counter()
    local_found = inner_imports = asked = 0
    for path, tree in TREES.items():
        room = path.relative_to(PACKAGE).parts[0]
        for function in functions(tree):
            arguments = function.args
            given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            given += [some for some in (arguments.vararg, arguments.kwarg) if some is not None]
            typed_any[room] += sum(_is_any(a.annotation) for a in given)
            nodes = list(own(function))
            names = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            local_found += "found" in names | {a.arg for a in given}
            inner_imports += sum(isinstance(node, (ast.Import, ast.ImportFrom)) for node in nodes)
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        asked += sum(isinstance(call, ast.Name) and call.id in ("getattr", "hasattr") for call in calls)
    yield "functions with found as a local", local_found
    yield "imports inside functions", inner_imports
    yield "parameters typed plain Any", typed_any.total()
    yield "parameters typed plain Any in cli and commands", typed_any["cli"] + typed_any["commands"]
    yield "calls of getattr and hasattr", asked


def names() -> Figures:
    classes = Counter(
        node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    modules = Counter(path.stem for path in TREES if path.stem not in SHARED_NAMES)
    yield "class names that occur twice or more", sorted(n for n, times in classes.items() if times > 1)
    yield "module names that occur twice or more", sorted(n for n, times in modules.items() if times > 1)


def imported(path: Path) -> set[str]:
    """The modules of the package that a module imports, inside functions too, but for types alone."""
    skipped = {
        inner
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    targets: set[str] = set()
    for node in ast.walk(TREES[path]):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            targets |= {name if name in MODULES else node.module for name in inner}
    return targets & MODULES


def cycles() -> Figures:
    """Groups of modules of one room that import each other, directly or by way of others of the room."""
    edges = {
        module: {name for name in imported(path) if name.split(".")[:2] == module.split(".")[:2]} - {module}
        for path, module in ((path, module_of(path)) for path in TREES)
    }

    def reached(start: str) -> set[str]:
        seen, todo = set(), [start]
        while todo:
            for name in edges[todo.pop()] - seen:
                seen.add(name)
                todo.append(name)
        return seen

    reach = {module: reached(module) for module in edges}
    groups = {
        frozenset(name for name in reach[module] if module in reach[name])
        for module in edges
        if module in reach[module]
    }
    yield "import cycles within a room", sorted(sorted(group) for group in groups)


def first_gradient() -> Figures:
    """From the main function of rb-attack to the first gradient of PGD: frames of rbtools on the stack."""
    import torch
    from click.testing import CliRunner
    from snapshots import main_of

    stack: list[str] = []

    def watched(compute: Any) -> Any:
        def first(*args: Any, **options: Any) -> Any:
            frame = None if stack else sys._getframe(1)
            while frame is not None:
                if frame.f_code.co_filename.startswith(str(PACKAGE)):
                    stack.append(frame.f_code.co_filename)
                frame = frame.f_back
            return compute(*args, **options)

        return first

    with tempfile.TemporaryDirectory() as folder:
        os.environ["RB_STORE"] = str(Path(folder, "store"))
        stream = ""
        for command in (
            "arch --index 13714 --cells 1 --channels 4 --dataset digits",
            "train --epochs 0",
            "attack pgd --steps 1 --n 20",
        ):
            tool, *words = command.split()
            if tool == "attack":
                torch.autograd.grad = watched(torch.autograd.grad)
                torch.autograd.backward = watched(torch.autograd.backward)
            result = CliRunner().invoke(main_of(tool), words, input=stream)
            if result.exit_code:
                raise SystemExit(f"rb-{command}: {result.stderr}")
            stream = result.stdout
    yield "own frames from rb-attack's main to the first gradient", len(stack)
    yield "files of these frames", len(set(stack))


def main() -> int:
    sys.path.insert(0, str(ROOT))
    for part in (sizes, parameters, names, cycles, first_gradient):
        for name, value in part():
            figure = {"figure": name, "value": len(value) if isinstance(value, list) else value}
            print(json.dumps(figure | ({"which": value} if isinstance(value, list) else {})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
