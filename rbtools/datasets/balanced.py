"""The rule of `--n N`: which examples stand for a whole split."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rbtools.errors import RbError


def subset(labels: Tensor, n: int, seed: int) -> Tensor:
    """The first `n` of the split in a seeded order that takes the classes in turn.

    Each round takes one example of every class that is not exhausted yet, so a subset is as balanced as
    the data allow, and a subset is the beginning of every larger one. The order is made of integer
    hashes alone: no library's generator can change it.

    Shape: labels int64 (N,) -> int64 (min(n, N),) indices into the split, on the CPU.

    Raises RbError where n is below 1.
    """
    if n < 1:
        raise RbError(f"The number of examples is {n}. It must be 1 or more; leave --n out to take all.")
    classes = labels.cpu().numpy()
    indices = np.arange(len(classes), dtype=np.uint64)
    by_class = np.lexsort((_hash(indices, seed), classes))
    sizes = np.unique(classes, return_counts=True)[1]
    rounds = np.empty(len(classes), dtype=np.int64)
    rounds[by_class] = np.arange(len(classes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # Within a round the classes stand in an order of their own, away from the examples' hashes.
    turn = _hash(classes.astype(np.uint64), seed ^ 0x636C617373)
    return torch.from_numpy(np.lexsort((classes, turn, rounds))[:n].copy())


def _hash(values: np.ndarray, seed: int) -> np.ndarray:
    """64 well-mixed bits of (seed, value): SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    start = _mix(np.array([seed % 2**64], dtype=np.uint64))
    return _mix((values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + start)


def _mix(bits: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser, a bijection of uint64; products wrap around."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = bits ^ (bits >> np.uint64(31))
    return mixed
