"""Bounds of the values in a network: forward by intervals, backward by linear functions (CROWN).

Sources: intervals, Gowal et al. 2018 (arXiv:1810.12715); linear bounds, Zhang et al. 2018 (CROWN,
arXiv:1811.00866), on general graphs Xu et al. 2020 (arXiv:2002.12920).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rbtools.certification import rounding
from rbtools.certification.ball import Ball
from rbtools.certification.network import Node, TracedNetwork
from rbtools.certification.operations import (
    Dense,
    MaxPooled,
    Rectifier,
    ValueBounds,
    contract_alike,
)

# Coefficients that are computed at once: more than fit the processor's cache take longer.
_COEFFICIENTS = {"cpu": 1 << 21, "cuda": 1 << 27}


class NetworkBounds:
    """Bounds of every node's values for the images of a ball, by intervals; `refine` improves them."""

    def __init__(self, network: TracedNetwork, ball: Ball) -> None:
        self.network, self.ball = network, ball
        self.values: list[ValueBounds] = []
        self._scales: list[Tensor | None] = []  # of nodes whose values are the image's, scaled

    def extend(self) -> int:
        """Compute the bounds of the next node's values, and return its number."""
        number = len(self.values)
        node = self.network.nodes[number]
        inputs = self.inputs(number)
        if not inputs:
            self.values.append(self.ball.box)
            self._scales.append(torch.ones_like(self.ball.box.lower[:1]))
            return number
        bounds, error = node.operation.interval(inputs), self.error(number)
        scale = self._scales[node.parents[0]]
        norm = None if scale is None else node.operation.row_norm(scale)
        if norm is not None and self.ball.norm == "l2":
            bounds = self._in_ball(number, bounds, norm)
        self.values.append(bounds if error is None else bounds.widened(error))
        self._scales.append(norm if node.operation.keeps_diagonal else None)
        return number

    def all(self) -> NetworkBounds:
        """Compute the bounds of all nodes by intervals."""
        while len(self.values) < len(self.network.nodes):
            self.extend()
        return self

    def inputs(self, number: int) -> list[ValueBounds]:
        """The bounds of what a node takes."""
        return [self.values[parent] for parent in self.network.nodes[number].parents]

    def error(self, number: int) -> Tensor | None:
        """The rounding error (N or 1, ...) of a node's values; None for none."""
        return self.network.nodes[number].operation.error(self.inputs(number)) if self.ball.outward else None

    def scaled_image(self, number: int) -> bool:
        """Whether the node's values are the image, scaled and rearranged."""
        return self._scales[number] is not None

    def exact(self, number: int) -> bool:
        """Whether linear bounds of the node's values are no better than the intervals': those of an affine
        function of the image."""
        node = self.network.nodes[number]
        first = self._scales[node.parents[0]] if node.parents else None
        return first is not None and node.operation.row_norm(first) is not None

    def _in_ball(self, number: int, bounds: ValueBounds, norm: Tensor) -> ValueBounds:
        """The bounds of an affine function of the image, also by the L2 norm of its rows."""
        values = self.ball.images
        for node in _path(self.network, number):
            values = node.operation.interval([ValueBounds(values, values)]).lower
        radius = norm * self.ball.eps
        return ValueBounds(
            torch.maximum(bounds.lower, values - radius), torch.minimum(bounds.upper, values + radius)
        )

    def lower(self, number: int, coefficients: Tensor) -> Tensor:
        """Lower bounds (N, R), in float64, of linear functions (N, R, ...) of a node's values."""
        pending = {number: coefficients}
        constant = torch.zeros(coefficients.shape[:2], dtype=torch.float64, device=coefficients.device)
        for at in range(number, -1, -1):
            here = pending.pop(at, None)
            if here is None:
                continue
            if self.ball.outward:
                constant = constant - self._rounding(at, here)
            if at == 0:
                return constant + self.ball.least(here)
            node = self.network.nodes[at]
            parts, added = node.operation.backward(here, self.inputs(at))
            constant = constant + added
            for parent, part in zip(node.parents, parts, strict=True):
                pending[parent] = pending[parent] + part if parent in pending else part
        return constant

    def _rounding(self, number: int, coefficients: Tensor) -> Tensor | float:
        """What rounding of a node's values, and of the sum of its coefficients, may lower a function by."""
        error, users = self.error(number), self.network.users[number]
        if users > 1:
            sums = self.values[number].magnitude * (2 * users * rounding.UNIT)
            error = sums if error is None else error + sums
        return 0.0 if error is None else contract_alike(coefficients.abs(), error)


