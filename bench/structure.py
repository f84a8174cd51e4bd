"""How much there is, one JSON line each.

    python bench/structure.py [--test-seconds 595] [--tree FOLDER]

Lines and files of rbtools/, tests/, bench/ (Python) and each room of rbtools/; private functions of rbtools/
that one place uses; parameters typed plain Any; import cycles within a room; long options of a command by
--help-all; frames and files on the way to the first gradient (bench/stack.py).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
COMMANDS = (
    "arch,train,attack pgd,attack aa,certify smooth,corrupt all,pr,ge attack pgd,measure params,score,rank"
    ",corr,search random,plot scatter,convert csv,store ls,verify"
).split(",")
Figures = Iterator[tuple[str, Any]]


def sizes(tree: Path) -> Figures:
    rooms = sorted(f"rbtools/{path.name}" for path in (tree / "rbtools").iterdir() if path.is_dir())
    for folder in ("rbtools", "tests", "bench", *rooms):
        texts = [path.read_text("utf-8") for path in (tree / folder).rglob("*.py")]
        yield f"lines of {folder}/", sum(text.count("\n") for text in texts)
        yield f"files of {folder}/", len(texts)


def functions(trees: dict[Path, ast.Module]) -> Figures:
    """Used once: the name occurs twice in its file, where it is defined and once more."""
    once = plain_any = 0
    for path, tree in trees.items():
        words = Counter(re.findall(r"\w+", path.read_text("utf-8")))
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                once += words[node.name] == 2 and re.match("_[^_]", node.name) is not None
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                plain_any += sum(ast.unparse(a.annotation) == "Any" for a in arguments if a.annotation)
    yield "private functions used once", once
    yield "parameters typed plain Any", plain_any


def cycles(trees: dict[Path, ast.Module], tree: Path) -> Figures:
    """Groups of modules of one room that import each other; imports for types alone do not count."""
    names = {
        ".".join(path.relative_to(tree).with_suffix("").parts).removesuffix(".__init__"): path
        for path in trees
    }
    edges: dict[str, set[str]] = {}
    for module, path in names.items():
        typed = [
            n
            for n in ast.walk(trees[path])
            if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)
        ]
        skipped = {inner for node in typed for inner in ast.walk(node)}
        imported: set[str] = set()
        for node in ast.walk(trees[path]):
            if isinstance(node, ast.ImportFrom) and node.module and node not in skipped:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= {name if name in names else node.module for name in inner}
        room = module.split(".")[:2]
        edges[module] = {name for name in imported & names.keys() if name.split(".")[:2] == room} - {module}

    def reached(start: str) -> set[str]:
        seen, todo = set(), [start]
        while todo:
            new = edges[todo.pop()] - seen
            seen |= new
            todo += new
        return seen

    reach = {module: reached(module) for module in edges}
    groups = {frozenset(n for n in reach[m] if m in reach[n]) for m in edges if m in reach[m]}
    yield "import cycles within a room", len(groups)


def run(tree: Path, *arguments: str) -> str:
    settings = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, *arguments], env=settings, check=True, capture_output=True, text=True
    ).stdout


def options(tree: Path) -> Figures:
    for command in COMMANDS:
        tool, *words = command.split()
        start = f"from rbtools.cli import tools; tools.tool({tool!r}).command({[*words, '--help-all']!r})"
        listed = re.findall(r"^ +(?:-\w, *)?(--[a-z][\w-]*)", run(tree, "-c", start), re.MULTILINE)
        yield f"long options of rb-{command}", len(set(listed))


def stack(tree: Path) -> Figures:
    for line in run(tree, str(Path(__file__).with_name("stack.py"))).splitlines():
        figure = json.loads(line)
        for name in ("frames", "files", "entered", "switches"):
            yield f"{name} to the first gradient, {figure['way']}", figure[name]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, default=HERE, help="the checkout to look at")
    parser.add_argument(
        "--test-seconds", type=float, help="of `make test`, measured before; printed with the others"
    )
    chosen = parser.parse_args()
    tree = chosen.tree.resolve()
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted((tree / "rbtools").rglob("*.py"))}
    for part in (sizes(tree), functions(trees), cycles(trees, tree), options(tree), stack(tree)):
        for name, value in part:
            print(json.dumps({"figure": name, "value": value}), flush=True)
    if chosen.test_seconds is not None:
        print(json.dumps({"figure": "seconds of make test", "value": chosen.test_seconds}))


if __name__ == "__main__":
    main()
