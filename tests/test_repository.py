"""Rules for the whole repository: no paths of one machine, no duplicated facts, no missing files."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rbtools.cli import tools

if sys.version_info >= (3, 11):
    import tomllib
else:  # the test environment installs it for Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def tracked_texts() -> dict[str, str]:
    """Path -> content of every text file that git tracks (or would, were it added)."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("this tree is not a git checkout")
    listing = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, capture_output=True, check=True).stdout.decode().split("\0")
    texts = {}
    for name in filter(None, names):
        content = (ROOT / name).read_bytes() if (ROOT / name).is_file() else b""
        if b"\0" not in content[:8000]:
            texts[name] = content.decode("utf-8", "replace")
    return texts


# Spelled in pieces, because this file is read too.
FOLDERS = ("wo" + "rk", "ro" + "ot", "tm" + "p", "ho" + "me", "Us" + "ers", "o" + "pt")
MACHINE_PATHS = re.compile(rf"(?<![\w.~$}}/-])/(?:{'|'.join(FOLDERS)})/\S|" + r"\.\./sha" + "red")
INDEX_HOSTS = re.compile(
    "|".join(["pypi" + r"\.org", "python" + "hosted", r"download\.py" + "torch", "simple" + "/$"]), re.M
)


@pytest.mark.parametrize("pattern", [MACHINE_PATHS, INDEX_HOSTS], ids=["paths", "index hosts"])
def test_nothing_of_one_machine_is_tracked(pattern: re.Pattern[str]) -> None:
    found = []
    for name, text in tracked_texts().items():
        found += [
            f"{name}:{n}: {line}" for n, line in enumerate(text.splitlines(), 1) if pattern.search(line)
        ]
    assert found == []


def test_constraints_pin_everything_that_is_asked_for() -> None:
    project = pyproject()["project"]
    asked = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    names = {re.split(r"[<>=!~;\[ ]", item)[0].lower() for item in asked}
    constraints = (ROOT / "constraints.txt").read_text("utf-8").lower()
    assert names - {"rbtools"} <= set(re.findall(r"^([\w.-]+)==[\w.!]+(?: ; .+)?$", constraints, re.M))


def test_no_test_is_skipped_because_a_package_is_missing() -> None:
    """The Makefile installs what tests need; those of the extra test-all are marked `extra`."""
    called = re.compile(r"importorskip\(|find_spec\(.+\) is None")
    tests = {name: text for name, text in tracked_texts().items() if name.startswith("tests/")}
    assert not [name for name, text in tests.items() if called.search(text)]


def test_every_test_that_the_readme_names_is_there() -> None:
    named = re.findall(r"`(\w+/\w+\.py)::(\w+)`", (ROOT / "tests" / "README.md").read_text("utf-8"))
    assert len(named) > 20
    for path, test in named:
        assert f"def {test}(" in (ROOT / "tests" / path).read_text("utf-8"), f"{path} has no {test}."


def test_each_command_has_its_module_its_tests_and_its_man_page() -> None:
    for script, place in pyproject()["project"]["scripts"].items():
        name = script.removeprefix("rb-").replace("-", "_")
        room, module = place.removesuffix(":main").split(".")[1:]
        assert place == tools.TOOLS[name] and (ROOT / "tests" / room / f"test_{module}.py").is_file()
        assert (ROOT / "man" / f"{script}.1").is_file()


def test_no_room_exceeds_its_budget() -> None:
    """Docstrings and blank lines are counted. A budget is raised in the commit of the feature that
    needs it, with the reason; it is lowered with its room.
    """
    text = (ROOT / "tests" / "budgets.txt").read_text("utf-8")
    budgets = {name: int(lines) for name, lines in map(str.split, text.splitlines())}
    sizes: Counter[str] = Counter()
    for folder in ("rbtools", "tests", "bench"):
        for path in (ROOT / folder).rglob("*.py"):
            inside = path.relative_to(ROOT).parts
            room = f"rbtools/{inside[1]}" if folder == "rbtools" and len(inside) > 2 else folder
            sizes[room] += path.read_text("utf-8").count("\n")
    too_large = {
        room: f"{lines} lines, budget {budgets.get(room, 0)}"
        for room, lines in sizes.items()
        if lines > budgets.get(room, 0)
    }
    assert not too_large
    assert sizes.keys() == budgets.keys()
