"""The linear functions that bound piecewise linear operations: ReLU and max pooling.

Shapes are those of `operations`. ReLU: Zhang et al. 2018, arXiv:1811.00866, section 3.3 (adaptive slopes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from rbtools.certification import rounding
from rbtools.certification.operations import (
    Backward,
    Operation,
    Step,
    ValueBounds,
    as_rows,
    contract,
    contract_alike,
    flattened,
    unflattened,
)


class Rectifier(Operation):
    """ReLU: max(x, 0).

    Where the sign of x is not known, it is between slope * x, slope 1 if u > -l and else 0, and the line
    through (l, 0) and (u, u).
    """

    def interval(self, inputs: Sequence[ValueBounds]) -> ValueBounds:
        return ValueBounds(inputs[0].lower.clamp_min(0), inputs[0].upper.clamp_min(0))

    def step(self, inputs: Sequence[ValueBounds], dtype: torch.dtype) -> Step:
        lower, upper = inputs[0]
        active, unstable = lower >= 0, (lower < 0) & (upper > 0)
        below = (active | (unstable & (upper > -lower))).to(dtype)
        # 1 and not the width where the sign is known: its gradient, where the width is 0, is NaN times 0.
        width = torch.where(unstable, upper - lower, 1.0)
        slope = torch.where(unstable, upper / width, active.to(width.dtype)).to(dtype)
        # The line has to be above 0 at l and above u at u with the slope as it was rounded.
        above = torch.maximum(-slope * lower, upper - slope * upper)
        error = (upper - lower) * (8 * torch.finfo(dtype).eps)
        intercept = torch.where(unstable, above + error, 0.0)
        # The ReLU is at most `most` above its lower line, and nowhere below slope * x, as slope <= 1.
        most = torch.where(unstable, torch.where(below > 0, -lower, upper) + error, 0.0)
        if len(lower) == 1 and not torch.is_grad_enabled():
            return _of_open_columns(unstable, *(part.to(dtype) for part in (slope, below, intercept, most)))

        def step(coefficients: Tensor, both: bool) -> Backward:
            positive, negative = coefficients.clamp_min(0), coefficients.clamp_max(0)
            before = torch.addcmul(positive * as_rows(below), negative, as_rows(slope))
            constant = contract_alike(negative, intercept)
            gap = contract_alike(positive, most) - constant if both else 0.0
            return Backward([before], constant, gap)

        return step


def _of_open_columns(unstable: Tensor, slope: Tensor, below: Tensor, intercept: Tensor, most: Tensor) -> Step:
    """ReLU's step for one image, (1, ...) each. The signs of coefficients matter only in the few columns of
    values with an open sign. The others are multiplied by the slope."""
    shape, slopes = slope.shape[1:], flattened(slope, 1)
    columns = flattened(unstable, 1)[0].nonzero()[:, 0]
    flat = (flattened(part, 1)[0, columns] for part in (slope, below, intercept, most))
    open_slope, open_below, open_intercept, open_most = flat

    def step(coefficients: Tensor, both: bool) -> Backward:
        rows = flattened(coefficients, 2)[0]
        before = rows * slopes
        open_rows = rows[:, columns]
        positive, negative = open_rows.clamp_min(0), open_rows.clamp_max(0)
        before.index_copy_(1, columns, torch.addcmul(positive * open_below, negative, open_slope))
        constant = contract_alike(negative[None], open_intercept[None])
        gap = contract_alike(positive[None], open_most[None]) - constant if both else 0.0
        return Backward([unflattened(before, shape)[None]], constant, gap)

    return step


@dataclass(frozen=True, eq=False)
class MaxPooled(Operation):
    """Maxima over windows of (N, C, H, W).

    The maximum is at least the input with the largest lower bound; it is that input where the others' upper
    bounds are below, and else at most the largest upper bound.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    ceil: bool

    def _pooled(self, values: Tensor) -> Tensor:
        return F.max_pool2d(values, self.kernel, self.stride, self.padding, self.dilation, self.ceil)

    def interval(self, inputs: Sequence[ValueBounds]) -> ValueBounds:
        return ValueBounds(self._pooled(inputs[0].lower), self._pooled(inputs[0].upper))

    def error(self, inputs: Sequence[ValueBounds]) -> Tensor | None:
        """The coefficients of an input are summed over the windows that it is in."""
        return self._pooled(inputs[0].magnitude) * rounding.gamma(0, math.prod(self.kernel))

    def _unfolded(self, values: Tensor, pads: list[int]) -> Tensor:
        """The inputs of each window, (N, C, h * w, windows); -inf outside."""
        padded = F.pad(values, pads, value=-math.inf)
        columns = F.unfold(padded, self.kernel, self.dilation, 0, self.stride)
        return columns.view(len(values), values.shape[1], -1, columns.shape[-1])

    def step(self, inputs: Sequence[ValueBounds], dtype: torch.dtype) -> Step:
        return partial(self._backward, inputs[0])

    def _backward(self, bounds: ValueBounds, coefficients: Tensor, both: bool) -> Backward:
        lower, upper = bounds
        n, rows, _, *windows = coefficients.shape
        size = lower.shape[2:]
        pads = []  # at both ends of width and height, so that all windows fit exactly
        for i in (1, 0):
            extent = (windows[i] - 1) * self.stride[i] + self.dilation[i] * (self.kernel[i] - 1) + 1
            pads += [self.padding[i], extent - self.padding[i] - size[i]]
        least, most = self._unfolded(lower, pads), self._unfolded(upper, pads)
        best, position = least.max(2, keepdim=True)
        others = most.scatter(2, position, -math.inf).amax(2, keepdim=True)
        decided = (best >= others).to(coefficients.dtype)
        largest = most.amax(2, keepdim=True) * (1 - decided)
        flat = coefficients.flatten(3)[:, :, :, None]
        positive, negative = flat.clamp_min(0), flat.clamp_max(0)
        of_best = positive + negative * decided[:, None]
        spread = of_best.new_zeros(n, rows, *least.shape[1:])
        spread.scatter_(3, position[:, None].expand(n, rows, *position.shape[1:]), of_best)
        padded = (size[0] + pads[2] + pads[3], size[1] + pads[0] + pads[1])
        columns = spread.flatten(2, 3).flatten(0, 1)
        before = F.fold(columns, padded, self.kernel, self.dilation, 0, self.stride)
        before = F.pad(before, [-pad for pad in pads]).unflatten(0, (n, rows))
        spare = (most.amax(2, keepdim=True) - best) * (1 - decided)
        gap = contract_alike(flat.abs(), spare) if both else 0.0
        return Backward([before], contract(negative, largest), gap)
