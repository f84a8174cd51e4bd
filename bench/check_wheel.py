"""The wheel as a stranger has it: installed by pip in an empty environment, run outside of every checkout.

    python bench/check_wheel.py [--python python3.12]... [--torch 2.9.1]... [--pages] [--extras NAME,...|none]
        [--folder FOLDER]

For each Python, and each version of torch (by default that of constraints.txt): an environment of its own
with torch, the wheel and what it needs, in the versions of constraints.txt (the network is needed, and about
2 GB a Python; an environment in FOLDER that is there is used as it is). Then, in an empty folder with an
empty home: are the type marker, the manual pages and the completions there; does every tool start; does every
command of the README work as typed (--pages: also those of docs/), and how long the first ranked table takes.
Each extra is installed alone, in an environment that sees the first one and nothing else: what it is for
works with it, and is refused by its name without.
One JSON line a finding; status 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the commands of the README are read as the tests read them

from tests import test_readme  # noqa: E402

PARTS = ("rbtools", "man", "completions", "pyproject.toml", "README.md", "LICENSE")
TRAINED = "rb-arch --index 13714 --cells 1 --channels 4 | rb-train --epochs 1 > trained.jsonl"
TABLE = """
import numpy as np, pyarrow as pa, pyarrow.parquet
from PIL import Image
import io
def png(label):
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), 25 * label, np.uint8)).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}
rows = {"image": [png(n % 10) for n in range(20)], "label": [n % 10 for n in range(20)]}
for split in ("train", "test"):
    pa.parquet.write_table(pa.table(rows), f"table/{split}.parquet")
"""


class Probe(NamedTuple):
    """What an extra is for: its modules, a command that needs it, Python that makes the command's files, and
    what the command says where it cannot succeed here (else it succeeds)."""

    modules: tuple[str, ...]
    command: str
    files: str = ""
    says: str = ""


EXTRAS = {
    "hub": Probe(
        ("huggingface_hub", "timm"),
        "rb-attack none --checkpoint hf:timm/resnet18.a1_in1k --dataset imagefolder:photos",
        says="--download",
    ),
    "parquet": Probe(
        ("pyarrow",),
        "rb-arch --index 13714 --cells 1 --channels 4 --dataset parquet:table"
        " | rb-train --epochs 1 --batch-size 10",
        TABLE,
    ),
    "ray": Probe(("ray",), "rb-attack fgsm --n 10 --jobs 1 --engine ray trained.jsonl"),
    "search": Probe(
        ("pymoo",),
        "rb-arch --unique | rb-search nsga2 --objective arch.macs,arch.params --lower arch.macs,arch.params"
        " --budget 50",
    ),
    "tensorboard": Probe(
        ("tensorboard",),
        "rb-arch --index 13714 --cells 1 --channels 4 | rb-train --epochs 1 --tensorboard curves",
    ),
    "timm": Probe(("timm",), "rb-arch --arch timm:test_resnet --dataset digits | rb-train --epochs 1"),
}

wrong = 0


def tell(**finding: object) -> None:
    """Write a finding; one with `wrong` makes the status 1."""
    global wrong
    wrong += "wrong" in finding
    print(json.dumps(finding), flush=True)


class Environment:
    """A virtual environment, and a folder with an empty home to work in."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.python = folder, folder / "bin" / "python"
        self.pins = ROOT / "constraints.txt"

    def make(self, python: str) -> None:
        if not self.python.exists():
            subprocess.run([python, "-m", "venv", str(self.folder)], check=True)

    def install(self, *arguments: str) -> None:
        """pip install, in the versions of constraints.txt."""
        command = [str(self.python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        command += ["--constraint", str(self.pins), *arguments]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run(command, check=True, env=environment)

    def has(self, module: str) -> bool:
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
        return self.run([str(self.python), "-c", code], self.folder).returncode == 0

    def run(
        self, command: list[str] | str, folder: Path, store: str = "rb-store"
    ) -> subprocess.CompletedProcess[str]:
        """A command in a folder, with this environment's tools and nothing else of the user's."""
        words = ["bash", "-o", "pipefail", "-c", command] if isinstance(command, str) else command
        own = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "HOME": str(folder / "home"),
            "RB_STORE": str(folder / store),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", ""),
        }
        own = {name: value for name, value in own.items() if value}
        return subprocess.run(words, cwd=folder, env=own, capture_output=True, text=True)


def build_wheel(folder: Path) -> Path:
    """The wheel of this tree, built in a copy."""
    copy = folder / "tree"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for part in PARTS:
        put = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        put(ROOT / part, copy / part)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        "out",
        ".",
    ]
    subprocess.run(command, cwd=copy, check=True, timeout=300)
    (wheel,) = (copy / "out").glob("rbtools-*.whl")
    return wheel


def base(python: str, torch: str | None, folder: Path, wheel: Path) -> Environment:
    """The environment of one Python: torch (a version, or the pinned one), the wheel, and what it needs."""
    name = Path(python).name
    environment = Environment(folder / (name if torch is None else f"{name}-torch-{torch}"))
    if torch is not None:
        pins = (ROOT / "constraints.txt").read_text().splitlines()
        others = [line for line in pins if not line.startswith(("torch", "triton", "nvidia-", "cuda-"))]
        environment.pins = folder / f"constraints-{torch}.txt"
        environment.pins.write_text("\n".join([*others, f"torch=={torch}"]))
    environment.make(python)
    begun = time.perf_counter()
    if not environment.has("torch"):
        pins = environment.pins.read_text().splitlines()
        environment.install(next(line for line in pins if line.startswith("torch==")))
    environment.install("--force-reinstall", "--no-deps", str(wheel))
    environment.install(str(wheel))
    version = environment.run([str(environment.python), "--version"], folder).stdout.strip()
    tell(python=version, torch=torch or "pinned", installed_seconds=round(time.perf_counter() - begun, 1))
    return environment


