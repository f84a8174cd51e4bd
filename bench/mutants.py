"""How many small faults the tests notice: random changes of one operator, constant or condition in rbtools/.

    python bench/mutants.py --map MAP.json --done DONE.jsonl [--tree FOLDER] [--sample 200] [--seed 0]

First every test (`--tests` narrows it) runs once in a copy of the tree that writes which test runs which of
the sampled statements (MAP, made if absent). Then each mutant runs against the tests that run its statement,
at most 40 of them, those of its room first; what is computed at import is run by tests of the functions that
use it. A JSON line a mutant goes to stdout and to DONE, whose mutants are not judged again. The tests that
noticed something then run on the unchanged copy: where one fails, its verdicts leave DONE (run again to judge
them anew).

A mutant that no test runs survives; one that runs too long is noticed. Some survivors are equivalent (`<` for
`<=` of sides that are never equal) or change only speed: nothing here tells them from a missing test.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise, zip_longest
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

MOST_TESTS, MOST_SECONDS = 40, 60.0  # of the tests that judge one mutant, as they took when the map was made
SWAPS = dict(
    pair.split(":")
    for pair in "<:<= <=:< >:>= >=:> ==:!= !=:== in:not_in not_in:in is:is_not is_not:is and:or or:and "
    "+:- -:+ *:/ /:* //:* %:* **:* @:* &:| |:&".split()
)
OPERATOR = re.compile(rb"<<|>>|not\s+in|is\s+not|<=|>=|==|!=|//|\*\*|\b(?:in|is|and|or)\b|[-<>+*/%@&|]")
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
PROBE = """import os
said = set()
def hit(*names):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    for name in {*names} - {name for name, of in said if of == test}:
        said.add((name, test))
        with open(os.environ["MUTANTS_HITS"], "a") as file:
            file.write(f"{name}\\t{test}\\n")
