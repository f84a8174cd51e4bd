"""Where the processor time of whole commands goes: one JSON line a command, shares in percent.

    python bench/profile_commands.py [--data FOLDER] [--robust FILE] [--only PART,...] [--lines 5]

FOLDER holds CIFAR-10 as images (train/<class>/, test/<class>/) and FILE a checkpoint of NAS-Bench-201 for
them; without either the commands that need it are left out. A part is a pipe whose stages run one after
another; its last stage is shown, of the demo every one. Each command runs in a process of its own
with a store of its own, on one thread. A clock of processor time interrupts it every two milliseconds and
counts the time since the last tick to the place where the main thread is: `start` is Python before and
after the command, `imports` whatever modules run when they are loaded, `passes` forward and backward
through the network. `--lines` shows the dearest lines outside the network.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

from rbtools.cli import tools

TICK = 0.002
# A phase is told by the outermost frame that belongs to one, whatever it calls.
PHASES = {
    "importlib._bootstrap": "imports",
    "rbtools/evaluation/model_checks.py": "look",
    "rbtools/evaluation/fast_model.py:prepared": "preparation",
    "rbtools/inputs/checkpoints.py": "recognising",
    "rbtools/models/": "loading",  # unless a pass is under way: see PASSES
    "rbtools/datasets/": "data",
    "rbtools/store/": "store",
    "rbtools/execution/cores.py": "store",
}
# Else the innermost frame that is known tells it.
PASSES = ("torch/nn/modules/", "torch/autograd/", "torch/_tensor.py", "torch/fx/")
PLACES = {
    "torch/optim/": "optimiser",
    "rbtools/rng/philox.py": "draws",
    "rbtools/rng/draws.py": "draws",
    "rbtools/rng/normal.py": "draws",
    "rbtools/trainer/augment.py": "augmentation",
    "rbtools/attacks/": "attack",
    "rbtools/corruptions/": "corruptions",
    "rbtools/training/": "loss",
    "rbtools/probabilistic/": "statistic",
    "rbtools/evaluation/": "evaluation",
    "rbtools/trainer/": "trainer",
    "rbtools/execution/": "execution",
    "rbtools/inputs/": "inputs",
    "rbtools/commands/": "command",
    "rbtools/cli/": "command",
    "rbtools/records/": "command",
}


def place_of(frame: FrameType | None) -> tuple[str, str]:
    """What the main thread is doing, and the line of this project that does it."""
    names, line = [], ""
    while frame is not None:
        name = frame.f_code.co_filename
        if not line and "rbtools/" in name:
            line = f"{name[name.rindex('rbtools/') :]}:{frame.f_lineno}"
        names.append(f"{name}:{frame.f_code.co_name}")
        frame = frame.f_back
    passing = any(part in name for name in names for part in PASSES)
    for name in reversed(names):
        for part, phase in PHASES.items():
            if part in name and not (passing and part == "rbtools/models/"):
                return phase, line
    if passing:
        for name in names:
            if "torch/optim/" in name:
                return "optimiser", line
        return "passes", line
    for name in names:
        for part, place in PLACES.items():
            if part in name:
                return place, line
    return "start", line


def inside(report: str, tool: str, words: list[str]) -> None:
    """Run one command in this process under the clock, and write what was seen."""
    last = time.process_time()
    places: defaultdict[str, float] = defaultdict(float, start=last)
    lines: defaultdict[str, float] = defaultdict(float)

    def tick(_signal: int, frame: FrameType | None) -> None:
        nonlocal last
        now = time.process_time()
        place, line = place_of(frame)
        places[place] += now - last
        lines[f"{place} {line}"] += now - last
        last = now

    signal.signal(signal.SIGPROF, tick)
    signal.setitimer(signal.ITIMER_PROF, TICK, TICK)
    start = time.perf_counter()
    sys.argv = [tool, *words]
    try:  # it ends with its status
        tools.tool(tool.removeprefix("rb-")).command()
    finally:
        tick(signal.SIGPROF, None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        found = {"places": places, "lines": lines, "wall": time.perf_counter() - start}
        Path(report).write_text(json.dumps(found))


def measured(words: list[str], records: bytes, store: str, folder: str) -> tuple[dict[str, Any], bytes]:
    """Run a command in a fresh process: what the clock saw, and what the command wrote."""
    report = os.path.join(folder, "report.json")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RB_STORE": store}
    command = [sys.executable, __file__, "--inside", report, *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run(command, input=records, stdout=subprocess.PIPE, env=environment, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(Path(report).read_text())
    total = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found["places"]["start"] += max(total - sum(found["places"].values()), 0)
    return {**found, "total": total}, out


def published() -> str:
    spec = importlib.util.find_spec("pyautoattack")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("pyautoattack is not installed; run this with the Python that `make test` set up.")
    return str(Path(spec.submodule_search_locations[0]) / "examples" / "model_test.pt")


# Each part is a pipe: every stage is a command of its own and gets what the one before it wrote.
NETWORK = "rb-arch --index 13714 --cells 1 --channels 16"
SHORT = "--epochs 3 --eps 32"
DEMO = "'none <= 1 and kernel_params >= 18'"  # as in demo.sh


def parts(data: str | None, robust: str | None) -> dict[str, list[str]]:
    trained = [NETWORK, f"rb-train --method pgd {SHORT}"]
    found = {
        "demo": [
            f"rb-arch --sample 3 --seed 3 --cells 1 --where {DEMO}",
            "rb-train --method erm,trades --eps 32 --attack-steps 4 --step-size 16",
            "rb-attack pgd --eps 32",
            "rb-pr --gamma 0.3 --rho 0.05 --samples 50",
            "rb-score --metric acc,pgd20.32,pr.uniform.0.3,probacc.uniform.0.3.0.05",
            "rb-rank --format table",
        ],
        "train-pgd": trained,
        "train-trades": [NETWORK, f"rb-train --method trades {SHORT}"],
        "pr-digits": [*trained, "rb-pr --gamma 0.3 --samples 100"],
        "corrupt-digits": [*trained, "rb-corrupt all"],
    }
    if data:
        images = f"--dataset imagefolder:{os.path.abspath(data)}"
        resnet = f"--checkpoint {published()} --arch resnet18 {images}"
        found["fgsm-resnet18"] = [f"rb-attack fgsm --eps 8 {resnet} --n 200"]
        found["pgd-resnet18"] = [f"rb-attack pgd --eps 8 {resnet} --n 64"]
        found["pr-resnet18"] = [f"rb-pr --gamma 0.03 --samples 20 {resnet} --n 64"]
        if robust:
            network = f"--checkpoint {os.path.abspath(robust)} {images}"
            found["corrupt-cifar"] = [f"rb-corrupt all {network} --n 500"]
    return found


def profile(stages: list[str], name: str, lines: int) -> None:
    """Run the stages one after another, and show what counts: the last, or all of the demo."""
    records = b""
    with tempfile.TemporaryDirectory() as folder:
        for stage in stages:
            found, records = measured(shlex.split(stage), records, os.path.join(folder, "store"), folder)
            if name != "demo" and stage is not stages[-1]:
                continue
            total = found["total"]
            shares = sorted(found["places"].items(), key=lambda item: -item[1])
            share = {place: round(100 * seconds / total, 1) for place, seconds in shares}
            line = {"part": name, "command": stage.replace(folder, "FOLDER"), "seconds": round(total, 2)}
            print(json.dumps({**line, "wall": round(found["wall"], 2), "percent": share}), flush=True)
            dear = [item for item in Counter(found["lines"]).most_common() if item[0].split()[0] != "passes"]
            for place, seconds in dear[:lines]:
                print(f"    {seconds:7.3f} s  {place}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2], sys.argv[3], sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="CIFAR-10 as images: FOLDER/test/<class>/...")
    parser.add_argument("--robust", help="a checkpoint of NAS-Bench-201 for them")
    parser.add_argument("--only", help="parts to run, separated by commas")
    parser.add_argument("--lines", type=int, default=0, help="the dearest lines to show with each [0]")
    args = parser.parse_args()
    known = parts(args.data, args.robust)
    for name in args.only.split(",") if args.only else known:
        if name not in known:
            parser.error(f"--only has '{name}'. Choose from: {', '.join(known)}.")
        profile(known[name], name, args.lines)


if __name__ == "__main__":
    main()
