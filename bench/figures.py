"""The figures of RESULTS.md in one run: every bench, with options for a machine of two cores.

    python bench/figures.py --out FOLDER [--images CIFAR] [--robust FILE] [--leaderboard FILE] [--golden FILE]
                            [--only NAME,...] [--jobs N] [--list]

CIFAR holds CIFAR-10 as images (train/CLASS/*, test/CLASS/*), --robust is the PGD-trained network of
NAS-Bench-201, --leaderboard PRBench's file, --golden the statistics of CIFAR-10-C's generator: what needs one
that was not given is left out, and named at the end. FOLDER/NAME.out has what a bench printed, and
FOLDER/figures.jsonl a line for each: its command, seconds on the clock and of the processor, the machine's
load before and after. What is in it is not run again, so that a run which was cut off goes on.

Most figures are of the processor, for one thread, so that --jobs may run some at once; those told by the
clock are run alone, first.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rbtools.store import Store

ROOT = Path(__file__).resolve().parents[1]
# The clock decides: nothing else runs beside these.
ALONE = {
    "startup": "python bench/startup.py",
    "demo": "rm -rf {out}/demo-store && RB_STORE={out}/demo-store sh demo.sh",
    "records": "python bench/records.py",
    "workers": "python bench/workers.py",
    "cores": "python bench/cores.py",
    "corruptions-clock": "python bench/corruptions.py speed --threads 2 --data {images}/test",
}
# A network trained with PGD on digits, which some benches attack.
DIGITS = (
    "rb-arch --index 13714 --cells 1 |"
    " rb-train --method pgd --eps 32 --step-size 8 --epochs 5 > {out}/digits.jsonl"
)
# The same network by PGD-7, N-FGSM, FGSM-PGI (with and without its regulariser) and FGSM from a random start.
SINGLE_STEP = (
    "rb-arch --index 13714 --channels 8 --cells 1 --dataset {data} > {{out}}/net.jsonl;"
    " for method in 'pgd --attack-steps 7' n-fgsm"
    " fgsm-pgi 'fgsm-pgi --lambda 0' 'pgd --attack-steps 1 --step-size {step}'; do"
    " rb-train --method $method --eps {eps} {how} --threads 1 {{out}}/net.jsonl; done |"
    " rb-attack pgd --steps 20 --eps {eps} |"
    " rb-rank --pivot train.method,train.config.attack_steps,train.config.lambda"
    " --metric acc,pgd20.{eps},seconds_per_epoch --format table"
)
ATTACKS = "python bench/attacks.py --threads 1 --cpu"
RESNET = "--checkpoint {resnet} --arch resnet18 --data {images} --n 64"
SMALL = "--checkpoint {digits} --data digits --eps 32"
ROBUST = "--checkpoint {robust} --data {images}"
BESIDE = {
    "digits": DIGITS,
    "corr": "python bench/corr.py",
    "convert": "python bench/convert.py --leaderboard {leaderboard}",
    "search": "python bench/search.py",
    "leaderboard": "python bench/leaderboard.py",
    "store": "python bench/store.py",
    "datasets": "python bench/datasets.py",
    "checkpoints": "python bench/checkpoints.py",
    "checkpoints-families": "python bench/checkpoints.py --families",
    "checkpoints-robust": "python bench/checkpoints.py --robust {robust} --data {images}",
    "pipelines": "python bench/pipelines.py",
    "fault": "python bench/fault.py --rounds 16 --jobs 2 --seed 3",
    "ray-fault": "python bench/ray_fault.py",
    "reference": "python bench/reference.py --aa " + ROBUST,
    "resnet18": "python bench/cifar_resnet18.py --data {images} --part clean,pgd --eps 0.5 --n 200",
    "attacks": f"{ATTACKS} {ROBUST} --n 500 --repeats 1 --part pgd,fgsm,memory,passes",
    "attacks-resnet18": f"{ATTACKS} {RESNET} --repeats 1 --part pgd,ladder,passes --goal 10",
    "attacks-square": f"{ATTACKS} {ROBUST} --n 64 --repeats 1 --part square",
    "attacks-aa": f"{ATTACKS} {ROBUST} --n 50 --aa-n 50 --part aa",
    "attacks-aa-digits": f"{ATTACKS} {SMALL} --n 355 --aa-n 355 --part aa",
    "attacks-stages-digits": f"{ATTACKS} {SMALL} --n 96 --aa-n 96 --part stages",
    "evidence": "python bench/evidence.py",
    "passes-digits": f"{ATTACKS} {SMALL} --n 355 --part passes",
    "corruptions-speed": "python bench/corruptions.py speed --threads 1 --cpu --data {images}/test",
    "corruptions-near": "python bench/corruptions.py near --data {images}/test --golden {golden}",
    "corruptions-share": "python bench/corruptions.py share --n 64 --threads 1 --cpu --data {images}/test",
    "training": "python bench/training.py --batch 32 --threads 1 --rounds 2 --only step,clean",
    "training-methods": (
        "python bench/training.py --networks nb201-13714 --batch 16 --rounds 3 --threads 1 --only methods"
    ),
    "single-step-digits": SINGLE_STEP.format(data="digits", eps=32, step=40, how="--epochs 12 --lr 0.1"),
    "single-step-images": SINGLE_STEP.format(
        data="imagefolder:{images}", eps=8, step=10, how="--epochs 8 --lr 0.1"
    ),
    "pr": "python bench/pr.py --part sampling --samples 20 --data {images}",
    "pr-adaptive": "python bench/pr.py --part adaptive --n 128 --gamma 0.25 --check 1",
    "smoothing": "python bench/smoothing.py",
    "measures": "python bench/measures.py --part ntk,traces --threads 1",
    "rare": "python bench/rare.py",
    "coverage": "python bench/coverage_of_intervals.py",
    "profile": "python bench/profile_commands.py --data {images} --robust {robust}",
    "measures-space": "python bench/measures.py --part space --threads 1 --cells 1",
    "processors": "python bench/processors.py --together",
    "divide": "python bench/divide.py",
    "divide-kill": "python bench/divide.py --kill 50 --images 512",
    "theory": (
        "rb-arch --space fcnn --depth 3 --dataset digits --sample 12 |"
        " rb-train --preset nasrobbench201-algorithm1 --eps 0.1 --beta 0.5 --attack-steps 3 |"
        " rb-attack pgd --eps 16 | rb-measure ntk --kernel joint --eps 16 --attack-steps 3 |"
        " rb-corr --rows 'ntk.*' --cols acc,pgd20.16 --bootstrap 1000"
    ),
    "prbench-scored": (
        "rb-convert prbench {leaderboard} | rb-score --preset prbench --within dataset,arch.name |"
        " rb-rank --group train.method --ci --format table"
    ),
    **{
        f"reproduce-{name}": f"make -s reproduce-{name} REPRODUCED={{out}}/reproduced VENV={{venv}}"
        for name in ("wci", "nas-robbench-201", "nas-bench-201-robustness", "prbench", "theory")
    },
}


def published_resnet18() -> str:
    """pyautoattack has it among its examples."""
    spec = importlib.util.find_spec("pyautoattack")  # not imported: that takes seconds
    if spec is None or spec.origin is None:
        sys.exit("pyautoattack is not installed; run this with the Python that `make test` set up.")
    return str(Path(spec.origin).parent / "examples/model_test.pt")


class Figures:
    """What is run, with what, and what is known of it already."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.out = Path(asked.out).absolute()
        self.out.mkdir(parents=True, exist_ok=True)
        self.log = self.out / "figures.jsonl"
        self.given = {
            name: str(Path(path).absolute())
            for name in ("images", "robust", "leaderboard", "golden")
            if (path := getattr(asked, name))
        }
        self.given |= {
            "out": str(self.out),
            "digits": f"{self.out}/digits.pt",
            "resnet": published_resnet18(),
        }
        self.given["venv"] = str(Path(sys.executable).parent.parent)
        self.done = {one["figure"] for one in self._told() if one["status"] == 0}
        self.lock = threading.Lock()

    def _told(self) -> list[dict[str, object]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines]

    def command(self, template: str) -> str | None:
        """The shell's line, or None where something that it needs was not given."""
        try:
            return template.format_map(self.given)
        except KeyError:
            return None

    def run(self, name: str, template: str) -> None:
        command = self.command(template)
        if name in self.done or command is None:
            return
        environment = {
            **os.environ,
            "PATH": f"{self.given['venv']}/bin{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RB_CONFIG": "none",
            "RB_STORE": f"{self.out}/store",
            "OMP_NUM_THREADS": "1",
        }
        if name in ALONE:
            del environment["OMP_NUM_THREADS"]
        load, start = os.getloadavg()[0], time.perf_counter()
        with open(self.out / f"{name}.out", "w") as said, open(self.out / f"{name}.err", "w") as errors:
            process = subprocess.Popen(
                ["bash", "-o", "pipefail", "-c", command],
                cwd=ROOT,
                stdout=said,
                stderr=errors,
                env=environment,
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        line = {
            "figure": name,
            "status": process.returncode,
            "seconds": round(time.perf_counter() - start, 1),
            "cpu": round(usage.ru_utime + usage.ru_stime, 1),
            "load": [round(one, 1) for one in (load, os.getloadavg()[0])],
            "date": datetime.date.today().isoformat(),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
            "command": template,
        }
        self.done.add(name)
        with self.lock, self.log.open("a") as log:
            print(json.dumps(line), file=log, flush=True)
            print(json.dumps(line), flush=True)

    def _copy_digits(self) -> None:
        record = json.loads((self.out / "digits.jsonl").read_text() or "{}")
        if "checkpoint" in record:  # else the training failed, which the line of the figure says
            shutil.copyfile(Store(self.out / "store").object(record["checkpoint"]), self.given["digits"])

    def all(self, names: Iterable[str], jobs: int) -> None:
        """Run those named: the ones of the clock alone, the others `jobs` at a time."""
        chosen = list(names)
        for name in chosen:
            if name in ALONE:
                self.run(name, ALONE[name])
        if "digits" in chosen:
            self.run("digits", DIGITS)
            self._copy_digits()
        with ThreadPoolExecutor(jobs) as pool:
            list(
                pool.map(lambda name: self.run(name, BESIDE[name]), (one for one in chosen if one in BESIDE))
            )
        left = [name for name in chosen if self.command({**ALONE, **BESIDE}[name]) is None]
        if left:
            print(f"Left out, as their files were not named: {', '.join(left)}.", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default="figures", help="the folder of what was measured [figures]")
    for name in ("images", "robust", "leaderboard", "golden"):
        parser.add_argument(f"--{name}", metavar="PATH")
    parser.add_argument("--only", help="some, by name")
    parser.add_argument(
        "--jobs", type=int, default=1, help="how many at once, of those told by the processor [1]"
    )
    parser.add_argument("--list", action="store_true", help="print names and commands, and run nothing")
    asked = parser.parse_args()
    known = {**ALONE, **BESIDE}
    names = asked.only.split(",") if asked.only else list(known)
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"There is no figure named {', '.join(unknown)}. There are: {', '.join(known)}.")
    if asked.list:
        print("\n".join(f"{name}\t{known[name]}" for name in names))
        return
    Figures(asked).all(names, asked.jobs)


if __name__ == "__main__":
    main()