"""


class Mutant(NamedTuple):
    """Bytes `start` to `end` of a file become `text`; `at` is where in the syntax tree."""

    file: str
    start: int
    end: int
    text: str
    at: Any

    @property
    def name(self) -> str:
        return f"{self.file}:{self.at.lineno}:{self.start}-{self.end}:{self.text}"


class Module:
    """A source file, the changes that can be made in it, and where its statements begin."""

    def __init__(self, tree: Path, file: str) -> None:
        self.file, self.source = file, (tree / file).read_bytes()
        self.begins = [0]
        for line in self.source.splitlines(keepends=True):
            self.begins.append(self.begins[-1] + len(line))
        self.root = ast.parse(self.source)
        self.nodes = list(ast.walk(self.root))
        self.parent = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    def span(self, node: Any) -> tuple[int, int]:
        first, last = self.begins[node.lineno - 1], self.begins[node.end_lineno - 1]
        return first + node.col_offset, last + node.end_col_offset

    def above(self, node: ast.AST) -> Iterator[tuple[Any, Any]]:
        """The node and what it stands in, then that and what it stands in ..."""
        while node in self.parent:
            yield node, self.parent[node]
            node = self.parent[node]

    def counts(self, node: ast.AST) -> bool:
        """Whether it is no part of a type, text, assertion, version or what only a type checker runs."""
        for child, parent in self.above(node):
            if child is getattr(parent, "annotation", None) or child is getattr(parent, "returns", None):
                return False
            text = ast.unparse(parent) if isinstance(parent, (ast.If, ast.Assign)) else ""
            left_out = re.match("if TYPE_CHECKING|if __name__|__version__", text)
            if left_out or isinstance(parent, (ast.JoinedStr, ast.Assert)):
                return False
        return True

    def places(self) -> Iterator[list[Mutant]]:
        """Per place, the changes that it allows."""
        for node in self.nodes:
            for start, end, *texts in self.changes(node) if self.counts(node) else ():
                at = node.target if isinstance(node, ast.comprehension) else node  # what has a place
                yield [Mutant(self.file, start, end, text, at) for text in texts]

    def changes(self, node: Any) -> Iterator[tuple[Any, ...]]:
        """Start, end and new texts of each change in a node itself."""
        operands: list[Any] = []
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.BoolOp):
            operands = node.values
        elif isinstance(node, ast.AugAssign):
            operands = [node.target, node.value]
        elif isinstance(node, ast.BinOp) and not (isinstance(node.op, ast.BitOr) and not self.function(node)):
            parts = [getattr(side, "value", getattr(side, "values", 0)) for side in (node.left, node.right)]
            if not any(isinstance(part, (str, list)) for part in parts):  # else texts are joined
                operands = [node.left, node.right]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
            start = self.span(node)[0]
            yield start, start + (3 if isinstance(node.op, ast.Not) else 1), ""
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            number: Any = node.value
            news = (number + 1, number - 1, number * 2)
            yield *self.span(node), *dict.fromkeys(str(new) for new in news if new != number)
        for left, right in pairwise(operands):
            start, end = self.span(left)[1], self.span(right)[0]
            found = OPERATOR.search(self.source, start, end)
            if found and (swap := SWAPS.get("_".join(found[0].decode().split()))):
                yield *found.span(), swap.replace("_", " ")
        forms = [(test, "(not (%s))") for test in getattr(node, "ifs", [])]
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            forms = [(node.test, "(not (%s))")]
        if isinstance(node, ast.Return) and isinstance(node.value, ast.BinOp):
            forms = [(node.value, "-(%s)")]
        for part, form in forms:
            start, end = self.span(part)
            yield start, end, form % self.source[start:end].decode()

    def function(self, node: ast.AST) -> Any:
        """The function whose body (not its defaults or decorators) has the node."""
        for child, parent in self.above(node):
            if isinstance(parent, FUNCTION) and child in parent.body:
                return parent
        return None

    def statement(self, node: ast.AST) -> Any:
        """The statement around the node that another can stand before: no `elif`."""
        for child, _ in self.above(node):
            if isinstance(child, ast.stmt) and not self.source.startswith(b"elif", self.span(child)[0]):
                return child


def probes(modules: dict[str, Module], mutant: Mutant) -> Iterator[tuple[Module, Any]]:
    """The statements that a test of the mutant runs."""
    module = modules[mutant.file]
    if module.function(mutant.at):
        yield module, module.statement(mutant.at)
        return
    top = module.statement(mutant.at)
    targets = getattr(top, "targets", [getattr(top, "target", None)])
    names = {node.id for node in targets if isinstance(node, ast.Name)}
    if not names:  # a default value, an option: the functions of the module
        yield from ((module, node.body[-1]) for node in module.nodes if isinstance(node, FUNCTION))
    for other in modules.values() if names else ():
        froms = [node.names for node in other.nodes if isinstance(node, ast.ImportFrom)]
        if other is module or names & {alias.name for aliases in froms for alias in aliases}:
            for node in other.nodes:
                if getattr(node, "id", getattr(node, "attr", None)) in names and other.function(node):
                    yield other, other.statement(node)


def copy_tree(tree: Path, to: Path) -> Path:
    skip = (".git", ".venv", "site", "build", "dist", "shared", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(tree, to, symlinks=True, ignore=shutil.ignore_patterns(*skip))
    # Checked by hash, as a file may change twice in a second and keep its size.
    compiling = ["compileall", "-q", "--invalidation-mode", "checked-hash"]
    subprocess.run([sys.executable, "-m", *compiling, to / "rbtools"], check=True)
    return to


Ended = tuple[int, list[str]]


def run_tests(copy: Path, *arguments: str, seconds: float = 7200, **environment: str) -> Ended:
    """The exit status of pytest (-1: out of time) and the tests that failed."""
    settings = {**os.environ, "PYTHONPATH": f"{copy}:{Path(__file__).parent}", **environment}
    settings |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    line = f"-m pytest -q --tb=no -p no:cacheprovider --basetemp={copy}.tmp".split()
    with open(f"{copy}.out", "w+") as output:
        how: Any = {"cwd": copy, "env": settings, "stdout": output, "stderr": output}
        job = subprocess.Popen([sys.executable, *line, *arguments], start_new_session=True, **how)
        try:
            status = job.wait(seconds)
        except subprocess.TimeoutExpired:
            status = -1
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)  # and what its tests started
            job.wait()
        output.seek(0)
        return status, re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", output.read(), re.MULTILINE)


def pytest_runtest_logreport(report: Any) -> None:
    """As a plugin of pytest, which writes for MAP how each test ended and how long it took."""
    if "MUTANTS_TIMES" in os.environ and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(os.environ["MUTANTS_TIMES"], "a") as file:
            file.write(json.dumps([plain(report.nodeid), report.outcome, report.duration]) + "\n")


def plain(test: str) -> str:
    return re.sub(r"@[\w-]+$", "", test)  # xdist names the group


def make_map(args: Any, modules: dict[str, Module], mutants: list[Mutant], folder: Path) -> dict[str, Any]:
    """Which tests run each mutant, and how long every test that passes takes."""
    copy = copy_tree(args.tree, folder / "probed")
    inserts = defaultdict(set)
    for mutant in mutants:
        for module, node in probes(modules, mutant):
            first = min(part.lineno for part in [node, *getattr(node, "decorator_list", [])])
            inserts[module.file, module.begins[first - 1] + node.col_offset, node.col_offset].add(mutant.name)
    (copy / "rbtools/_hit.py").write_text(PROBE)
    for (file, start, indent), names in sorted(inserts.items(), reverse=True):
        source = (copy / file).read_bytes()
        if source[start - indent : start].strip():  # the `...` of a stub, on the line of its `def`
            continue
        call = f"__import__('rbtools._hit')._hit.hit(*{sorted(names)!r})\n{' ' * indent}"
        (copy / file).write_bytes(source[:start] + call.encode() + source[start:])
    hits, times = folder / "hits", folder / "times"
    hits.touch()
    options = ["-p", "mutants", "-n", str(args.workers), "--dist", "loadgroup", *args.tests]
    run_tests(copy, *options, MUTANTS_HITS=str(hits), MUTANTS_TIMES=str(times))
    if not times.exists():
        sys.exit(Path(f"{copy}.out").read_text())
    seconds, failed = Counter[str](), set()
    for test, outcome, took in map(json.loads, times.read_text().splitlines()):
        seconds[test] += took
        failed |= {test} - ({test} if outcome == "passed" else set())
    runs: dict[str, list[str]] = {mutant.name: [] for mutant in mutants}
    for line in dict.fromkeys(hits.read_text().splitlines()):
        name, _, test = line.rpartition("\t")
        runs[name].append(plain(test))
    return {"seconds": {test: seconds[test] for test in seconds.keys() - failed}, "runs": runs}


def judges(known: dict[str, Any], mutant: Mutant) -> list[str]:
    """The tests that judge a mutant: those of its room first, in turns from each file, quick ones first."""
    files: dict[str, list[str]] = defaultdict(list)
    for test in sorted(known["seconds"].keys() & set(known["runs"][mutant.name]), key=known["seconds"].get):
        files[test.partition("::")[0]].append(test)
    room = f"tests/{Path(mutant.file).parts[1]}/"
    turns = [
        zip_longest(*(files[file] for file in files if file.startswith(room) is of)) for of in (True, False)
    ]
    chosen: list[str] = []
    left = MOST_SECONDS
    for test in filter(None, (test for part in turns for turn in part for test in turn)):
        if known["seconds"][test] <= left and len(chosen) < MOST_TESTS:
            chosen.append(test)
            left -= known["seconds"][test]
    return chosen


def judge(
    mutant: Mutant, source: bytes, tests: list[str], seconds: float, copies: SimpleQueue[Path]
) -> dict[str, Any]:
    """The verdict on one mutant."""
    start, status, failed, copy = time.monotonic(), 0, [""], copies.get()
    if tests:
        (copy / mutant.file).write_bytes(source[: mutant.start] + mutant.text.encode() + source[mutant.end :])
        status, failed = run_tests(copy, "-x", *tests, seconds=seconds)
        (copy / mutant.file).write_bytes(source)
    copies.put(copy)
    line = source[source.rfind(b"\n", 0, mutant.start) + 1 :].partition(b"\n")[0].decode().strip()
    return {
        "name": mutant.name,
        "verdict": "survived" if status == 0 else "timeout" if status == -1 else "killed",
        "was": source[mutant.start : mutant.end].decode(),
        "line": line,
        "tests": len(tests),
        "by": failed[0] if status > 0 and failed else "",
        "seconds": round(time.monotonic() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tree", type=Path, default=Path(__file__).parents[1], help="the checkout to measure"
    )
    parser.add_argument("--map", type=Path, required=True)
    parser.add_argument("--done", type=Path, required=True)
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="ROOM", help="the start of a path below rbtools/")
    parser.add_argument("--tests", nargs="*", default=["tests"])
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    args.tree = args.tree.resolve()
    files = sorted(str(path.relative_to(args.tree)) for path in args.tree.glob("rbtools/**/*.py"))
    modules = {file: Module(args.tree, file) for file in files}
    within = [modules[file] for file in files if file.startswith(f"rbtools/{args.only}")]
    places = [place for module in within for place in module.places()]
    draw = random.Random(args.seed)
    mutants = [draw.choice(place) for place in draw.sample(places, min(args.sample, len(places)))]
    print(f"{len(places)} places, {len(mutants)} drawn", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as name:
        if not args.map.exists():
            args.map.write_text(json.dumps(make_map(args, modules, mutants, Path(name))))
        known = json.loads(args.map.read_text())
        if not {mutant.name for mutant in mutants} <= known["runs"].keys():
            sys.exit(f"{args.map} is of other mutants: name another file")
        args.done.touch()
        entries = {entry["name"]: entry for entry in map(json.loads, args.done.read_text().splitlines())}
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(args.workers):
            copies.put(clean := copy_tree(args.tree, Path(name) / f"copy{number}"))

        def verdict(mutant: Mutant) -> dict[str, Any]:
            tests = judges(known, mutant)
            seconds = 60 + 4 * sum(known["seconds"][test] for test in tests)
            return judge(mutant, modules[mutant.file].source, tests, seconds, copies)

        with ThreadPoolExecutor(args.workers) as pool, args.done.open("a") as done:
            for entry in pool.map(verdict, [mutant for mutant in mutants if mutant.name not in entries]):
                entries[entry["name"]] = entry
                for file in (done, sys.stdout):
                    print(json.dumps(entry), file=file, flush=True)
        noticing = sorted({entry["by"] for entry in entries.values()} - {""})
        doubtful = set(run_tests(clean, *noticing)[1]) if noticing else set()
    if doubtful:
        known["seconds"] = {test: took for test, took in known["seconds"].items() if test not in doubtful}
        args.map.write_text(json.dumps(known))
        entries = {name: entry for name, entry in entries.items() if entry["by"] not in doubtful}
        args.done.write_text("".join(json.dumps(entry) + "\n" for entry in entries.values()))
    judged = [entries[mutant.name] for mutant in mutants if mutant.name in entries]
    noticed = sum(entry["verdict"] != "survived" for entry in judged)
    summary = {"judged": len(judged), "of": len(mutants), "noticed": noticed, "seed": args.seed}
    summary["no_test_runs"] = sum(not entry["tests"] for entry in judged)
    print(json.dumps(summary | {"share": round(noticed / max(1, len(judged)), 3)}))


if __name__ == "__main__":
    main()
