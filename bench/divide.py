"""One model over several workers: what dividing an evaluation gains, and what kills cost.

    python bench/divide.py [--images 1024] [--repeats 3]   one worker, two workers, two threads
    python bench/divide.py --overhead [--repeats 3]        one process, with its batches leased and not
    python bench/divide.py --kill 50 [--seed 0]            workers and whole commands killed at random
    python bench/divide.py --kill-node 10                  a node of a Ray cluster of two killed at random

A NAS-Bench-201 network with random weights on random images of 32x32 pixels, which carry the labels that the
network gives them; so every attack has work to do and nothing is downloaded. Seconds are of whole commands,
start-up included; those of the processors tell what dividing costs where others use the machine too. One JSON
line a figure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rbtools import models
from rbtools.attacks import ATTACKS
from rbtools.corruptions import CORRUPTIONS
from rbtools.evaluation.tasks import AccuracyTask, AttackTask, CorruptionTask
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import CheckpointHints, record_of
from rbtools.jobs.evaluate_record import run_task
from rbtools.spaces import sized
from rbtools.store import Store
from rbtools.store.content_store import unsealed

BIN = Path(sys.executable).parent
WAYS = {"1 worker, 1 thread": (1, 1), "2 workers, 1 thread": (2, 1), "1 worker, 2 threads": (1, 2)}
FOUR = ("brightness", "contrast", "fog", "gaussian_noise")
COMMANDS = {
    "AutoAttack": "rb-attack aa --eps 24",  # nearly all images break in its first attacks
    "PR": "rb-pr --gamma 0.05 --samples 30",
    "corruptions": "rb-corrupt all",
}


def make(folder: Path, images: int) -> list[str]:
    """A data set and a checkpoint in the folder; the options that name them."""
    torch.manual_seed(0)
    arch = sized("nasbench201", channels=16, cells=1).arch(13714)
    network = models.build(arch, classes=10, shape=(3, 32, 32)).eval()
    pixels = np.random.default_rng(0).integers(0, 256, (images, 32, 32, 3), dtype=np.uint8)
    with torch.no_grad():
        inputs = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div(255)
        labels = torch.cat([network(part).argmax(1) for part in inputs.split(64)]).numpy()
    labels[:10] = range(10)  # every class is there
    np.savez(folder / "random.npz", x_test=pixels, y_test=labels)
    torch.save(network.state_dict(), folder / "net.pt")
    words = [
        "--checkpoint",
        "net.pt",
        "--arch",
        arch["str"],
        "--normalize",
        "none",
        "--dataset",
        "npz:random.npz",
    ]
    return [*words, "--device", "cpu", "-q"]


def command(line: str, words: list[str], jobs: int, threads: int, store: str) -> list[str]:
    tool, *rest = line.split()
    return [str(BIN / tool), *rest, *words, "--jobs", str(jobs), "--threads", str(threads), "--store", store]


def seconds(line: str, words: list[str], jobs: int, threads: int, folder: Path) -> tuple[float, float]:
    """Seconds by the clock, and of the processors."""
    shutil.rmtree(folder / "store", ignore_errors=True)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        command(line, words, jobs, threads, "store"), cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    elapsed, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return elapsed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def gains(folder: Path, words: list[str], repeats: int, figures: list[str]) -> None:
    for figure in figures:
        runs: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for _ in range(repeats):
            for way, (jobs, threads) in WAYS.items():
                runs[way].append(seconds(COMMANDS[figure], words, jobs, threads, folder))
                print(f"{figure}, {way}: %.1f s, %.1f s of the processors" % runs[way][-1], file=sys.stderr)
        clock = {way: statistics.median(run[0] for run in some) for way, some in runs.items()}
        used = {way: statistics.median(run[1] for run in some) for way, some in runs.items()}
        one, two, threads_ = clock.values()
        about: dict[str, Any] = {way: round(value, 1) for way, value in clock.items()}
        about |= {"two workers against one": round(one / two, 2)}
        about |= {"against two threads": round(threads_ / two, 2)}
        about |= {"processor seconds": {way: round(value, 1) for way, value in used.items()}}
        load = round(os.getloadavg()[0], 1)
        print(json.dumps({"figure": figure, "seconds": about, "load": load}), flush=True)


def overhead(folder: Path, words: list[str], repeats: int) -> None:
    """What leases and parts cost one process that nobody helps: its processor time, and by the clock."""
    tasks: dict[str, Any] = {
        "clean accuracy": AccuracyTask(),
        "FGSM": AttackTask(ATTACKS.build("fgsm"), (8 / 255,)),
        "four corruptions": CorruptionTask(tuple(map(CORRUPTIONS.build, FOUR)), (1, 2, 3, 4, 5)),
    }
    os.chdir(folder)
    options = dict(zip(words[::2], words[1::2], strict=False))
    hints = CheckpointHints(options["--arch"], options["--normalize"])
    for figure, task in tasks.items():
        spent: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for number in range(2 * repeats + 2):
            divide = bool(number % 2)
            shutil.rmtree("store", ignore_errors=True)
            store = Store("store")
            run = Run.of("bench", store, device="cpu", threads=1, dataset=options["--dataset"], divide=divide)
            record = record_of("net.pt", hints, run)
            before, start = time.process_time(), time.perf_counter()
            entry = run_task(record, task, run)["evals"][-1]
            spent[divide].append((time.process_time() - before, time.perf_counter() - start))
        used, clock = (
            [statistics.median(run[i] for run in spent[way][1:]) for way in (False, True)] for i in (0, 1)
        )
        about = {"ms an image": round(1000 * used[0] / entry["n"], 3)}
        about |= {"processor, %": round(100 * (used[1] / used[0] - 1), 1)}
        about |= {"clock, %": round(100 * (clock[1] / clock[0] - 1), 1)}
        load = round(os.getloadavg()[0], 1)
        print(json.dumps({"figure": f"overhead, {figure}", **about, "load": load}), flush=True)


def kills(folder: Path, words: list[str], rounds: int, seed: int, line: str) -> None:
    """Kill a worker or all of them; in the end everything is as in a run that nobody disturbed."""
    chance = random.Random(seed)
    start = time.perf_counter()
    subprocess.run(command(line, words, 2, 1, "calm"), cwd=folder, check=True, stdout=subprocess.DEVNULL)
    whole = time.perf_counter() - start
    expected = contents(folder / "calm")
    done = finished = differing = twice = 0
    while done < rounds:
        with Parts(folder / "killed") as parts:
            tool = started(command(line, words, 2, 1, "killed"), folder)
            time.sleep(chance.uniform(0.4, 1) * whole)
            workers = [] if chance.random() < 0.5 else children(tool.pid)
            if tool.poll() is None:
                done += 1
                for process in [chance.choice(workers)] if workers else [*children(tool.pid), tool.pid]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            tool.communicate()
        twice += parts.twice
        if tool.returncode == 0:
            finished += 1
            differing += contents(folder / "killed") != expected
            shutil.rmtree(folder / "killed")
            ends = {"finished": finished, "differing": differing, "parts computed twice": twice}
            print(json.dumps({"figure": "kills", "kills": done, **ends}), flush=True)


def node_kills(folder: Path, words: list[str], rounds: int, seed: int, line: str) -> None:
    """Kill a node of a Ray cluster of two while it computes tiles of one record that both work on."""
    from ray_nodes import Cluster

    chance = random.Random(seed)
    subprocess.run(command(line, words, 1, 1, "calm"), cwd=folder, check=True, stdout=subprocess.DEVNULL)
    expected = contents(folder / "calm")
    killed = differing = twice = failed = 0
    cluster = Cluster(cpus=1)
    try:
        for number in range(rounds):
            cluster.start_second()
            store = f"store-{number}"
            engine = [*command(line, words, 2, 1, store), "--engine", "ray", "--ray-address", cluster.address]
            with Parts(folder / store) as parts:
                tool = started(engine, folder, {**os.environ, **cluster.access})
                while tool.poll() is None and not (cluster.tasks("second") and parts.seen):
                    time.sleep(0.02)
                time.sleep(chance.uniform(0, 1))
                killed += bool(tool.poll() is None and cluster.tasks("second"))
                cluster.kill_second()
                tool.communicate()
            twice += parts.twice
            failed += tool.returncode != 0
            differing += contents(folder / store) != expected
            ends = {"rounds": number + 1, "while it worked": killed, "failed": failed, "differing": differing}
            ends["parts computed twice"] = twice
            print(json.dumps({"figure": "kills of a Ray node", **ends}), flush=True)
    finally:
        cluster.stop()


def started(words: list[str], folder: Path, environment: dict[str, str] | None = None) -> Any:
    return subprocess.Popen(
        words,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


class Parts:
    """Watches the parts of an evaluation in a store: how many were written, and how many more than once."""

    def __init__(self, store: Path) -> None:
        self._store, self._ending = store, threading.Event()
        self._written: dict[str, set[int]] = {}
        self._thread = threading.Thread(target=self._watch)

    @property
    def seen(self) -> int:
        return len(self._written)

    @property
    def twice(self) -> int:
        return sum(len(times) - 1 for times in self._written.values())

    def _watch(self) -> None:
        while not self._ending.wait(0.01):
            for path in self._store.glob("state/??/[!.]*"):
                with contextlib.suppress(OSError):
                    self._written.setdefault(path.name, set()).add(path.stat().st_mtime_ns)

    def __enter__(self) -> Parts:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self._thread.join()


def children(parent: int) -> list[int]:
    """The process that forks a command's workers, and the workers."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True)
    lines = [text.split(None, 2) for text in listed.stdout.splitlines()]
    spawned = {int(pid): int(above) for pid, above, words in lines if "spawn_main" in words}
    servers = [pid for pid, above in spawned.items() if above == parent]
    return servers + [pid for pid, above in spawned.items() if above in servers]


def contents(folder: Path) -> dict[str, Any]:
    """Outcomes by their keys, without times; nothing else may be left behind."""
    store = Store(folder)
    assert not list(store.files("state")), "parts were left behind"
    found = {}
    for path in store.files("outcomes"):
        data = unsealed(path.read_bytes())
        assert data is not None, f"{path} is damaged"
        found[path.name] = data.partition(b"\n")[2]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--figures", default=",".join(COMMANDS), help="some of: " + ", ".join(COMMANDS))
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--kill", type=int, default=0)
    parser.add_argument("--kill-node", type=int, default=0)
    parser.add_argument("--line", default=COMMANDS["PR"], help="the command of the kills")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        words = make(Path(name), options.images)
        if options.kill:
            kills(Path(name), words, options.kill, options.seed, options.line)
        elif options.kill_node:
            node_kills(Path(name), words, options.kill_node, options.seed, options.line)
        elif options.overhead:
            overhead(Path(name), words, options.repeats)
        else:
            gains(Path(name), words, options.repeats, options.figures.split(","))


if __name__ == "__main__":
    main()
