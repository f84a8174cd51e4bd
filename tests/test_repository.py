"""Rules for the whole repository: no paths of one machine, no duplicated facts, no missing files."""

from __future__ import annotations

import importlib
import importlib.metadata
import itertools
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rbtools
from rbtools.cli import tools

if sys.version_info >= (3, 11):
    import tomllib
else:  # the test environment installs it for Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


SCRIPTS: dict[str, str] = pyproject()["project"]["scripts"]


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


@pytest.mark.parametrize("text", ["cd /wo" + "rk/main", "open('/tm" + "p/x')", '"/ro' + 'ot/.cache"'])
def test_path_of_a_machine_is_recognised(text: str) -> None:
    assert MACHINE_PATHS.search(text)


def test_the_citation_names_this_version() -> None:
    import yaml

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == rbtools.__version__
    assert citation["license"] == pyproject()["project"]["license"]


def pins() -> list[tuple[str, str, str]]:
    """(name, version, marker) of each line of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    parts = [
        re.fullmatch(r"([\w.-]+)==([\w.!]+)(?: ; (.+))?", line) for line in lines if line and line[0] != "#"
    ]
    assert all(parts), "constraints.txt holds name==version lines only, with a marker or without"
    return [(part[1], part[2], part[3] or "") for part in parts if part]


def test_constraints_pin_each_package_once_for_each_python() -> None:
    markers: dict[str, list[str]] = {}
    for name, _, marker in pins():
        markers.setdefault(name, []).append(marker)
    old, new = 'python_version < "3.11"', 'python_version >= "3.11"'
    assert {n: m for n, m in markers.items() if m not in ([""], [old], [new], [old, new])} == {}


def test_constraints_pin_the_torch_everything_is_checked_with() -> None:
    versions = {name: version for name, version, _ in pins()}
    assert (versions["torch"], versions["torchvision"]) == ("2.13.0", "0.28.0")


def test_constraints_pin_everything_that_is_asked_for() -> None:
    project = pyproject()["project"]
    asked = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    names = {re.split(r"[<>=!~;\[ ]", item)[0].lower() for item in asked}
    assert names - {name.lower() for name, _, _ in pins()} == set()


def test_every_test_that_the_readme_names_is_there() -> None:
    named = re.findall(r"`(\w+/\w+\.py)::(\w+)`", (ROOT / "tests" / "README.md").read_text("utf-8"))
    assert len(named) > 20
    for path, test in named:
        assert f"def {test}(" in (ROOT / "tests" / path).read_text("utf-8"), f"{path} has no {test}."


def test_version_stands_in_one_place() -> None:
    assert "version" in pyproject()["project"]["dynamic"]
    assigned = [name for name, text in tracked_texts().items() if re.search(r"^__version__ *=", text, re.M)]
    assert assigned == ["rbtools/__init__.py"]


def test_installed_version_is_that_of_the_source() -> None:
    try:
        installed = importlib.metadata.version("rbtools")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("rbtools runs from its source here")
    assert installed == rbtools.__version__


@pytest.mark.parametrize("script", SCRIPTS)
def test_command_is_the_main_of_its_module(script: str) -> None:
    name = script.removeprefix("rb-").replace("-", "_")
    assert SCRIPTS[script] == tools.TOOLS[name]
    assert callable(tools.tool(name).command)


@pytest.mark.parametrize("script", SCRIPTS)
def test_command_has_its_test_file(script: str) -> None:
    room, module = SCRIPTS[script].removesuffix(":main").split(".")[1:]
    assert (ROOT / "tests" / room / f"test_{module}.py").is_file()


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.skipif(not (ROOT / "man").is_dir(), reason="man pages are not written yet (make docs)")
def test_command_has_its_man_page(script: str) -> None:
    assert (ROOT / "man" / f"{script}.1").is_file()


def test_network_is_refused() -> None:
    with pytest.raises(AssertionError, match="never download"):
        socket.create_connection(("192.0.2.1", 80), timeout=0.1)
    with pytest.raises(AssertionError, match="never download"):
        socket.getaddrinfo("example.invalid", 80)


def test_ctrl_c_is_noticed_though_the_tests_run_in_the_background() -> None:
    code = (
        "import runpy, signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what it starts with &\n"
        f"runpy.run_path({str(ROOT / 'tests' / 'conftest.py')!r})\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
