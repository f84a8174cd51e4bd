"""The operations of a network: interval bounds of their outputs, and linear lower bounds taken backwards.

Values have the shape (N, ...) of an image's values; coefficients (N, R, ...), R linear functions of an
image's values. Backward, a function with coefficients a of an operation's output is bounded from below by one
of its inputs, and a constant (Zhang et al. 2018, arXiv:1811.00866; Xu et al. 2020, arXiv:2002.12920).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
    rows, values = flattened(coefficients, 2), flattened(values, 1).to(coefficients.dtype)
    sums = torch.matmul(rows, values[..., None])[..., 0].double()
    return sums * (1 + (rows.shape[-1] + 8) * torch.finfo(coefficients.dtype).eps)


def flattened(values: Tensor, dim: int) -> Tensor:
    """Values flattened from a dimension on, the channels of images last, as they lie in memory."""
    return (values.movedim(dim, -1) if values.ndim == dim + 3 else values).flatten(dim)


def unflattened(rows: Tensor, shape: Sequence[int]) -> Tensor:
    """Rows (R, n) as `flattened` makes them, in the shape (R, *shape) again."""
    if len(shape) == 3:
        return rows.view(len(rows), shape[1], shape[2], shape[0]).movedim(-1, 1)
    return rows.view(len(rows), *shape)


def as_rows(values: Tensor) -> Tensor:
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
        """The backward step for coefficients (N, R, ...) of this type, given bounds of the inputs. It returns
        coefficients of the inputs and a constant, whose linear function is a lower bound.

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
    products: ClassVar[tuple[int, int]] = (0, 0)  # numbers of terms in a sum, forward and backward

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
        rows = self.transpose(coefficients.flatten(0, 1), shape)
        return rows.view(*coefficients.shape[:2], *rows.shape[1:])

    def absolute_bias(self) -> Tensor | float:
        """The sum of the absolute values of all additive constants, (1, ...)."""
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
        if self.bias is not None and size.ndim == 4:  # `backward` sums over an image
            error = error + self.bias.abs() * rounding.gamma(0, size.shape[2] * size.shape[3])
        return error

    def step(self, inputs: Sequence[ValueBounds], dtype: torch.dtype) -> Step:
        shape, converted = inputs[0].lower.shape[1:], self.converted(dtype)
        bias = converted.bias
        per_channel = bias is not None and bias.ndim == 4 and bias.shape[2:] == (1, 1)

        def step(coefficients: Tensor, both: bool) -> Backward:
            before = converted.transposed(coefficients, shape)
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

    added: the sum of the absolute values of the bias' summands, (1, O, 1, 1).
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
    the bias' summands, of that shape.
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
        return coefficients * as_rows(self.scale)

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

    absolute = linear

    def transpose(self, coefficients: Tensor, shape: Sequence[int]) -> Tensor:
        return (self.adjoint or partial(_transposed, self.function))(coefficients, shape)


@dataclass(frozen=True, eq=False)
class Rearranged(Affine):
    """The inputs in another shape, some of them, or padded by zeros: nothing is rounded."""

    function: Callable[[Tensor], Tensor]
    bias = None
    keeps_diagonal = True

    def linear(self, values: Tensor) -> Tensor:
        return self.function(values)

    absolute = linear

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
        # Of a scalar: for other outputs torch imports a package for symbolic sizes, which takes a second.
        weighted = (function(inputs) * coefficients).sum()
        (before,) = torch.autograd.grad(weighted, inputs, create_graph=differentiable)
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
        sizes = [bounds.lower.shape[self.dim] for bounds in inputs]
        return lambda rows, both: Backward(list(rows.split(sizes, self.dim + 1)))