def check_files(environment: Environment, folder: Path) -> None:
    """The type marker, the manual pages, the completions; and every tool starts."""
    share = environment.folder / "share"
    code = "import rbtools, pathlib; print(pathlib.Path(rbtools.__file__).parent)"
    package = Path(environment.run([str(environment.python), "-c", code], folder).stdout.strip())
    files = [package / "py.typed", share / "bash-completion/completions/rbtools.bash"]
    files += [share / "zsh/site-functions/_rbtools", share / "fish/vendor_completions.d/rbtools.fish"]
    pages = list((ROOT / "man").iterdir())
    files += [share / f"man/man{page.suffix[1:]}" / page.name for page in pages]
    missing = [str(file) for file in files if not file.is_file()]
    if missing or environment.folder not in package.parents:
        tell(files="missing", wrong=missing or f"rbtools is taken from {package}")
    tools = sorted(page.stem for page in pages if page.name.startswith("rb-") and page.suffix == ".1")
    for tool in tools:
        for flag in ("--help", "--version"):
            done = environment.run([tool, flag], folder)
            if done.returncode or not done.stdout:
                tell(tool=tool, flag=flag, wrong=done.stderr[-500:])
    tell(files=len(files), tools=len(tools))


def work_folder() -> Path:
    """A folder outside of every checkout: an empty home, and what the README names as the user's."""
    folder = Path(tempfile.mkdtemp(prefix="check-wheel-"))
    (folder / "home").mkdir()
    (folder / "table").mkdir()
    test_readme.files_of_a_user(folder)
    for name, text in test_readme.modules().items():
        (folder / name).write_text(text)
    return folder


def check_commands(environment: Environment, folder: Path, pages: bool) -> None:
    """Every command of the README (and of the pages) as typed; the first table is the first two commands."""
    text = test_readme.TEXT if pages else test_readme.README
    typed = [command for block in test_readme.blocks("sh", text) for command in test_readme.commands(block)]
    clock, processor = [], []
    for command in typed:
        begun, used = time.perf_counter(), _of_children()
        done = environment.run(command, folder)
        clock.append(time.perf_counter() - begun)
        processor.append(_of_children() - used)
        if done.returncode:
            tell(command=command, wrong=done.stderr[-1000:])
    for what, count in (("first table", 2), ("all commands", len(typed))):
        times = {"seconds": round(sum(clock[:count]), 1), "processor": round(sum(processor[:count]), 1)}
        tell(done=what, commands=count, **times)


def _of_children() -> float:
    """Seconds of the processor that ended processes took."""
    times = os.times()
    return times.children_user + times.children_system


def check_extra(name: str, alone: Environment, wheel: Path, folder: Path) -> None:
    """An extra, in an environment that borrows the packages of `alone` and has only it besides."""
    probe = EXTRAS[name]
    with tempfile.TemporaryDirectory() as temporary:
        environment = Environment(Path(temporary) / name)
        environment.make(str(alone.python))
        (borrowed,) = alone.folder.glob("lib/python*/site-packages")
        (own,) = environment.folder.glob("lib/python*/site-packages")
        (own / "borrowed.pth").write_text(f"{borrowed}\n")
        environment.install("--ignore-installed", "--no-deps", str(wheel))  # for the commands
        environment.install(f"rbtools[{name}] @ {wheel.as_uri()}")
        others = {module for other in EXTRAS.values() for module in other.modules} - set(probe.modules)
        present = [module for module in sorted(others) if environment.has(module)]
        if probe.files:
            made = environment.run([str(environment.python), "-c", probe.files], folder)
            if made.returncode:
                tell(extra=name, wrong=made.stderr[-1000:])
        begun = time.perf_counter()
        done = environment.run(probe.command, folder, "store-with")
        seconds = round(time.perf_counter() - begun, 1)
    if (done.returncode != 0 and not probe.says) or probe.says not in done.stderr:
        tell(extra=name, wrong=done.stderr[-1000:])
    refused = alone.run(probe.command, folder, "store-without")
    if refused.returncode == 0 or f"rbtools[{name}]" not in refused.stderr:
        tell(extra=name, wrong=f"Without it: {refused.stderr[-1000:]}")
    tell(extra=name, seconds=seconds, other_extras_present=present)


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", action="append", metavar="PYTHON")
    parser.add_argument("--torch", action="append", metavar="VERSION", help="instead of the pinned one")
    parser.add_argument("--pages", action="store_true", help="also the commands of docs/")
    parser.add_argument("--extras", default=",".join(EXTRAS), metavar="NAME,...")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "check-wheel"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    wheel = build_wheel(options.folder)
    tell(wheel=wheel.name, kilobytes=wheel.stat().st_size // 1000)
    for python, torch in product(options.python or [sys.executable], options.torch or [None]):
        environment = base(python, torch, options.folder, wheel)
        folder = work_folder()
        check_files(environment, folder)
        check_commands(environment, folder, options.pages)
        environment.run(TRAINED, folder)
        for name in filter(None, options.extras.replace("none", "").split(",")):
            check_extra(name, environment, wheel, folder)
        shutil.rmtree(folder)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
