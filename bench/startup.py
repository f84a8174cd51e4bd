"""How fast the light tools start and list, and a pipe gives its first record: medians, a JSON line each.

    python bench/startup.py [RUNS]
    python bench/startup.py [RUNS] pipe     the first record only

Each figure is measured in fresh processes, as a shell starts them, after one run that is not counted
(it writes the byte code). `goal` is what the figure has to stay under. A process's peak memory counts from
before it became the tool, so `peak_mb` is never below this script's own, some 20 MB. Completions: the
processor time of a shell that loads them and completes `rb-attack sq` once, beyond one that does nothing.

The first record is that of rb-attack in a pipe with an empty store, and the answer that of rb-rank after it:
as the tools are; where a stage imports torch only once its record is there; and beside both the same tools
one after another through files. The three take turns. `cpu` is the processor time of all stages: where the
machine has no core to spare, no pipe takes less than that.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import BIN, ENVIRONMENT, fresh, medians, show

COMPLETIONS = Path(__file__).resolve().parents[1] / "completions"
# Shell -> how it starts without a user's files, and what loads the completions and completes once.
SHELLS = {
    "bash": (
        ("bash", "--noprofile", "--norc"),
        f"source '{COMPLETIONS}/rbtools.bash'; COMP_WORDS=(rb-attack sq) COMP_CWORD=1;"
        " _rb_complete_completion rb-attack",
    ),
    "zsh": (
        ("zsh", "-f"),
        f"words=(rb-attack sq) CURRENT=2 PREFIX=sq; source '{COMPLETIONS}/_rbtools' 2>/dev/null; true",
    ),
    "fish": (("fish", "--no-config"), f"source '{COMPLETIONS}/rbtools.fish'; complete -C 'rb-attack sq'"),
}
STAGES = ("arch --sample 1 --cells 1", "train --epochs 1", "attack fgsm --n 100", "rank --by acc")
# A stage whose wait for the first record is never late, since it seems to have begun long ago.
NEVER_LATE = "import sys, rbtools.cli; rbtools.cli.BEGUN -= 1e6; from rbtools.commands.{} import main; main()"
HEAVY = ("torch", "torchvision", "numpy", "scipy", "sklearn")


def piped_into_wc(*command: str) -> dict[str, Any]:
    """Run `command | wc -l`: the lines counted, seconds until both ended, peak memory of the command."""
    start = time.perf_counter()
    tool = subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT)
    count = subprocess.Popen(["wc", "-l"], stdin=tool.stdout, stdout=subprocess.PIPE)
    assert tool.stdout is not None
    tool.stdout.close()
    lines = count.communicate()[0]
    _, status, usage = os.wait4(tool.pid, 0)
    tool.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    peak = round(usage.ru_maxrss * 1024 / 1e6, 1)
    if tool.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {tool.returncode}")
    return {"lines": int(lines), "seconds": seconds, "peak_mb": peak}


def heavy_imports(*command: str) -> list[str]:
    """Which heavy packages a command of this environment imports."""
    traced = [sys.executable, "-X", "importtime", *command]
    found = subprocess.run(traced, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    names = {line.rpartition("|")[2].strip() for line in found.stderr.splitlines()}
    return [name for name in HEAVY if name in names]


def processor(*command: str) -> float:
    """The processor seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def installed(tool: str) -> list[str]:
    return [str(BIN / f"rb-{tool}")]


def never_late(tool: str) -> list[str]:
    return [sys.executable, "-c", NEVER_LATE.format(tool)]


def pipe(command: Callable[[str], list[str]]) -> dict[str, Any]:
    """Run the stages as a pipe: seconds until rb-attack's first record, and until rb-rank has ended."""
    start, before, source = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN), None
    stages: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        for stage in STAGES:
            tool, *words = stage.split()
            stdin = subprocess.PIPE if tool == "rank" else source
            options: Any = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            line = [*command(tool), *words]
            stages.append(subprocess.Popen(line, cwd=folder, env=ENVIRONMENT, **options))
            if tool != "rank":
                source = stages[-1].stdout
        assert source is not None
        record = source.readline()
        first = time.perf_counter() - start
        answer = stages[-1].communicate(record)[0]
        seconds = time.perf_counter() - start
        if any(stage.wait() for stage in stages) or not answer:
            raise SystemExit("a stage of the pipe failed")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"first": first, "seconds": seconds, "cpu": cpu}


def one_after_another() -> dict[str, Any]:
    """Run each stage once the one before it has ended: seconds until the ends of rb-attack and rb-rank."""
    ended, before = [time.perf_counter()], resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        text = b""
        for stage in STAGES:
            tool, *words = stage.split()
            line = [*installed(tool), *words]
            options: Any = {"input": text, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            text = subprocess.run(line, check=True, cwd=folder, env=ENVIRONMENT, **options).stdout
            ended.append(time.perf_counter())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"first": ended[-2] - ended[0], "seconds": ended[-1] - ended[0], "cpu": cpu}


def first_record(count: int) -> None:
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "pipe": lambda: pipe(installed),
        "pipe, imports once a record is there": lambda: pipe(never_late),
        "one after another": one_after_another,
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for _ in range(count):
        for name, way in ways.items():
            runs[name].append(way())
    line = " | ".join(f"rb-{stage}" for stage in STAGES)
    for name, taken in runs.items():
        ratios = [
            run["first"] / whole["first"] for run, whole in zip(taken, runs["one after another"], strict=True)
        ]
        show(line, way=name, **medians(taken), ratio=round(statistics.median(ratios), 3))


def main(count: int, only: str | None = None) -> None:
    if only == "pipe":
        first_record(count)
        return
    show("machine", cores=os.cpu_count(), machine=platform.machine(), python=platform.python_version())
    arch, rank = str(BIN / "rb-arch"), str(BIN / "rb-rank")

    piped_into_wc(arch, "--unique")
    runs = [piped_into_wc(arch, "--unique") for _ in range(count)]
    goal = {"lines": 6466, "seconds": 0.6, "peak_mb": 60}
    show("rb-arch --unique | wc -l", **medians(runs), imports=heavy_imports(arch, "--unique"), goal=goal)

    fresh(rank, "--help")
    runs = [fresh(rank, "--help") for _ in range(count)]
    goal = {"seconds": 0.25, "imports": []}
    show("rb-rank --help", **medians(runs), imports=heavy_imports(rank, "--help"), goal=goal)

    show("python -c pass", **medians([fresh(sys.executable, "-c", "pass") for _ in range(count)]))

    for shell, (start, script) in SHELLS.items():
        if shutil.which(shell):
            with_it, without = (
                statistics.median(processor(*start, "-c", words) for _ in range(count))
                for words in (script, ":")
            )
            show(f"completions in {shell}", cpu=round(with_it - without, 3), goal={"cpu": 0.4})
    first_record(count)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, *sys.argv[2:3])
