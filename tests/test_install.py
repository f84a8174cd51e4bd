"""make install, make uninstall, and the wheel: all files are installed, and removed again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bench import check_wheel

ROOT = Path(__file__).resolve().parents[1]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built in a copy."""
    return check_wheel.build_wheel(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_contains_everything(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {f"rbtools/{name}" for name in files(ROOT / "rbtools") if "__pycache__" not in name}
    assert package - names == set()
    assert "rbtools/py.typed" in names  # without it, type checkers do not read our annotations
    shared = {re.sub(r"^.*\.data/data/share/", "", name) for name in names if ".data/data/" in name}
    pages = {f"man/man{path.suffix[1:]}/{path.name}" for path in (ROOT / "man").iterdir()}
    shells = {
        "bash-completion/completions/rbtools.bash",
        "zsh/site-functions/_rbtools",
        "fish/vendor_completions.d/rbtools.fish",
    }
    assert shared == pages | shells


def ready_environment(prefix: Path) -> None:
    """The environment that install makes, borrowing this one's packages: no network, no torch to copy."""
    lib = prefix / "lib/rbtools"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(lib)], check=True, timeout=300)
    (site,) = lib.glob("lib/python*/site-packages")
    here = next(path for path in sys.path if (Path(path) / "click").is_dir())
    (site / "borrowed.pth").write_text(f"{here}\n")
    shutil.copy(ROOT / "constraints.txt", lib)


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_installed_tools_run_alone_and_uninstall_leaves_nothing(tmp_path: Path) -> None:
    prefix = tmp_path / "a prefix"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/other").touch()
    ready_environment(prefix)
    before = files(ROOT / "rbtools")
    done = make("install", f"PREFIX={prefix}")
    assert done.returncode == 0, done.stderr
    assert {name for name in files(ROOT / "rbtools") - before if "__pycache__" not in name} == set()
    here = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    where = ["lib/rbtools/bin/python", "-c", "import rbtools; print(rbtools.__file__)"]
    for (tool, *words), said in ((["bin/rb-arch", "--index", "9"], '"index":9'), (where, str(prefix))):
        line = [prefix / tool, *words]
        ran = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=here, check=True)
        assert said in ran.stdout
    placed = files(prefix / "share")
    assert {"man/man1/rb-attack.1", "man/man5/rb-record.5", "man/man7/rbtools.7"} <= placed
    assert {"bash-completion/completions/rb-attack", "fish/vendor_completions.d/rb-attack.fish"} <= placed
    assert "zsh/site-functions/_rbtools" in placed

    done = make("uninstall", f"PREFIX={prefix}")
    assert done.returncode == 0, done.stderr
    assert files(prefix) == {"bin/other"}
    done = make("uninstall", f"PREFIX={prefix}")
    assert done.returncode != 0 and "nothing of rbtools is installed in" in done.stderr
