from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from rbtools.registry import param
from rbtools.search.driver import Algorithm, Proposals
from rbtools.search.predictor import features, predicted
from rbtools.search.run_draws import RunDraws
from rbtools.search.search_space import SearchSpace

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

    initial: int = param(10, "Random architectures at the beginning.", check="positive")
    per_round: int = param(10, "Architectures to query in each round.", check="positive")
    parents: int = param(2, "Number of best architectures to mutate.", check="positive")
    candidates: int = param(100, "Number of mutations to choose from.", check="positive")
    networks: int = param(3, "Networks in the ensemble.", check="positive")
    layers: int = param(10, "Hidden layers of each network.", check="positive")
    width: int = param(20, "Units of each hidden layer.", check="positive")
    epochs: int = param(150, "Training epochs of each network.", check="positive")
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
