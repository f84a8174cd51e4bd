"""How fast the light tools start and list: one JSON line a figure, medians over runs.

    python bench/startup.py [RUNS]

Each figure is measured in fresh processes, as a shell starts them, after one run that is not counted
(it writes the byte code). `goal` is what the figure has to stay under. A process's peak memory counts from
before it became the tool, so `peak_mb` is never below this script's own, some 20 MB. Completions: the
processor time of a shell that loads them and completes `rb-attack sq` once, beyond one that does nothing.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import BIN, ENVIRONMENT, fresh, medians, show

COMPLETIONS = Path(__file__).resolve().parents[1] / "completions"
# Shell -> how it starts without a user's files, and what loads the completions and completes once.
SHELLS = {
    "bash": (
        ("bash", "--noprofile", "--norc"),
        f"source '{COMPLETIONS}/rbtools.bash'; COMP_WORDS=(rb-attack sq) COMP_CWORD=1; _rbtools",
    ),
    "zsh": (
        ("zsh", "-f"),
        f"words=(rb-attack sq) CURRENT=2 PREFIX=sq; source '{COMPLETIONS}/_rbtools' 2>/dev/null; true",
    ),
    "fish": (("fish", "--no-config"), f"source '{COMPLETIONS}/rbtools.fish'; complete -C 'rb-attack sq'"),
}
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


def main(count: int) -> None:
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
            show(f"completions in {shell}", cpu=round(with_it - without, 3), goal={"cpu": 0.15})


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
