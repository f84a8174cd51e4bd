"""The path encoding of BANANAS (White, Neiswanger and Savani, AAAI 2021) for the cells of NAS-Bench-201."""

from __future__ import annotations

from collections.abc import Sequence

from rbtools.spaces.nasbench201 import OPS

PATHS = ((3,), (0, 4), (1, 5), (0, 2, 5))
"""The edges of each path from the input to the output."""
WIDTH = len(OPS) + len(OPS) ** 2 + len(OPS) ** 3
"""One feature for each sequence of one, two or three operations: 155."""


def features(ops: Sequence[int]) -> list[int]:
    """The features that a cell has: the sequences of operations along its paths.

    The two paths of two edges share their features, so a cell has three or four of them.
    """
    found = []
    for path in PATHS:
        number = 0
        for edge in reversed(path):
            number = number * len(OPS) + ops[edge]
        shorter = sum(len(OPS) ** length for length in range(1, len(path)))
        found.append(shorter + number)
    return sorted(set(found))
