from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from rbtools.errors import UsageError
from rbtools.lazy import np
from rbtools.registry import param
from rbtools.search.driver import Algorithm, Proposals
from rbtools.search.run_draws import RunDraws
from rbtools.search.search_space import CellSpace, SearchSpace
from rbtools.spaces.nasbench201 import EDGES, OPS

FAILED = 1e30  # a finite value, because pymoo sorts finite numbers only


@dataclasses.dataclass(frozen=True, kw_only=True)
class NSGA2(Algorithm):
    """NSGA-II (Deb et al., 2002) for several objectives. The package pymoo is needed (pip install
    'rbtools[search]').

    A cell consists of six choices among five operations. With probability `crossover=0.9`, two parents are
    mixed edge by edge. The operation of each edge changes with probability `mutation`. If the table does not
    contain a child, the nearest cell of the table replaces the child.
    """

    name: ClassVar[str] = "nsga2"
    many: ClassVar[bool] = True

    population: int = param(20, "Number of architectures in each generation.", check="positive")
    crossover: float = param(0.9, "Probability that two parents are mixed.", check="fraction")
    mutation: float = param(0.17, "Probability that the operation of an edge changes.", check="fraction")

    def propose(self, field: SearchSpace, draws: RunDraws) -> Proposals:
        if not isinstance(field, CellSpace):
            field.neighbours(0)  # this raises RbError for other spaces, which have no edges to mix
            return
        while True:  # restart if crossover and mutation find nothing new
            yield from self._generations(field, draws)

    def _generations(self, field: CellSpace, draws: RunDraws) -> Proposals:
        members = list(dict.fromkeys(field.sample(draws) for _ in range(max(self.population, 2))))
        values = yield members
        if len(members) < 2:
            return
        algorithm = self._algorithm([field.ops(index) for index in members], draws)
        from pymoo.core.problem import Problem

        problem = Problem(n_var=len(EDGES), n_obj=len(values[0]), xl=0, xu=len(OPS) - 1, vtype=int)
        algorithm.setup(problem, termination=("n_gen", math.inf), seed=draws.below(1 << 31))
        children = algorithm.ask()
        while children is not None and len(children):
            if values is None:
                cells = [tuple(int(op) for op in cell) for cell in children.get("X")]
                members = [field.nearest(cell) for cell in cells]
                children.set("X", np.array([field.ops(index) for index in members]))
                values = yield members
            costs = [[-number if math.isfinite(number) else FAILED for number in value] for value in values]
            children.set("F", np.array(costs))
            for child in children:
                child.evaluated.update("FGH")
            algorithm.tell(infills=children)
            values, children = None, algorithm.ask()

    def _algorithm(self, cells: Sequence[Sequence[int]], draws: RunDraws) -> Any:
        """Returns pymoo's algorithm with these cells as the first generation."""
        try:
            from pymoo.algorithms.moo.nsga2 import NSGA2 as Algorithm
            from pymoo.config import Config
            from pymoo.core.mutation import Mutation
            from pymoo.operators.crossover.ux import UX
        except ImportError as missing:
            raise UsageError(
                f"rb-search nsga2 needs the package pymoo ({missing}). Install it with pip install"
                " 'rbtools[search]'."
            ) from None
        Config.warnings["not_compiled"] = False
        chance = self.mutation

        class Changed(Mutation):
            def _do(self, problem: object, X: np.ndarray, **_: object) -> Any:
                return np.array([[_another(int(op), chance, draws) for op in cell] for cell in X])

        return Algorithm(
            pop_size=len(cells),
            sampling=np.array(cells),
            crossover=UX(prob=self.crossover),
            mutation=Changed(),
            eliminate_duplicates=True,
        )


def _another(op: int, chance: float, draws: RunDraws) -> int:
    if draws.uniform() >= chance:
        return op
    return (op + 1 + draws.below(len(OPS) - 1)) % len(OPS)