def _path(network: TracedNetwork, number: int) -> list[Node]:
    """The nodes from the image to a node, each of which takes one."""
    path: list[Node] = []
    while number:
        path.append(network.nodes[number])
        number = network.nodes[number].parents[0]
    return path[::-1]


def crown_bounds(network: TracedNetwork, ball: Ball) -> NetworkBounds:
    """Bounds for one image, where those of inputs of ReLU and max pooling come from linear bounds.

    Only values whose interval leaves open what the operation does are bounded again.
    """
    bounds = NetworkBounds(network, ball)
    wanted = _refined(network)
    for _ in network.nodes:
        number = bounds.extend()
        if number in wanted and not bounds.exact(number):
            _refine(bounds, number, relu=wanted[number])
    return bounds


def _refined(network: TracedNetwork) -> dict[int, bool]:
    """The nodes whose bounds linear relaxations need, and whether only ReLUs take them.

    The outputs of a ReLU are bounded through its inputs.
    """
    wanted: dict[int, bool] = {}
    for node in network.nodes:
        if isinstance(node.operation, Rectifier | MaxPooled):
            (parent,) = node.parents
            if not isinstance(network.nodes[parent].operation, Rectifier):
                wanted[parent] = wanted.get(parent, True) and isinstance(node.operation, Rectifier)
    return wanted


def _refine(bounds: NetworkBounds, number: int, *, relu: bool) -> None:
    """Replace the bounds of a node's values, of one image, by linear bounds where they matter."""
    lower, upper = (part.clone() for part in bounds.values[number])
    open_values = (lower < 0) & (upper > 0) if relu else torch.ones_like(lower, dtype=torch.bool)
    places = open_values.flatten().nonzero()[:, 0]
    if not len(places):
        return
    for part in places.split(_rows(bounds.network, number, lower.device)):
        signs = torch.zeros(2, len(part), lower.numel(), device=lower.device)
        rows = torch.arange(len(part), device=lower.device)
        signs[0, rows, part], signs[1, rows, part] = 1.0, -1.0
        rows_of = signs.view(2 * len(part), *lower.shape[1:])
        if rows_of.ndim == 4:
            rows_of = rows_of.contiguous(memory_format=torch.channels_last)
        least = bounds.lower(number, rows_of[None])[0]
        lower.view(-1)[part], upper.view(-1)[part] = least[: len(part)], -least[len(part) :]
    bounds.values[number] = ValueBounds(lower, upper)


def _rows(network: TracedNetwork, number: int, device: torch.device) -> int:
    """How many values are bounded at once."""
    largest = max(torch.Size(node.shape).numel() for node in network.nodes[: number + 1])
    return max(_COEFFICIENTS.get(device.type, _COEFFICIENTS["cpu"]) // (2 * largest), 1)


def margin_rows(labels: Tensor, classes: int) -> Tensor:
    """Coefficients (N, K - 1, K) of the margins: the logit of the label minus each other one."""
    others = torch.arange(classes - 1, device=labels.device) + (
        torch.arange(classes - 1, device=labels.device) >= labels[:, None]
    )
    rows = torch.zeros(len(labels), classes - 1, classes, device=labels.device)
    rows.scatter_(2, others[..., None], -1.0)
    return rows.scatter_(2, labels[:, None, None].expand(-1, classes - 1, 1), 1.0)


def interval_margins(bounds: NetworkBounds, labels: Tensor) -> Tensor:
    """Lower bounds (N, K - 1) of the margins by intervals; a linear layer at the end takes the margins."""
    last = len(bounds.network.nodes) - 1
    rows = margin_rows(labels, bounds.network.nodes[last].shape[0]).double()
    node, constant = bounds.network.nodes[last], torch.zeros(rows.shape[:2], dtype=torch.float64).to(rows)
    if isinstance(node.operation, Dense):
        error = bounds.error(last)
        if error is not None:
            constant = constant - contract_alike(rows.abs(), error)
        (rows,), added = node.operation.backward(rows, bounds.inputs(last))
        constant, last = constant + added, node.parents[0]
    if bounds.scaled_image(last):
        return constant + bounds.lower(last, rows)
    lower, upper = bounds.values[last]
    centre, radius = ((lower + upper) / 2).flatten(1), ((upper - lower) / 2).flatten(1)
    rows = rows.flatten(2)
    least = torch.einsum("nrk,nk->nr", rows, centre) - torch.einsum("nrk,nk->nr", rows.abs(), radius)
    return least + constant
