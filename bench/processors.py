"""The tests that depend on arithmetic, under other trainings, instruction sets, precisions and threads.

Every setting is a run of pytest and one JSON line: the setting, how many tests passed and failed, and which
failed.

    python bench/processors.py                        the settings that this machine can run, all their tests
    python bench/processors.py "seed 1" "threads 2"   some settings
    python bench/processors.py --trains               only the tests of trained networks, in every setting
    python bench/processors.py --together             every setting, several in one run: five runs
    python bench/processors.py --list                 their names and variables
    python bench/processors.py "seed 1" -- -k attack  further options of pytest

A training seed changes only the tests of networks that are trained (`-m trains`); every other setting runs
those that compute with torch otherwise as well (`-m arithmetic`). tests/conftest.py says which these are.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SEEDS = {f"seed {seed}": {"RBTOOLS_TEST_SEED": str(seed)} for seed in range(1, 6)}
SETTINGS: dict[str, dict[str, str]] = {
    "as it is": {},
    **SEEDS,
    **{f"ATEN {name}": {"ATEN_CPU_CAPABILITY": name} for name in ("default", "avx2", "avx512")},
    **{f"oneDNN {name}": {"ONEDNN_MAX_CPU_ISA": name} for name in ("SSE41", "AVX2", "AVX512_CORE_AMX")},
    **{f"bf16 {name}": {"RBTOOLS_TEST_BF16": name} for name in ("yes", "no")},
    **{f"threads {count}": {"RBTOOLS_TEST_THREADS": str(count)} for count in (1, 2)},
}
# Each value of each setting stands in one of these. Where one fails, its settings alone say which it was.
TOGETHER = (
    ("seed 1", "ATEN default", "oneDNN SSE41", "bf16 yes", "threads 1"),
    ("seed 2", "ATEN avx2", "oneDNN AVX2", "bf16 no", "threads 2"),
    ("seed 3", "ATEN avx512", "oneDNN AVX512_CORE_AMX"),
    ("seed 4",),
    ("seed 5",),
)
COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped)")


def missing(name: str) -> str | None:
    """What this processor lacks for a setting; None where it can run it."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    # torch believes the variable: without the instructions it ends with SIGILL.
    if name == "ATEN avx512" and "avx512f" not in flags:
        return "no AVX-512"
    return None


def measured(name: str, options: list[str], trains: bool = False) -> dict[str, object]:
    """One run: what the JSON line says."""
    about = {"setting": name, "variables": SETTINGS[name]}
    lack = missing(name)
    if lack is not None:
        return {**about, "not run": lack}
    return about | run(SETTINGS[name], options, trains or name in SEEDS)


def together(names: tuple[str, ...], options: list[str], trains: bool) -> dict[str, object]:
    """One run with several settings at once; what this processor lacks is left out and named."""
    lacks = {name: lack for name in names if (lack := missing(name)) is not None}
    variables = {key: value for name in names if name not in lacks for key, value in SETTINGS[name].items()}
    only = trains or all(name in SEEDS for name in names)
    return {"settings": names, "variables": variables, "not run": lacks} | run(variables, options, only)


def run(variables: dict[str, str], options: list[str], trains: bool) -> dict[str, object]:
    """The tests with these variables: counts, failures, seconds."""
    start, used = time.perf_counter(), os.times()
    marked = "trains" if trains else "(trains or arithmetic)"
    words = f"-m pytest -q -p no:cacheprovider --tb=line --color=no tests {' '.join(options)}".split()
    done = subprocess.run(
        [sys.executable, *words, "-m", f"{marked} and not slow"],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    counts = {word: int(count) for count, word in COUNTS.findall(lines[-1] if lines else "")}
    now = os.times()
    cpu = now.children_user + now.children_system - used.children_user - used.children_system
    failed = [line.split(" ")[1] for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {
        **counts,
        "failures": failed,
        "status": done.returncode,
        "seconds": round(time.perf_counter() - start),
        "cpu_seconds": round(cpu),
    }


def main() -> None:
    words = sys.argv[1:]
    options = words[words.index("--") + 1 :] if "--" in words else []
    names = words[: words.index("--")] if "--" in words else words
    if "--list" in names:
        for name, variables in SETTINGS.items():
            print(json.dumps({"setting": name, "variables": variables, "not run": missing(name)}))
        return
    trains = "--trains" in names
    if "--together" in names:
        for some in TOGETHER:
            print(json.dumps(together(some, options, trains)), flush=True)
        return
    for name in [name for name in names if name != "--trains"] or SETTINGS:
        if name not in SETTINGS:
            sys.exit(f"There is no setting {name!r}. Expected one of {', '.join(SETTINGS)}.")
        print(json.dumps(measured(name, options, trains)), flush=True)


if __name__ == "__main__":
    main()
