"""The operations of a network: interval bounds of their outputs, and linear lower bounds taken backwards.

Values have the shape (N, ...) of an image's values; coefficients (N, R, ...), R linear functions of an
image's values. Backward, a function with coefficients a of an operation's output is bounded from below by one
of its inputs, and a constant (Zhang et al. 2018, arXiv:1811.00866; Xu et al. 2020, arXiv:2002.12920).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rbtools.certification import rounding


class ValueBounds(NamedTuple):
    """Lower and upper bounds (N, ...) of values, in float64; in training of the type of the network."""

    lower: Tensor
    upper: Tensor

    @property
    def magnitude(self) -> Tensor:
        """The largest absolute values (N, ...)."""
        return torch.maximum(self.lower.abs(), self.upper.abs())

    def widened(self, error: Tensor) -> ValueBounds:
        """The bounds of values that may differ by `error`."""
        return ValueBounds(self.lower - error, self.upper + error)


class Backward(NamedTuple):
    """The coefficients (N, R, ...) of each input, and the constant (N, R) in float64, of a lower bound.

    gap: with a constant that is larger by this (N, R), the same coefficients give an upper bound.
    """

    coefficients: list[Tensor]
    constant: Tensor | float = 0.0
    gap: Tensor | float = 0.0


Step = Callable[[Tensor, bool], Backward]


def contract(coefficients: Tensor, values: Tensor) -> Tensor:
    """Sums (N, R) of coefficients (N, R, ...) times values (N or 1, ...), accumulated in float64."""
    products: Tensor = coefficients * values[:, None].to(coefficients.dtype)
    sums: Tensor = products.flatten(2).sum(-1, dtype=torch.float64)
    return sums


def contract_alike(coefficients: Tensor, values: Tensor) -> Tensor:
    """The same for products that all have one sign, rounded away from 0."""
    rows, values = _flat(coefficients, 2), _flat(values, 1).to(coefficients.dtype)
    sums = torch.matmul(rows, values[..., None])[..., 0].double()
    return sums * (1 + (rows.shape[-1] + 8) * torch.finfo(coefficients.dtype).eps)


def _flat(values: Tensor, dim: int) -> Tensor:
    """Values flattened from a dimension on, the channels of images last, as they lie in memory."""
    return (values.movedim(dim, -1) if values.ndim == dim + 3 else values).flatten(dim)


def _unflat(rows: Tensor, shape: Sequence[int]) -> Tensor:
    """Rows (R, n) as `_flat` makes them, in the shape (R, *shape) again."""
    if len(shape) == 3:
        return rows.view(len(rows), shape[1], shape[2], shape[0]).movedim(-1, 1)
    return rows.view(len(rows), *shape)


def _each(function: Callable[[Tensor], Tensor], coefficients: Tensor) -> Tensor:
    """A function of (N, ...) applied to coefficients (N, R, ...)."""
    rows = function(coefficients.flatten(0, 1))
    return rows.view(*coefficients.shape[:2], *rows.shape[1:])


def _as_rows(values: Tensor) -> Tensor:
    """Values (N, ...) as (N, 1, ...), in memory as coefficients are."""
    if values.ndim == 4:
        values = values.contiguous(memory_format=torch.channels_last)
    return values[:, None]


class Operation:
    """One operation: outputs of the values of its inputs."""

    def interval(self, inputs: Sequence[ValueBounds]) -> ValueBounds:
        """Bounds of the outputs in real numbers, from bounds of the inputs."""
        raise NotImplementedError

    def error(self, inputs: Sequence[ValueBounds]) -> Tensor | None:
        """A bound (N or 1, ...) of the rounding error of the outputs; None where they are exact."""
        return None

    def step(self, inputs: Sequence[ValueBounds], dtype: torch.dtype) -> Step:
        """The way back for coefficients (N, R, ...) of this type, from bounds of the inputs: those of the
        inputs whose linear function, plus the constant, is a lower bound.

        Called with `both` as its second argument, a step gives the `gap` to an upper bound, too.
        """
        raise NotImplementedError

    def backward(self, coefficients: Tensor, inputs: Sequence[ValueBounds]) -> Backward:
        """One step, for lower bounds."""
        return self.step(inputs, coefficients.dtype)(coefficients, False)

    def row_norm(self, scale: Tensor) -> Tensor | None:
        """L2 norms (1, ...) of the rows of the Jacobian, where that of the input is a diagonal of `scale`
        (1, ...); None where they are not known."""
        return None

    keeps_diagonal = False


class Input(Operation):
    """The image."""

    keeps_diagonal = True


class Affine(Operation):
    """An affine function of one input.

    bias: what it adds, (1, ...) that broadcasts to the outputs, or None.
    """

    bias: Tensor | None
    products: ClassVar[tuple[int, int]] = (0, 0)  # terms of a sum, forward and backward

    def linear(self, values: Tensor) -> Tensor:
        """The function without its bias."""
        raise NotImplementedError

    def absolute(self, values: Tensor) -> Tensor:
        """The same with absolute weights, for values of 0 or more."""
        raise NotImplementedError

    def transpose(self, coefficients: Tensor, shape: Sequence[int]) -> Tensor:
        """Coefficients (M, ...) of inputs of this shape, from those of outputs (M, ...)."""
        raise NotImplementedError

    def transposed(self, coefficients: Tensor, shape: Sequence[int]) -> Tensor:
        """The same for coefficients (N, R, ...)."""
        return _each(lambda rows: self.transpose(rows, shape), coefficients)

    def absolute_bias(self) -> Tensor | float:
        """The sum of the absolute values of what is added, (1, ...)."""
        return 0.0 if self.bias is None else self.bias.abs()

    def interval(self, inputs: Sequence[ValueBounds]) -> ValueBounds:
        (lower, upper) = inputs[0]
        centre = self.linear((lower + upper) / 2)
        centre = centre if self.bias is None else centre + self.bias
        radius = self.absolute((upper - lower) / 2)
        return ValueBounds(centre - radius, centre + radius)

    def error(self, inputs: Sequence[ValueBounds]) -> Tensor | None:
        size = self.absolute(inputs[0].magnitude) + self.absolute_bias()
        error = size * rounding.gamma(*self.products) + rounding.UNDERFLOW
        if self.bias is not None and size.ndim == 4:  # sums over an image in `backward`
            error = error + self.bias.abs() * rounding.gamma(0, size.shape[2] * size.shape[3])
        return error

    def step(self, inputs: Sequence[ValueBounds], dtype: torch.dtype) -> Step:
        shape, own = inputs[0].lower.shape[1:], self.converted(dtype)
        bias = own.bias
        per_channel = bias is not None and bias.ndim == 4 and bias.shape[2:] == (1, 1)

        def step(coefficients: Tensor, both: bool) -> Backward:
            before = own.transposed(coefficients, shape)
            if bias is None:
                return Backward([before])
            if per_channel:
                return Backward([before], (coefficients.sum((-2, -1)) * bias[:, None, :, 0, 0]).sum(-1))
            return Backward([before], contract(coefficients, bias))

        return step

    def converted(self, dtype: torch.dtype) -> Affine:
        """The function with its transpose in this type."""
        return self


@dataclass(frozen=True, eq=False)
class Convolution(Affine):
    """A convolution in two dimensions, and BatchNorm after it. weight: float64 (O, I / groups, h, w).

    added: the sum of the absolute values of what its bias is made of, (1, O, 1, 1).
    """

    weight: Tensor
    bias: Tensor | None
    added: Tensor
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def __post_init__(self) -> None:
        outputs, inputs, height, width = self.weight.shape
        products = (inputs * height * width, outputs // self.groups * height * width)
        object.__setattr__(self, "products", products)

    def _convolved(self, values: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(values, weight, None, self.stride, self.padding, self.dilation, self.groups)

    def linear(self, values: Tensor) -> Tensor:
        return self._convolved(values, self.weight)

    def absolute(self, values: Tensor) -> Tensor:
        return self._convolved(values, self.weight.abs())

    def absolute_bias(self) -> Tensor:
        return self.added

    def converted(self, dtype: torch.dtype) -> Convolution:
        return replace(self, weight=self.weight.to(dtype))

    def transpose(self, coefficients: Tensor, shape: Sequence[int]) -> Tensor:
        weight = self.weight
        more = [
            shape[1 + i]
            - ((coefficients.shape[2 + i] - 1) * self.stride[i] - 2 * self.padding[i])
            - self.dilation[i] * (weight.shape[2 + i] - 1)
            - 1
            for i in range(2)
        ]
        # Several times as fast as with one channel after another.
        rows = coefficients.contiguous(memory_format=torch.channels_last)
        return F.conv_transpose2d(
            rows, weight, None, self.stride, self.padding, more, self.groups, self.dilation
        )

    def row_norm(self, scale: Tensor) -> Tensor:
        return self._convolved(scale.square(), self.weight.square()).sqrt()

    def scaled(self, scale: ChannelScale) -> Convolution:
        """This convolution with a scale per channel after it."""
        factor = scale.scale.view(-1)
        added = factor.abs().view(1, -1, 1, 1) * self.added + scale.added
        bias = scale.bias if self.bias is None else scale.scale * self.bias + scale.bias
        weight = self.weight * factor.view(-1, 1, 1, 1)
        return Convolution(weight, bias, added, self.stride, self.padding, self.dilation, self.groups)


@dataclass(frozen=True, eq=False)
class Dense(Affine):
    """A linear layer of vectors (N, I). weight: float64 (O, I); bias: (1, O)."""

    weight: Tensor
    bias: Tensor | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "products", tuple(reversed(self.weight.shape)))

    def linear(self, values: Tensor) -> Tensor:
        return values @ self.weight.T

    def absolute(self, values: Tensor) -> Tensor:
        return values @ self.weight.abs().T

    def converted(self, dtype: torch.dtype) -> Dense:
        return replace(self, weight=self.weight.to(dtype))

    def transpose(self, coefficients: Tensor, shape: Sequence[int]) -> Tensor:
        return coefficients @ self.weight

    def row_norm(self, scale: Tensor) -> Tensor:
        return (scale.square() @ self.weight.square().T).sqrt()


@dataclass(frozen=True, eq=False)
class ChannelScale(Affine):
    """scale * x + bias, elementwise: normalisation, BatchNorm, and sums and products with constants.

    scale, bias: (1, ...) that broadcast, or in training (N, ...); added: the sum of the absolute values of
    what the bias is made of, as that.
    """

    scale: Tensor
    bias: Tensor
    added: Tensor
    products: ClassVar[tuple[int, int]] = (1, 1)
    keeps_diagonal = True

    def linear(self, values: Tensor) -> Tensor:
        return values * self.scale

    def absolute(self, values: Tensor) -> Tensor:
        return values * self.scale.abs()

    def absolute_bias(self) -> Tensor:
        return self.added

    def converted(self, dtype: torch.dtype) -> ChannelScale:
        return replace(self, scale=self.scale.to(dtype))

    def transposed(self, coefficients: Tensor, shape: Sequence[int]) -> Tensor:
        return coefficients * _as_rows(self.scale)

    def row_norm(self, scale: Tensor) -> Tensor:
        return scale * self.scale.abs()

    def scaled(self, after: ChannelScale) -> ChannelScale:
        """This with another scale after it."""
        added = after.scale.abs() * self.added + after.added
        return ChannelScale(self.scale * after.scale, after.scale * self.bias + after.bias, added)


@dataclass(frozen=True, eq=False)
class Average(Affine):
    """A linear function with weights of 0 or more, of `terms` inputs: average pooling, means, sums.

    adjoint: its transpose, of coefficients (M, ...) and the shape of the inputs; None: by differentiation.
    """

    function: Callable[[Tensor], Tensor]
    terms: int
    adjoint: Callable[[Tensor, Sequence[int]], Tensor] | None = None
    bias = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "products", (self.terms, self.terms))

    def linear(self, values: Tensor) -> Tensor:
        return self.function(values)

    def absolute(self, values: Tensor) -> Tensor:
        return self.function(values)

    def transpose(self, coefficients: Tensor, shape: Sequence[int]) -> Tensor:
        if self.adjoint is not None:
            return self.adjoint(coefficients, shape)
        return _transposed(self.function, coefficients, shape)


@dataclass(frozen=True, eq=False)
class Rearranged(Affine):
    """The inputs in another shape, some of them, or padded by zeros: nothing is rounded."""

    function: Callable[[Tensor], Tensor]
    bias = None
    keeps_diagonal = True

    def linear(self, values: Tensor) -> Tensor:
        return self.function(values)

    def absolute(self, values: Tensor) -> Tensor:
        return self.function(values)

    def error(self, inputs: Sequence[ValueBounds]) -> Tensor | None:
        return None

    def transpose(self, coefficients: Tensor, shape: Sequence[int]) -> Tensor:
        return _transposed(self.function, coefficients, shape)

    def row_norm(self, scale: Tensor) -> Tensor:
        return self.function(scale)


def _transposed(function: Callable[[Tensor], Tensor], coefficients: Tensor, shape: Sequence[int]) -> Tensor:
    """The transpose of a linear function of (M, *shape)."""
    differentiable = torch.is_grad_enabled() and coefficients.requires_grad
    with torch.enable_grad():
        inputs = coefficients.new_zeros(len(coefficients), *shape, requires_grad=True)
        (before,) = torch.autograd.grad(function(inputs), inputs, coefficients, create_graph=differentiable)
    return before


@dataclass(frozen=True, eq=False)
class Added(Operation):
    """The sum of two inputs; signs: 1 or -1 of each."""

    signs: tuple[int, int] = (1, 1)

    def interval(self, inputs: Sequence[ValueBounds]) -> ValueBounds:
        first, second = inputs
        if self.signs[1] < 0:
            second = ValueBounds(-second.upper, -second.lower)
        return ValueBounds(first.lower + second.lower, first.upper + second.upper)

    def error(self, inputs: Sequence[ValueBounds]) -> Tensor | None:
        return (inputs[0].magnitude + inputs[1].magnitude) * (2 * rounding.UNIT)

    def step(self, inputs: Sequence[ValueBounds], dtype: torch.dtype) -> Step:
        return lambda rows, both: Backward([rows, rows if self.signs[1] > 0 else -rows])


@dataclass(frozen=True, eq=False)
class Concatenated(Operation):
    """Inputs one after another along a dimension (1: channels)."""

    dim: int

    def interval(self, inputs: Sequence[ValueBounds]) -> ValueBounds:
        lower, upper = (torch.cat(parts, self.dim) for parts in zip(*inputs, strict=True))
        return ValueBounds(lower, upper)

    def step(self, inputs: Sequence[ValueBounds], dtype: torch.dtype) -> Step:
        sizes = [one.lower.shape[self.dim] for one in inputs]
        return lambda rows, both: Backward(list(rows.split(sizes, self.dim + 1)))


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
            before = torch.addcmul(positive * _as_rows(below), negative, _as_rows(slope))
            constant = contract_alike(negative, intercept)
            gap = contract_alike(positive, most) - constant if both else 0.0
            return Backward([before], constant, gap)

        return step


def _of_open_columns(unstable: Tensor, slope: Tensor, below: Tensor, intercept: Tensor, most: Tensor) -> Step:
    """ReLU's step for one image, (1, ...) each, where the signs of coefficients matter in few columns: those
    of values whose sign is open. The others are multiplied by the slope."""
    shape, slopes = slope.shape[1:], _flat(slope, 1)
    columns = _flat(unstable, 1)[0].nonzero()[:, 0]
    flat = (_flat(part, 1)[0, columns] for part in (slope, below, intercept, most))
    open_slope, open_below, open_intercept, open_most = flat

    def step(coefficients: Tensor, both: bool) -> Backward:
        rows = _flat(coefficients, 2)[0]
        before = rows * slopes
        own = rows[:, columns]
        positive, negative = own.clamp_min(0), own.clamp_max(0)
        before.index_copy_(1, columns, torch.addcmul(positive * open_below, negative, open_slope))
        constant = contract_alike(negative[None], open_intercept[None])
        gap = contract_alike(positive[None], open_most[None]) - constant if both else 0.0
        return Backward([_unflat(before, shape)[None]], constant, gap)

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

    def _pads(self, size: Sequence[int], windows: Sequence[int]) -> list[int]:
        """What is added to both ends of width and height so that all windows fit exactly."""
        pads = []
        for i in (1, 0):
            extent = (windows[i] - 1) * self.stride[i] + self.dilation[i] * (self.kernel[i] - 1) + 1
            pads += [self.padding[i], extent - self.padding[i] - size[i]]
        return pads

    def _unfolded(self, values: Tensor, pads: list[int]) -> Tensor:
        """The inputs of each window, (N, C, h * w, windows); -inf outside."""
        padded = F.pad(values, pads, value=-math.inf)
        columns = F.unfold(padded, self.kernel, self.dilation, 0, self.stride)
        return columns.view(len(values), values.shape[1], -1, columns.shape[-1])

    def step(self, inputs: Sequence[ValueBounds], dtype: torch.dtype) -> Step:
        return lambda coefficients, both: self._backward(coefficients, inputs[0], both)

    def _backward(self, coefficients: Tensor, bounds: ValueBounds, both: bool) -> Backward:
        lower, upper = bounds
        n, rows, _, *windows = coefficients.shape
        size = lower.shape[2:]
        pads = self._pads(size, windows)
        least, most = self._unfolded(lower, pads), self._unfolded(upper, pads)
        best, position = least.max(2, keepdim=True)
        others = most.scatter(2, position, -math.inf).amax(2, keepdim=True)
        known = (best >= others).to(coefficients.dtype)
        largest = most.amax(2, keepdim=True) * (1 - known)
        flat = coefficients.flatten(3)[:, :, :, None]
        positive, negative = flat.clamp_min(0), flat.clamp_max(0)
        of_best = positive + negative * known[:, None]
        spread = of_best.new_zeros(n, rows, *least.shape[1:])
        spread.scatter_(3, position[:, None].expand(n, rows, *position.shape[1:]), of_best)
        padded = (size[0] + pads[2] + pads[3], size[1] + pads[0] + pads[1])
        columns = spread.flatten(2, 3).flatten(0, 1)
        before = F.fold(columns, padded, self.kernel, self.dilation, 0, self.stride)
        before = F.pad(before, [-pad for pad in pads]).unflatten(0, (n, rows))
        spare = (most.amax(2, keepdim=True) - best) * (1 - known)
        gap = contract_alike(flat.abs(), spare) if both else 0.0
        return Backward([before], contract(negative, largest), gap)
