"""Pull the plug at random moments: nothing is lost, nothing differs, nothing is damaged.

    python bench/fault.py [--rounds 50] [--seed 0] [--jobs 2]

A pipe of small trainings and evaluations is killed with SIGKILL, whole process group at once, after a
random time, and started again on the same store until it ends by itself; then a new store is begun.
When all rounds are done, every finished run must equal an undisturbed one (times aside), every record
that a killed run had written must be among them unchanged, and every file of every store must fit its
checksum. One JSON line says how that went.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rbtools.store import Store
from rbtools.store.content_store import hash_of_file, unsealed

PIPE = (
    "rb-arch --sample 6 --seed 1 --cells 1 --channels 4 |"
    " rb-train --method erm,pgd --epochs 3 --attack-steps 2 --batch-size 256 -q JOBS |"
    " rb-attack pgd --steps 5 --eps 8,16 -q JOBS |"
    " rb-pr --gamma 0.1 --samples 20 -q JOBS"
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=50, help="how many times to pull the plug [50]")
    parser.add_argument("--seed", type=int, default=0, help="of the moments [0]")
    parser.add_argument("--jobs", type=int, default=1, help="workers of each stage [1]")
    options = parser.parse_args()
    pipe = PIPE.replace("JOBS", f"--jobs {options.jobs}")
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        wanted, killed = run(pipe, Path(folder, "undisturbed"), None)
        alone = time.perf_counter() - start
        assert wanted and not killed
        kills = ends = different = damaged = written = lost = 0
        stores = 0
        while kills < options.rounds:
            store = Path(folder, f"store-{stores}")
            stores += 1
            while True:
                limit = chance.uniform(0.5, 1.1 * alone) if kills < options.rounds else None
                records, killed = run(pipe, store, limit)
                if not killed:
                    break
                kills += 1
                written += len(records)
                lost += sum(record not in wanted for record in records)
            ends += 1
            if records != wanted:
                different += 1
                for record in records:
                    if record not in wanted:
                        print("differs:", json.dumps(record), file=sys.stderr)
            damaged += len(damage(store))
    line = {
        "figure": "fault test",
        "rounds": kills,
        "runs that ended": ends,
        "records each": len(wanted),
        "jobs": options.jobs,
        "runs that differ": different,
        "records written before a kill": written,
        "of them lost or changed": lost,
        "damaged files": damaged,
        "seconds undisturbed": round(alone, 1),
    }
    print(json.dumps(line))
    sys.exit(bool(different or damaged or lost))


def run(pipe: str, store: Path, limit: float | None) -> tuple[list[Any], bool]:
    """Run the pipe for at most `limit` seconds: (its records without times, whether it was killed).

    A killed run may have written a part of its last line: only whole ones count.
    """
    environment = {**os.environ, "RB_STORE": str(store)}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    process = subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", pipe],
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        return records(out), True
    if process.returncode:
        raise SystemExit(f"the pipe ended with status {process.returncode}")
    return records(out), False


def records(out: bytes) -> list[Any]:
    """The whole lines of an output as records without times."""
    return [timeless(json.loads(line)) for line in out.splitlines(keepends=True) if line.endswith(b"\n")]


TIMES = {"seconds", "seconds_per_epoch"}


def timeless(value: Any) -> Any:
    """A record without what depends on the clock."""
    if isinstance(value, dict):
        if value.get("metric") in TIMES:
            return None
        return {key: timeless(item) for key, item in sorted(value.items()) if key not in TIMES}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def damage(folder: Path) -> list[Path]:
    """The files of a store whose content does not fit their name or their checksum."""
    store = Store(folder)
    objects = [path for path in store.files("objects") if hash_of_file(path) != path.name]
    others = [
        path
        for kind in ("results", "outcomes", "state")
        for path in store.files(kind)
        if unsealed(path.read_bytes()) is None
    ]
    return [*objects, *others]


if __name__ == "__main__":
    main()
