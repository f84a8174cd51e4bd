"""Bounds of the values in a network: forward by intervals, backward by linear functions (CROWN).

Sources: intervals, Gowal et al. 2018 (arXiv:1810.12715); linear bounds, Zhang et al. 2018 (CROWN,
arXiv:1811.00866), on general graphs Xu et al. 2020 (arXiv:2002.12920).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rbtools.certification import rounding
from rbtools.certification.ball import Ball, products
from rbtools.certification.network import Node, TracedNetwork
from rbtools.certification.operations import Dense, Step, ValueBounds, contract_alike
from rbtools.certification.piecewise_linear import MaxPooled, Rectifier

# Coefficients that are computed at once: those that do not fit into the processor's cache take longer.
_COEFFICIENTS = {"cpu": 1 << 21, "cuda": 1 << 27}
# The sampled points of a ball that predict which signs stay open, and the factor by which their range of
# values is widened for that. A wrong prediction costs only time.
_SAMPLES, _REACH = 15, 4.0


class NetworkBounds:
    """Bounds of every node's values for the images of a ball, by intervals; `refine` improves them."""

    def __init__(self, network: TracedNetwork, ball: Ball) -> None:
        self.network, self.ball = network, ball
        self.values: list[ValueBounds] = []
        self._scales: list[Tensor | None] = []  # per node: the scale, if its values are the scaled image
        self._errors: dict[int, Tensor | None] = {}
        self._steps: dict[tuple[int, torch.dtype], Step] = {}
        self._charges: dict[int, Tensor | None] = {}

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
        """The bounds of a node's inputs."""
        return [self.values[parent] for parent in self.network.nodes[number].parents]

    def error(self, number: int) -> Tensor | None:
        """The rounding error (N or 1, ...) of a node's values; None for none."""
        if not self.ball.outward:
            return None
        if number not in self._errors:
            self._errors[number] = self.network.nodes[number].operation.error(self.inputs(number))
        return self._errors[number]

    def replace(self, number: int, bounds: ValueBounds) -> None:
        """Set better bounds of a node's values, before those of later nodes are computed."""
        self.values[number] = bounds
        self._charges.pop(number, None)

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
        path: list[Node] = []  # the path from the image to this node; each node on it has one input
        while number:
            path.append(self.network.nodes[number])
            number = path[-1].parents[0]
        values = self.ball.images
        for node in reversed(path):
            values = node.operation.interval([ValueBounds(values, values)]).lower
        radius = norm * self.ball.eps
        return ValueBounds(
            torch.maximum(bounds.lower, values - radius), torch.minimum(bounds.upper, values + radius)
        )

    def lower(self, number: int, coefficients: Tensor) -> Tensor:
        """Lower bounds (N, R), in float64, of linear functions (N, R, ...) of a node's values."""
        return self._bounded(number, coefficients, both=False)[0]

    def lower_and_upper(self, number: int, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and upper bounds (N, R) from the same coefficients. CROWN chooses other coefficients for
        upper bounds, which takes a second pass."""
        return self._bounded(number, coefficients, both=True)

    def _bounded(self, number: int, coefficients: Tensor, *, both: bool) -> tuple[Tensor, Tensor]:
        pending = {number: coefficients}
        constant = torch.zeros(coefficients.shape[:2], dtype=torch.float64, device=coefficients.device)
        gap = torch.zeros_like(constant)  # the upper bounds' constant minus the lower bounds' one
        for at in range(number, -1, -1):
            here = pending.pop(at, None)
            if here is None:
                continue
            charge = self._charge(at, last=at == number)
            if charge is not None:
                charged = contract_alike(here.abs(), charge)
                constant, gap = constant - charged, gap + 2 * charged
            if at == 0:
                upper = constant + gap - self.ball.least(-here) if both else constant
                return constant + self.ball.least(here), upper
            node = self.network.nodes[at]
            if (at, here.dtype) not in self._steps:
                self._steps[at, here.dtype] = node.operation.step(self.inputs(at), here.dtype)
            parts, added, spare = self._steps[at, here.dtype](here, both)
            constant, gap = constant + added, gap + spare
            for parent, part in zip(node.parents, parts, strict=True):
                pending[parent] = pending[parent] + part if parent in pending else part
        return constant, constant + gap

    def _charge(self, number: int, *, last: bool) -> Tensor | None:
        """The most that rounding of a node's values, and of the sum of its coefficients, changes a function,
        per unit of a coefficient (N or 1, ...); None for no change. It includes the rounding of an addition's
        inputs if no other operation uses them. last: the functions are of this node's values.
        """
        if not self.ball.outward or (self.network.charged_later[number] and not last):
            return None
        if number not in self._charges:
            self._charges[number] = self._own_charge(number)
        return self._charges[number]

    def _own_charge(self, number: int) -> Tensor | None:
        error, users = self.error(number), self.network.users[number]
        if users > 1:
            sums = self.values[number].magnitude * (2 * users * rounding.UNIT)
            error = sums if error is None else error + sums
        for parent in self.network.nodes[number].parents:
            if self.network.charged_later[parent]:
                more = self._charge(parent, last=True)
                error = more if error is None or more is None else error + more
        return error


def crown_bounds(network: TracedNetwork, ball: Ball) -> NetworkBounds:
    """Bounds for one image, where those of inputs of ReLU and max pooling come from linear bounds.

    Only values whose interval leaves open what the operation does are bounded again.
    """
    bounds = NetworkBounds(network, ball)
    wanted, samples = _refined(network), _sampled_values(network, ball)
    for _ in network.nodes:
        number = bounds.extend()
        if number in wanted and not bounds.exact(number):
            _refine(bounds, number, samples[number], relu=wanted[number])
    return bounds


def _sampled_values(network: TracedNetwork, ball: Ball) -> list[Tensor]:
    """The values (1 + _SAMPLES, ...) of each node at the image of a ball and at corners of the box around it.
    They only predict bounds and never enter them."""
    draw = torch.Generator().manual_seed(0)
    corners = torch.rand(_SAMPLES, *ball.images.shape[1:], generator=draw).to(ball.images.device) < 0.5
    values = [torch.cat([ball.images, torch.where(corners, ball.box.lower, ball.box.upper)])]
    for node in network.nodes[1:]:
        inputs = [ValueBounds(values[parent], values[parent]) for parent in node.parents]
        values.append(node.operation.interval(inputs).lower)
    return values


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


def _refine(bounds: NetworkBounds, number: int, samples: Tensor, *, relu: bool) -> None:
    """Replace a node's interval bounds, for one image, by linear bounds where an operation needs tighter
    ones.

    A ReLU's input that is shown to have one sign needs no more: it is bounded on the side of the sign that it
    has at the image, and roughly on the other. The first pass bounds those on both sides whose sign is likely
    to stay open, and a second pass the few others that did. samples: see `_sampled_values`.
    """
    lower, upper = (part.flatten().clone() for part in bounds.values[number])
    open_values = (lower < 0) & (upper > 0) if relu else torch.ones_like(lower, dtype=torch.bool)
    places = open_values.nonzero()[:, 0]
    if not len(places):
        return
    values = samples.flatten(1)[:, places]
    signs = torch.where(values[0] >= 0, 1.0, -1.0)
    spread = (values - values[0]).abs().amax(0)
    guessed = (values[0].abs() < _REACH * spread) | (not relu)
    least, most = _linear(bounds, number, places, signs, guessed)
    missed = ((least < 0) & ~guessed).nonzero()[:, 0]
    if len(missed):
        most[missed] = -_linear(bounds, number, places[missed], -signs[missed])[0]
    lower[places] = torch.where(signs > 0, least, -most)
    upper[places] = torch.where(signs > 0, most, -least)
    shape = bounds.values[number].lower.shape
    bounds.replace(number, ValueBounds(lower.view(shape), upper.view(shape)))


def _linear(
    bounds: NetworkBounds, number: int, places: Tensor, signs: Tensor, both: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds (P,) of one image's values at flat places (P,), times signs (P,).

    both (P,): which of them also get linear upper bounds.
    """
    if both is not None and both.any():
        chosen = both.nonzero()[:, 0]
        least, most = _linear(
            bounds, number, torch.cat([places, places[chosen]]), torch.cat([signs, -signs[chosen]])
        )
        most[chosen] = -least[len(places) :]
        return least[: len(places)], most[: len(places)]
    shape, device = bounds.network.nodes[number].shape, places.device
    lower, upper = (torch.zeros(len(places), dtype=torch.float64, device=device) for _ in range(2))
    largest = max(torch.Size(node.shape).numel() for node in bounds.network.nodes[: number + 1])
    at_once = max(_COEFFICIENTS.get(device.type, _COEFFICIENTS["cpu"]) // largest, 1)
    for part in torch.arange(len(places), device=device).split(at_once):
        rows = torch.zeros(len(part), torch.Size(shape).numel(), device=device)
        rows.scatter_(1, places[part, None], signs[part, None].to(rows.dtype))
        rows = rows.view(len(part), *shape)
        if rows.ndim == 4:
            rows = rows.contiguous(memory_format=torch.channels_last)
        least, most = bounds.lower_and_upper(number, rows[None])
        lower[part], upper[part] = least[0], most[0]
    return lower, upper


def other_classes(labels: Tensor, classes: int) -> Tensor:
    """The classes (N, K - 1) other than the label, in order."""
    others = torch.arange(classes - 1, device=labels.device)
    return others + (others >= labels[:, None])


def margin_rows(labels: Tensor, classes: int) -> Tensor:
    """Coefficients (N, K - 1, K) of the margins: the logit of the label minus each other one."""
    rows = torch.zeros(len(labels), classes - 1, classes, device=labels.device)
    rows.scatter_(2, other_classes(labels, classes)[..., None], -1.0)
    return rows.scatter_(2, labels[:, None, None].expand(-1, classes - 1, 1), 1.0)


def interval_margins(bounds: NetworkBounds, labels: Tensor) -> Tensor:
    """Lower bounds (N, K - 1) of the margins by intervals; a linear layer at the end takes the margins."""
    last = len(bounds.network.nodes) - 1
    rows = margin_rows(labels, bounds.network.nodes[last].shape[0]).to(bounds.ball.images.dtype)
    node, constant = bounds.network.nodes[last], rows.new_zeros(rows.shape[:2])
    if isinstance(node.operation, Dense):
        error = bounds.error(last)
        if error is not None:
            constant = constant - contract_alike(rows.abs(), error)
        (rows,), added, _ = node.operation.backward(rows, bounds.inputs(last))
        constant, last = constant + added, node.parents[0]
    if bounds.scaled_image(last):
        return constant + bounds.lower(last, rows)
    lower, upper = bounds.values[last]
    centre, radius = ((lower + upper) / 2).flatten(1), ((upper - lower) / 2).flatten(1)
    rows = rows.flatten(2)
    return products(rows, centre) - products(rows.abs(), radius) + constant
