"""Is `rb-pr --rare` unbiased, and does its interval cover: python bench/rare.py [--records 100]

A linear network on 16 pixels in the middle of [0, 1] fails where their noise adds up to more than a
threshold. Under each noise in the L-infinity ball that is a sum of independent clamped variables, whose tail
is known from scipy's distribution functions by convolution. The thresholds are those of three probabilities.
The tool's own question measures them, with the tool's defaults; ten runs are an image, ten images a record.

One JSON line for each noise and probability: the mean of all runs as a ratio of the truth with its standard
error, and the share of the records whose 95 % interval has the truth.
"""

from __future__ import annotations

import argparse
import json
import math
import time

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from rbtools.evaluation.base import Batch, Outcome
from rbtools.evaluation.rare_failures import RareFailureTask, RareOutput
from rbtools.probabilistic import NOISES, splitting

SHAPE = (1, 4, 4)
PIXELS = math.prod(SHAPE)
GAMMA = 0.1  # from 0.5 no pixel leaves [0, 1]
CELLS = 1 << 13  # of the grid over (-1, 1)
LAWS = {"uniform": stats.uniform(-1, 2), "gaussian": stats.norm(), "laplace": stats.laplace()}
IMAGES = 10  # of a record


def shortfalls(noise: str) -> np.ndarray:
    """The law of PIXELS minus the sum of the clamped draws: its mass at multiples of 2 / CELLS from 0 on.

    A draw's mass between two points of the grid is shared by both so that its mean stays: what is wrong
    is of the second order in the width of a cell, 1e-6.
    """
    law, width = LAWS[noise], 2 / CELLS
    edges = 1 - width * np.arange(CELLS + 1)  # from the ball's upper border down
    inside = law.cdf(edges[:-1]) - law.cdf(edges[1:])
    one = np.zeros(CELLS + 1)
    one[:-1] += inside / 2
    one[1:] += inside / 2
    one[0] += law.sf(1)
    one[-1] += law.cdf(-1)
    return np.fft.irfft(np.fft.rfft(one, PIXELS * CELLS * 2) ** PIXELS)[: PIXELS * CELLS + 1]


def threshold(noise: str, wanted: float) -> tuple[float, float]:
    """A sum of draws that is exceeded with about that probability, and the probability."""
    mass = shortfalls(noise)
    tail = np.cumsum(mass) - mass / 2  # half of the point itself: the law has no atoms but at corners
    at = int(np.searchsorted(tail, wanted))
    return PIXELS - at * 2 / CELLS, float(tail[at])


class Linear(nn.Module):
    """Class 1 is ahead where the pixels' noise, in units of GAMMA, adds up to the threshold."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, images: Tensor) -> Tensor:
        ahead = (images - 0.5).flatten(1).sum(1) / GAMMA - self.limit
        return torch.stack([torch.zeros_like(ahead), ahead], dim=1)


def simulate(noise: str, wanted: float, count: int) -> None:
    """Print the line of a noise and a probability, of `count` records."""
    limit, truth = threshold(noise, wanted)
    split = splitting.Splitting()
    column = RareOutput(NOISES.build(noise), GAMMA, split, 0.95)
    question = RareFailureTask(column.noise, (GAMMA,), split)
    start, logs = time.process_time(), []
    for example in range(count * IMAGES):
        ids, label = torch.tensor([example]), torch.tensor([0])
        tile = Batch(Linear(limit), torch.full((1, *SHAPE), 0.5), label, ids, seed=0, chunk_size=1 << 20)
        (found,) = question.run(tile, [column])
        assert isinstance(found, Outcome)
        logs.append(found.values[0, 1:])
    every = torch.cat(logs).double()
    shares = every.exp()
    covered = 0
    records = every.view(-1, IMAGES, split.runs)
    for record in records.tolist():
        low, high = splitting.findings([[0, *row] for row in record])["ci95"]
        covered += low <= truth <= high
    line = {
        "noise": noise,
        "truth": truth,
        "runs": len(every),
        "ratio": round(float(shares.mean()) / truth, 4),
        "standard_error": round(float(shares.std()) / math.sqrt(len(shares)) / truth, 4),
        "records": len(records),
        "coverage": round(covered / len(records), 3),
        "cpu_seconds": round(time.process_time() - start),
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=100, help="of ten images with ten runs each [100]")
    parser.add_argument("--noise", default=",".join(LAWS), help="uniform,gaussian,laplace")
    parser.add_argument("--truth", default="1e-3,1e-6,1e-9", help="probabilities [1e-3,1e-6,1e-9]")
    args = parser.parse_args()
    for noise in args.noise.split(","):
        for wanted in map(float, args.truth.split(",")):
            simulate(noise, wanted, args.records)


if __name__ == "__main__":
    main()
