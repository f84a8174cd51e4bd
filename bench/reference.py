"""The robust network's reference values, reproduced: rb-attack on 500 real images, beside what others found.

    python bench/reference.py --data FOLDER --checkpoint FILE [--precision fp32] [--aa]

FOLDER is CIFAR-10 as JPEGs (test/CLASS/0000.jpg ...), FILE the NAS-Bench-201 network 13714 with 16 channels
that was trained by PGD-2 on it. The references are torchattacks' and pyautoattack's, one run each on images
0000 to 0049 of each class (AutoAttack: on every fifth of them). One JSON line a figure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REFERENCE = {
    "acc": 0.722,
    "fgsm.8": 0.418,
    "pgd20.1": 0.703,
    "pgd20.2": 0.648,
    "pgd20.4": 0.546,
    "pgd20.8": 0.379,
    "pgd20.16": 0.114,
    "apgd-ce.8": 0.356,
    "aa.8": 0.36,
}
RUNS = (
    ["fgsm", "--eps", "8"],
    ["pgd", "--steps", "20", "--iterate", "last", "--eps", "1,2,4,8,16"],
    ["apgd-ce", "--eps", "8"],
)


def linked(data: Path, folder: Path, every: int) -> Path:
    """A folder of links to every `every`-th of the images 0000 to 0049 of each class."""
    for images in sorted((data / "test").iterdir()):
        (folder / "test" / images.name).mkdir(parents=True)
        for number in range(0, 50, every):
            name = f"{number:04d}.jpg"
            (folder / "test" / images.name / name).symlink_to((images / name).absolute())
    return folder


def measured(run: list[str], folder: Path, options: argparse.Namespace, store: Path) -> dict[str, float]:
    """The metrics of one run of rb-attack."""
    tool = Path(sys.executable).parent / "rb-attack"
    command = [str(tool), *run, "--checkpoint", options.checkpoint, "--dataset", f"imagefolder:{folder}"]
    command += ["--precision", options.precision, "--seed", str(options.seed), "-q"]
    environment = {**os.environ, "RB_STORE": str(store)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)["metrics"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, type=Path, help="the image folder")
    parser.add_argument("--checkpoint", required=True, help="the network")
    parser.add_argument("--precision", default="auto", help="of the searches [auto]")
    parser.add_argument("--seed", type=int, default=0, help="of the random starts [0]")
    parser.add_argument("--aa", action="store_true", help="AutoAttack too (minutes)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        store = Path(made, "store")
        found: dict[str, float] = {}
        folder = linked(options.data, Path(made, "all"), 1)
        for run in RUNS:
            found |= measured(run, folder, options, store)
        if options.aa:
            few = linked(options.data, Path(made, "fifth"), 5)
            found |= {"aa.8": measured(["aa", "--eps", "8"], few, options, store)["aa.8"]}
    for name, wanted in REFERENCE.items():
        if name in found:
            line = {"figure": name, "ours": round(found[name], 4), "reference": wanted}
            print(json.dumps({**line, "difference": round(found[name] - wanted, 4)}))


if __name__ == "__main__":
    main()
