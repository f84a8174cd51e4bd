"""Sizes of FILE.adv: 10,000 images of 3x32x32 pixels at 8/255, with random differences in three forms.

    python bench/evidence.py [--images 10000]

One JSON line a form. How many tampered claims are refused is a test, at as many places as wanted:

    RBTOOLS_TEST_TAMPERS=100 pytest tests/evaluation/test_evidence.py -k tampered_file
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from rbtools.evaluation import adv_file

EPS, PIXELS, BLOCK = 8, 3 * 32 * 32, 128


def megabytes(form: int, choices: list[int], count: int) -> float:
    """The size of `count` images whose pixels are moved by one of these numbers of levels each."""
    draws, size = np.random.default_rng(0), 0
    for start in range(0, count, BLOCK):
        ids = np.arange(start, min(start + BLOCK, count))
        levels = draws.choice(np.array(choices, np.int8), (len(ids), PIXELS))
        exact = np.zeros(levels.shape, np.float32)
        size += len(adv_file.packed(ids, np.full(len(ids), form, np.uint8), levels, exact, EPS))
    return size / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=10_000)
    count = parser.parse_args().images
    for figure, form, choices in (
        ("every pixel by 8 levels, up or down", adv_file.COARSE, [-EPS, EPS]),
        ("by 8 levels up, none, or 8 down", adv_file.COARSE, [-EPS, 0, EPS]),
        ("any of 17 levels", adv_file.LEVELS, list(range(-EPS, EPS + 1))),
    ):
        line = {"figure": figure, "images": count, "MB": round(megabytes(form, choices, count), 2), "goal": 8}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
