"""BANANAS (White, Neiswanger and Savani, AAAI 2021), and its predictor: networks on the paths of a
NAS-Bench-201 cell.

The networks of an ensemble are trained together, because calls of numpy would otherwise take most of the
time. numpy multiplies stacked matrices one by one, so networks do not influence each other.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.lazy import np
from rbtools.registry import param
from rbtools.search.driver import Algorithm, Proposals
from rbtools.search.run_draws import RunDraws
from rbtools.search.search_space import SearchSpace
from rbtools.spaces.nasbench201 import OPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

MARGIN = 0.1
PATIENCE = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bananas(Algorithm):
    """BANANAS (White et al., AAAI 2021): Bayesian optimisation with an ensemble of neural predictors.

    BANANAS first queries `initial=10` random architectures. In every later round, it trains `networks=3`
    feed-forward networks on the path encoding of all known architectures and queries the `per_round=10` best
    candidates by independent Thompson sampling. A candidate differs by one mutation from one of the
    `parents=2` best architectures. If too few candidates are new, the next best architectures are mutated.

    For each architecture, the networks predict a cost: the distance of the value to the best value so far,
    divided by the spread of all values, plus 0.1. The percentage error `loss=mape` needs costs above 0. The
    cost is relative to the best value so far, because the optimum of the table must stay unknown to a search.
    """

    name: ClassVar[str] = "bananas"
    heavy: ClassVar[bool] = True

    initial: int = param(10, "Number of random architectures at the beginning.", check="positive")
    per_round: int = param(10, "Number of architectures to query in each round.", check="positive")
    parents: int = param(2, "Number of best architectures to mutate.", check="positive")
    candidates: int = param(100, "Number of mutations to choose from.", check="positive")
    networks: int = param(3, "Number of networks in the ensemble.", check="positive")
    layers: int = param(10, "Number of hidden layers of each network.", check="positive")
    width: int = param(20, "Number of units in each hidden layer.", check="positive")
    epochs: int = param(150, "Number of epochs for which each network is trained.", check="positive")
    lr: float = param(0.01, "Learning rate of Adam.", check="positive")
    loss: str = param("mape", "Loss: percentage error or absolute error.", choices=("mape", "mae"))

    def propose(self, field: SearchSpace, draws: RunDraws) -> Proposals:
        known: dict[Any, tuple[int, float]] = {}
        proposal = [field.sample(draws) for _ in range(self.initial)]
        while True:
            values = yield proposal
            for index, value in zip(proposal, values, strict=True):
                known.setdefault(field.keys[index], (index, value))
            finite = [pair for pair in known.values() if math.isfinite(pair[1])]
            others = self._candidates(field, known, finite, draws)
            if len(others) <= self.per_round or len(finite) < 2:
                proposal = others[: self.per_round] or [field.sample(draws)]
                continue
            cells = [features(field.ops(index)) for index, _ in finite]
            unknown = [features(field.ops(index)) for index in others]
            seed = draws.below(1 << 31)
            costs = _costs([value for _, value in finite])
            expected = predicted(self, cells, costs, unknown, seed)
            # Thompson sampling: one draw from N(mean, deviation) for each cell, the lowest first.
            mean, deviation = expected.mean(axis=0), expected.std(axis=0)
            drawn = [float(m) + float(d) * draws.normal() for m, d in zip(mean, deviation, strict=True)]
            order = sorted(range(len(drawn)), key=drawn.__getitem__)
            proposal = [others[place] for place in order[: self.per_round]]

    def _candidates(
        self, field: SearchSpace, known: dict[Any, Any], finite: Sequence[tuple[int, float]], draws: RunDraws
    ) -> list[int]:
        """Returns new mutations of the best architectures, and random ones if there are too few."""
        candidates: dict[Any, int] = {}
        ranked = sorted(finite, key=lambda pair: -pair[1])
        for index, _ in ranked[: self.parents * PATIENCE]:
            for _ in range(math.ceil(self.candidates / self.parents)):
                other = field.mutate(index, draws)
                if field.keys[other] not in known and len(candidates) < self.candidates:
                    candidates.setdefault(field.keys[other], other)
        for _ in range(self.candidates):
            if len(candidates) > self.per_round:
                break
            other = field.sample(draws)
            if field.keys[other] not in known:
                candidates.setdefault(field.keys[other], other)
        return list(candidates.values())


def _costs(values: Sequence[float]) -> list[float]:
    """Returns the distance of each value to the best one, divided by the spread, plus a margin."""
    best, spread = max(values), max(values) - min(values) or 1.0
    return [(best - value) / spread + MARGIN for value in values]


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

    Each network has its parameters in one row, so that Adam needs only a few operations for all networks.
    Weights have Glorot uniform initialisation, and biases begin at 0.
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
        """Take a step of Adam on the mean of |predicted - cost|, or of |predicted - cost| / cost."""
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
