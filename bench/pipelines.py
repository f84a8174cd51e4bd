"""Several pipes at once on one store, same work: each unit is computed once.

python bench/pipelines.py [--pipes 4]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PIPE = (
    "rb-arch --sample 4 --seed 1 --cells 1 --channels 4 |"
    " rb-train --method erm,pgd --epochs 2 --attack-steps 2 --batch-size 256 |"
    " rb-attack pgd --steps 5 --eps 8,16"
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pipes", type=int, default=4, help="how many at once [4]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "RB_STORE": str(Path(folder, "store"))}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        start = time.perf_counter()
        pipes = [
            subprocess.Popen(
                ["bash", "-o", "pipefail", "-c", PIPE],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                text=True,
            )
            for _ in range(options.pipes)
        ]
        ended = [pipe.communicate() for pipe in pipes]
    computed = {
        tool: sum(int(n) for _, said in ended for n in re.findall(rf"{tool}: .*?(\d+) computed", said))
        for tool in ("rb-train", "rb-attack")
    }
    records = [len(out.splitlines()) for out, _ in ended]
    line = {
        "figure": f"{options.pipes} pipes at once, same work",
        "records each": records,
        "trainings computed": computed["rb-train"],
        "evaluations computed": computed["rb-attack"],
        "units": records[0],
        "seconds": round(time.perf_counter() - start, 1),
    }
    print(json.dumps(line))
    sys.exit(any(count != records[0] for count in (*records, *computed.values())))


if __name__ == "__main__":
    main()
