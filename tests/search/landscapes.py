"""Synthetic tables over NAS-Bench-201 whose optimum and difficulty are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rbtools.records import dumps
from rbtools.scoring.rank_order import Directions
from rbtools.search.driver import Value
from rbtools.search.objective import objectives
from rbtools.search.result_table import ResultTable
from rbtools.search.search_space import CellSpace
from rbtools.spaces import nasbench201
from tests.runner import lines

Record = dict[str, Any]
PRICES = (
    (0, 5, 3, 9, 1),
    (2, 7, 4, 8, 0),
    (1, 3, 6, 11, 2),
    (0, 2, 9, 5, 4),
    (3, 8, 1, 7, 2),
    (2, 0, 5, 10, 6),
)
"""The value of each operation on each edge: the best cell has 9 + 8 + 11 + 9 + 8 + 10."""


def slope(index: int) -> float:
    """A sum over edges: local search reaches the only optimum from every cell in at most six steps."""
    return float(
        sum(prices[op] for prices, op in zip(PRICES, nasbench201.ops_of({"index": index}), strict=True))
    )


def record(index: int, seed: int = 0, dataset: str = "cifar10", **metrics: float) -> Record:
    return {
        "schema": 1,
        "arch": {"space": "nasbench201", "name": f"nb201-{index}", "index": index},
        "dataset": dataset,
        "train": {"method": "pgd", "seed": seed},
        "metrics": metrics,
    }


def table_file(name: str, indices: Sequence[int] | None = None, more: float = 0.0) -> str:
    """Write a table of every class of cells, or of these, whose `acc` is their slope, and `more`."""
    rows = [
        record(index, dataset=name.partition(".")[0], acc=slope(index) + more)
        for index in indices or nasbench201.unique()
    ]
    Path(name).write_text(lines(*rows))
    return name


def table_of(objective: str, **landscapes: Callable[[int], float]) -> ResultTable:
    """A table of every class of cells, by its representative, whose metrics are these."""
    lower = "price" if "price" in objective else None
    table = ResultTable(objectives([objective], Directions(lower=lower)))
    for index in nasbench201.unique():
        made = record(index, **{name: landscape(index) for name, landscape in landscapes.items()})
        table.add(made, dumps(made))
    return table


class Counting:
    """Values of all cells, a class of isomorphic ones by its representative; it counts the look-ups."""

    def __init__(self, landscape: Callable[[int], float], field: CellSpace | None = None) -> None:
        self.landscape, self.field = landscape, field or CellSpace(share=False)
        self.asked: Counter[Hashable] = Counter()

    def __call__(self, indices: Sequence[int]) -> Mapping[Hashable, Value]:
        self.asked.update(self.field.keys[index] for index in indices)
        return {self.field.keys[index]: (self.landscape(self.field.keys[index]),) for index in indices}
