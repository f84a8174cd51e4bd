"""The predictor of BANANAS (White, Neiswanger and Savani, AAAI 2021): an ensemble of feed-forward networks on
the path encoding of NAS-Bench-201's cells.

The networks, also those of several runs, are trained together. Without joint training, the overhead of
function calls would take most of the time. The results of a network do not depend on other networks, because
numpy multiplies stacked matrices one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.lazy import np
from rbtools.spaces.nasbench201 import OPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rbtools.search.bananas import Bananas

    Array = NDArray[Any]

PATHS = ((3,), (0, 4), (1, 5), (0, 2, 5))
"""The edges of each path from the input to the output."""
WIDTH = len(OPS) + len(OPS) ** 2 + len(OPS) ** 3
"""One feature for each sequence of one, two or three operations: 155."""
BATCH = 32
BETAS = (0.9, 0.99)
TINY = 1e-7
SIDE_BY_SIDE = 10  # ensembles trained at once; more would exceed the caches


def features(ops: Sequence[int]) -> list[int]:
    """Returns the features of a cell, which are the sequences of operations along its paths.

    Both paths with two edges have the same set of possible features. Therefore, a cell has three or four
    features.
    """
    indices = set()
    for path in PATHS:
        number = 0
        for edge in reversed(path):
            number = number * len(OPS) + ops[edge]
        shorter = sum(len(OPS) ** length for length in range(1, len(path)))
        indices.add(shorter + number)
    return sorted(indices)


class FittedPredictor(NamedTuple):
    """Trains an ensemble on the features and costs of cells, with costs in (0, 1], and predicts the costs of
    other cells.

    The class implements `rbtools.search.driver.BatchEvaluator` and returns an array (networks, cells to
    predict).
    """

    settings: Bananas
    cells: Sequence[Sequence[int]]
    costs: Sequence[float]
    predict: Sequence[Sequence[int]]
    seed: int

    @classmethod
    def all(cls, works: Sequence[FittedPredictor]) -> list[Array]:
        results: dict[int, Array] = {}
        alike: dict[tuple[Bananas, int], list[int]] = {}
        for place, work in enumerate(works):
            alike.setdefault((work.settings, len(work.cells)), []).append(place)
        for places in alike.values():
            for start in range(0, len(places), SIDE_BY_SIDE):
                some = places[start : start + SIDE_BY_SIDE]
                results.update(zip(some, _fitted([works[place] for place in some]), strict=True))
        return [results[place] for place in range(len(works))]


def encoded(cells: Sequence[Sequence[int]]) -> Array:
    """Returns cells as rows of zeros and ones, with shape (cells, 155)."""
    rows = np.zeros((len(cells), WIDTH), np.float32)
    for row, present in zip(rows, cells, strict=True):
        row[list(present)] = 1
    return rows


def _fitted(works: Sequence[FittedPredictor]) -> list[Array]:
    """Returns the predictions of `works` with the same settings and the same number of cells."""
    settings, count = works[0].settings, len(works[0].cells)
    chances = [np.random.RandomState(work.seed) for work in works]
    networks = _Networks(settings, chances)
    inputs = np.stack([encoded(work.cells) for work in works])
    costs = np.array([work.costs for work in works], np.float32)
    run = np.arange(len(works)).repeat(settings.networks)[:, None]
    for _ in range(settings.epochs):
        orders = np.concatenate(
            [[chance.permutation(count) for _ in range(settings.networks)] for chance in chances]
        )
        for start in range(0, count, BATCH):
            chosen = orders[:, start : start + BATCH]
            networks.step(inputs[run, chosen], costs[run, chosen])
    longest = max(len(work.predict) for work in works)
    others = np.zeros((len(works), longest, WIDTH), np.float32)
    for rows, work in zip(others, works, strict=True):
        rows[: len(work.predict)] = encoded(work.predict)
    predicted = networks.outputs(others[run[:, 0]]).reshape(len(works), settings.networks, longest)
    return [rows[:, : len(work.predict)] for rows, work in zip(predicted, works, strict=True)]


class _Networks:
    """Feed-forward networks with ReLU and one output, trained by Adam.

    The parameters of each network are stored in one row, because Adam then needs only a few operations for
    all networks. Weights and biases are views of the row. Weights have Glorot uniform initialisation, and
    biases begin at 0.
    """

    def __init__(self, settings: Bananas, chances: Sequence[Any]) -> None:
        self.settings, self.count = settings, len(chances) * settings.networks
        sizes = [WIDTH, *[settings.width] * settings.layers, 1]
        self.pairs = list(itertools.pairwise(sizes))
        total = sum(before * after + after for before, after in self.pairs)
        self.params, self.grads = (np.zeros((self.count, total), np.float32) for _ in range(2))
        self.first, self.second, self.room = (np.zeros((self.count, total), np.float32) for _ in range(3))
        self.weights, self.biases = self._views(self.params)
        self.weight_grads, self.bias_grads = self._views(self.grads)
        self.steps = 0
        for place, chance in enumerate(chances):
            for network in range(place * settings.networks, (place + 1) * settings.networks):
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
        """Returns the outputs (networks, rows) for inputs (networks, rows, 155)."""
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
        """Makes a step of Adam on the loss of a batch, which is the mean of |predicted - cost| or of
        |predicted - cost| / cost."""
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
        room, one = self.room, np.float32(1)
        for moment, beta, values in ((self.first, BETAS[0], self.grads), (self.second, BETAS[1], None)):
            if values is None:
                values = np.multiply(self.grads, self.grads, out=self.grads)
            np.subtract(values, moment, out=room)
            room *= one - np.float32(beta)
            moment += room
        rate = self.settings.lr * (1 - BETAS[1] ** self.steps) ** 0.5 / (1 - BETAS[0] ** self.steps)
        np.sqrt(self.second, out=room)
        room += np.float32(TINY)
        np.divide(self.first, room, out=room)
        room *= np.float32(rate)
        self.params -= room
