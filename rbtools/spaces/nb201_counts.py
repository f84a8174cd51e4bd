"""The costs of a NAS-Bench-201 network in closed form, without building it.

The skeleton is AutoDL's (Dong & Yang, ICLR 2020): a 3x3 convolution, three stages of cells at C, 2C and 4C
channels, a residual block of stride 2 between stages, a linear classifier. A convolution on a dead edge
counts too: the network has its weights.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import NamedTuple

from rbtools.errors import RbError
from rbtools.spaces.nb201_cells import CONV1, CONV3, Ops

Shape = tuple[int, int, int]

_KERNEL = (0, 0, 1, 9, 0)


class Cost(NamedTuple):
    """Parameters or multiply-adds: those of the skeleton, and of one operation in every cell."""

    skeleton: int
    conv1: int
    conv3: int

    def of(self, ops: Ops) -> int:
        return self.skeleton + ops.count(CONV1) * self.conv1 + ops.count(CONV3) * self.conv3


def params(ops: Ops, channels: int = 16, cells: int = 5, classes: int = 10, in_channels: int = 3) -> int:
    """The number of trainable parameters (without BatchNorm's running statistics).

    Raises RbError for a count below 1.
    """
    return param_cost(channels, cells, classes, in_channels).of(ops)


def macs(ops: Ops, channels: int = 16, cells: int = 5, classes: int = 10, shape: Shape = (3, 32, 32)) -> int:
    """Multiply-adds of the convolutions and the classifier for one image of `shape` (C, H, W).

    AutoDL's FLOPs are these plus `classes`, its count of the classifier's bias.
    Raises RbError for a count below 1 and for an image that the two reductions do not halve.
    """
    return mac_cost(channels, cells, classes, tuple(shape)).of(ops)


@cache
def param_cost(channels: int, cells: int, classes: int, in_channels: int) -> Cost:
    check_counts(channels=channels, cells=cells, classes=classes, in_channels=in_channels)
    widths = [channels, 2 * channels, 4 * channels]
    stem = 9 * in_channels * channels + 2 * channels
    # A residual block: two 3x3 convolutions with BatchNorm, and a bare 1x1 on the shortcut.
    reductions = sum(9 * c * 2 * c + 4 * c + 9 * 4 * c * c + 4 * c + c * 2 * c for c in widths[:2])
    head = 2 * widths[2] + widths[2] * classes + classes
    conv1, conv3 = (cells * sum(k * c * c + 2 * c for c in widths) for k in (1, 9))
    return Cost(stem + reductions + head, conv1, conv3)


@cache
def mac_cost(channels: int, cells: int, classes: int, shape: Shape) -> Cost:
    in_channels, height, width = shape
    check_counts(channels=channels, cells=cells, classes=classes, in_channels=in_channels)
    _check_image(height, width)
    stages = [(channels << s, (height >> s) * (width >> s)) for s in range(3)]
    stem = 9 * in_channels * channels * height * width
    reductions = sum((9 * (c // 2) * c + 9 * c * c + (c // 2) * c) * pixels for c, pixels in stages[1:])
    conv1, conv3 = (cells * sum(k * c * c * pixels for c, pixels in stages) for k in (1, 9))
    return Cost(stem + reductions + 4 * channels * classes, conv1, conv3)


def check_counts(**counts: object) -> None:
    """Raise RbError unless each is a whole number of 1 or more."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            what = name.replace("_", " ")
            raise RbError(
                f"A NAS-Bench-201 network cannot have {what} = {value!r}. Give a whole number of 1 or more."
            )


def _check_image(height: int, width: int) -> None:
    """A reduction adds two branches: a convolution of stride 2, padding 1, rounds up, the pooling down."""
    sides = [height, width]
    for number in ("first", "second"):
        convolved, pooled = [(side - 1) // 2 + 1 for side in sides], [side // 2 for side in sides]
        if convolved != pooled or 0 in pooled:
            raise RbError(
                f"A NAS-Bench-201 network cannot take images of {height}x{width} pixels: at its {number}"
                f" reduction the convolution gives {_by(convolved)} and the shortcut {_by(pooled)}."
                " Height and width must be multiples of 4; resize or crop the images, for example to 32x32."
            )
        sides = pooled


def _by(sides: list[int]) -> str:
    return f"{sides[0]}x{sides[1]}"


def kernel_params(ops: Ops) -> int:
    """1 for each 1x1 convolution and 9 for each 3x3, on all edges: 0 to 54."""
    return ops.count(CONV1) + 9 * ops.count(CONV3)


def live_kernel_params(ops: Ops) -> int:
    """The same over the live edges only.

    By this count 408 class representatives have 18, as in Jung et al. (ICLR 2023).
    """
    return sum([_KERNEL[op] for op in itertools.compress(ops, live_edges(ops))])


def live_edges(ops: Ops) -> tuple[bool, ...]:
    """Which edges lie on a path from node 0 to node 3 without `none`. If there is no such path, the logits
    are constant and the accuracy is chance.
    """
    a, b, c, d, e, f = map(bool, ops)  # NONE is 0
    return (a and (e or (c and f)), b and f, a and c and f, d, a and e, f and (b or (a and c)))
