"""The predictor of BANANAS (White, Neiswanger and Savani, AAAI 2021): networks on paths of NAS-Bench-201's
cells.

The networks of an ensemble are trained together, because calls of numpy would otherwise take most of the
time. numpy multiplies stacked matrices one by one, so networks do not influence each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rbtools.lazy import np
from rbtools.spaces.nasbench201 import OPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rbtools.search.bananas import Bananas

    Array = NDArray[Any]

PATHS = ((3,), (0, 4), (1, 5), (0, 2, 5))  # the edges of each path from the input to the output
WIDTH = len(OPS) + len(OPS) ** 2 + len(OPS) ** 3  # a feature for each sequence of operations: 155
BATCH = 32
BETAS = (0.9, 0.99)
TINY = 1e-7


def features(ops: Sequence[int]) -> list[int]:
    """Returns the features of a cell: the sequences of operations along its paths.

    A cell has three or four features, because its two paths with two edges may have the same one.
    """
    indices = set()
    for path in PATHS:
        number = 0
        for edge in reversed(path):
            number = number * len(OPS) + ops[edge]
        shorter = sum(len(OPS) ** length for length in range(1, len(path)))
        indices.add(shorter + number)
    return sorted(indices)


def encoded(cells: Sequence[Sequence[int]]) -> Array:
    """Returns cells as rows of zeros and ones, with shape (cells, 155)."""
    rows = np.zeros((len(cells), WIDTH), np.float32)
    for row, present in zip(rows, cells, strict=True):
        row[list(present)] = 1
    return rows


def predicted(
    settings: Bananas,
    cells: Sequence[Sequence[int]],
    costs: Sequence[float],
    others: Sequence[Sequence[int]],
    seed: int,
) -> Array:
    """Train an ensemble on the features and costs of cells, with costs in (0, 1.1].

    Returns the predicted costs of `others`, with shape (networks, others).
    """
    chance = np.random.RandomState(seed)
    networks = _Networks(settings, chance)
    inputs, targets = encoded(cells), np.array(costs, np.float32)
    for _ in range(settings.epochs):
        order = np.stack([chance.permutation(len(cells)) for _ in range(settings.networks)])
        for start in range(0, len(cells), BATCH):
            chosen = order[:, start : start + BATCH]
            networks.step(inputs[chosen], targets[chosen])
    return networks.outputs(encoded(others))


class _Networks:
    """Feed-forward networks with ReLU and one output, trained by Adam.

    Each network has its parameters in one row, so Adam needs only a few operations for all. Weights have
    Glorot uniform initialisation, and biases begin at 0.
    """

    def __init__(self, settings: Bananas, chance: np.random.RandomState) -> None:
        self.settings, self.count = settings, settings.networks
        sizes = [WIDTH, *[settings.width] * settings.layers, 1]
        self.pairs = list(itertools.pairwise(sizes))
        total = sum(before * after + after for before, after in self.pairs)
        self.params, self.grads, self.first, self.second = np.zeros((4, self.count, total), np.float32)
        self.weights, self.biases = self._views(self.params)
        self.weight_grads, self.bias_grads = self._views(self.grads)
        self.steps = 0
        for network in range(self.count):
            for weight, (before, after) in zip(self.weights, self.pairs, strict=True):
                reach = (6 / (before + after)) ** 0.5
                weight[network] = (2 * chance.random_sample((before, after)) - 1) * reach

    def _views(self, rows: Array) -> tuple[list[Array], list[Array]]:
        weights, biases, at = [], [], 0
        for before, after in self.pairs:
            weights.append(rows[:, at : at + before * after].reshape(self.count, before, after))
            at += before * after
            biases.append(rows[:, at : at + after][:, None, :])
            at += after
        return weights, biases

    def outputs(self, inputs: Array) -> Array:
        """Returns the outputs (networks, rows) for inputs (rows, 155)."""
        outputs: Array = self._forward(inputs)[-1][:, :, 0]
        return outputs

    def _forward(self, inputs: Array) -> list[Array]:
        layers = [inputs]
        for weight, bias in zip(self.weights, self.biases, strict=True):
            layer = np.matmul(layers[-1], weight)
            layer += bias
            if len(layers) < len(self.weights):
                np.maximum(layer, 0, out=layer)
            layers.append(layer)
        return layers

    def step(self, inputs: Array, costs: Array) -> None:
        """A step of Adam on the mean of |predicted - cost|, or of |predicted - cost| / cost."""
        layers = self._forward(inputs)
        slope = np.sign(layers[-1] - costs[:, :, None])
        slope /= costs.shape[1]
        if self.settings.loss == "mape":
            slope /= costs[:, :, None]
        for place in range(len(self.weights) - 1, -1, -1):
            below = layers[place]
            np.matmul(below.transpose(0, 2, 1), slope, out=self.weight_grads[place])
            np.sum(slope, axis=1, keepdims=True, out=self.bias_grads[place])
            if place:
                slope = np.matmul(slope, self.weights[place].transpose(0, 2, 1))
                slope *= below > 0
        self._adam()

    def _adam(self) -> None:
        self.steps += 1
        for moment, beta, values in (
            (self.first, BETAS[0], self.grads),
            (self.second, BETAS[1], self.grads * self.grads),
        ):
            moment += (values - moment) * (np.float32(1) - np.float32(beta))
        rate = self.settings.lr * (1 - BETAS[1] ** self.steps) ** 0.5 / (1 - BETAS[0] ** self.steps)
        self.params -= self.first / (np.sqrt(self.second) + np.float32(TINY)) * np.float32(rate)
