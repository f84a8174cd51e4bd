"""Kill a node of a Ray cluster in the middle of the work: how many records are lost, or differ?

    python bench/ray_fault.py [--rounds 4] [--records 6] [--seed 0]

A cluster of two nodes on this machine trains and attacks some small networks. In every round the second
node is killed, all its processes at once, while it works on a task and at a random moment after that. What
comes out must be what one local worker makes of the same records (times aside). One JSON line says how that
went.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fault import damage, timeless
from ray_nodes import Cluster

ARCHS = "rb-arch --seed 1 --cells 1 --channels 4 --sample"
TRAIN = "rb-train --epochs 8 --batch-size 256 -q"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=4, help="how many nodes to kill [4]")
    parser.add_argument("--records", type=int, default=6, help="how many networks [6]")
    parser.add_argument("--seed", type=int, default=0, help="of the moments [0]")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        subprocess.run(f"{ARCHS} {options.records} > archs.jsonl", shell=True, check=True)
        start = time.perf_counter()
        wanted = records(pipe("", "alone"))
        seconds = [round(time.perf_counter() - start, 1)]
        lost = different = damaged = 0
        cluster = Cluster(cpus=1)
        try:
            for number in range(1, options.rounds + 1):
                start = time.perf_counter()
                found = one_round(cluster, f"store-{number}", chance.uniform(0, 5))
                seconds.append(round(time.perf_counter() - start, 1))
                lost += len(wanted) - len([record for record in found if "error" not in record])
                different += sum(one != other for one, other in zip(found, wanted, strict=False))
                damaged += len(damage(Path(f"store-{number}")))
        finally:
            cluster.stop()
    line = {
        "figure": "ray fault test",
        "nodes killed": options.rounds,
        "records each": len(wanted),
        "records lost": lost,
        "records that differ": different,
        "damaged files": damaged,
        "seconds": {"local, undisturbed": seconds[0], "with a node killed": seconds[1:]},
    }
    print(json.dumps(line))
    sys.exit(bool(lost or different or damaged))


def pipe(engine: str, store: str, **options: Any) -> subprocess.Popen[bytes]:
    work = f"{engine} --store {store}"
    line = f"{TRAIN} {work} archs.jsonl | rb-attack fgsm -q {work}"
    return subprocess.Popen(["bash", "-o", "pipefail", "-c", line], stdout=subprocess.PIPE, **options)


def records(process: subprocess.Popen[bytes]) -> list[Any]:
    """What the pipe writes, times aside; the work failed where its status says so."""
    output = process.communicate()[0]
    if process.returncode:
        print(f"the pipe ended with status {process.returncode}", file=sys.stderr)
    return [timeless(json.loads(line)) for line in output.splitlines()]


def one_round(cluster: Cluster, store: str, pause: float) -> list[Any]:
    """Run the pipe on the cluster and kill the second node some seconds after it has begun a task."""
    cluster.start_second()
    engine = f"--engine ray --ray-address {cluster.address}"
    process = pipe(engine, store, env={**os.environ, **cluster.access})
    try:
        while not cluster.tasks("second"):
            if process.poll() is not None:
                raise SystemExit("the pipe ended before a node could be killed")
            time.sleep(0.05)
        time.sleep(pause)
        cluster.kill_second()
        return records(process)
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
