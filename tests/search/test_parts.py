"""The parts that searches are made of: paths, the predictor, fronts, objectives, spreads."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from operator import ge

import numpy as np
import pytest

from rbtools.errors import UsageError
from rbtools.search import front, predictor
from rbtools.search.bananas import Bananas
from rbtools.search.objective import objectives
from rbtools.search.predictor import WIDTH, FittedPredictor, features
from rbtools.search.run_draws import RunDraws
from rbtools.search.search_space import CellSpace
from rbtools.spaces import nasbench201
from tests import runner
from tests.search.landscapes import record

SMALL = Bananas(networks=2, layers=2, width=4, epochs=20)


def test_a_cell_has_a_feature_for_each_sequence_of_operations_along_its_paths() -> None:
    assert WIDTH == 155
    assert features((0, 0, 0, 0, 0, 0)) == [0, 5, 30]
    # 0>3 alone; 0>1>3 and 0>2>3, first edge least significant; 0>1>2>3.
    assert features((1, 2, 3, 4, 0, 1)) == sorted([4, 5 + 1 + 0 * 5, 5 + 2 + 1 * 5, 30 + 1 + 3 * 5 + 1 * 25])
    cells = list(itertools.product(range(5), repeat=6))
    assert all(0 <= one < WIDTH for cell in cells[::97] for one in features(cell))
    assert {one for cell in cells for one in features(cell)} == set(range(WIDTH))


def fit(seed: int, count: int = 40) -> FittedPredictor:
    chance = np.random.RandomState(seed)
    cells = [features(tuple(chance.randint(5, size=6))) for _ in range(count + 4)]
    return FittedPredictor(SMALL, cells[:count], list(0.1 + chance.random_sample(count)), cells[count:], seed)


def test_a_fit_does_not_depend_on_its_company() -> None:
    together = FittedPredictor.all([fit(0), fit(1), fit(2, count=9), fit(3)])
    for seed, count in ((0, 40), (2, 9), (3, 40)):
        (alone,) = FittedPredictor.all([fit(seed, count)])
        assert alone.shape == (2, 4) and np.array_equal(alone, together[seed])


@pytest.mark.parametrize("loss", ["mape", "mae"])
def test_the_gradient_of_the_predictor_is_that_of_its_loss(loss: str) -> None:
    networks = predictor._Networks(
        dataclasses.replace(SMALL, loss=loss, networks=1), [np.random.RandomState(0)]
    )
    inputs, costs = predictor.encoded(fit(5).cells)[None], np.array([fit(5).costs], np.float32)

    def value() -> float:
        off = np.abs(networks.outputs(inputs).astype(float) - costs)
        return float((off / costs if loss == "mape" else off).mean())

    before = networks.params.copy()
    networks._adam = lambda: None  # type: ignore[method-assign]
    networks.step(inputs, costs)
    slopes, steepest = networks.grads[0].copy(), np.argsort(-np.abs(networks.grads[0]))[:20]
    for place in steepest:
        ends = []
        for step in (1e-3, -1e-3):
            networks.params[:] = before
            networks.params[0, place] += step
            ends.append(value())
        assert (ends[0] - ends[1]) / 2e-3 == pytest.approx(slopes[place], rel=0.05, abs=1e-3)


def test_a_front_is_what_nothing_dominates() -> None:
    points = [(1.0, 1.0), (0.0, 3.0), (2.0, 0.0), (1.0, 0.5), (0.0, 3.0), (0.5, 1.0)]
    assert front.front(points, tuple) == points[:3]
    chance = np.random.RandomState(1)
    many = [tuple(map(float, row)) for row in chance.randint(6, size=(60, 3))]
    beaten = {one for one in many for other in many if other != one and all(map(ge, other, one))}
    assert set(front.front(many, tuple)) == {*many} - beaten


def test_the_hypervolume_is_that_of_the_boxes() -> None:
    assert front.hypervolume([(1.0, 0.5), (0.5, 1.0)]) == pytest.approx(0.75)
    assert front.hypervolume([(1.0, 1.0, 0.5), (0.5, 0.5, 1.0)]) == pytest.approx(0.5 + 0.125)
    assert front.hypervolume([(-1.0, 2.0)]) == 0 == front.hypervolume([])
    chance = np.random.RandomState(2)
    points = [tuple(map(float, row)) for row in chance.random_sample((12, 3))]
    inside = chance.random_sample((40000, 3))
    share = np.any([np.all(inside <= np.array(point), axis=1) for point in points], axis=0).mean()
    assert front.hypervolume(points) == pytest.approx(share, abs=0.01)


def test_objectives_are_cut_at_commas_outside_of_brackets() -> None:
    found = objectives(["mean(acc, pgd20.8), params", "ge.acc:higher", "acc:lower"])
    assert [(one.text, one.higher) for one in found] == [
        ("mean(acc, pgd20.8)", True),
        ("params", False),
        ("ge.acc", True),
        ("acc", False),
    ]
    with pytest.raises(UsageError, match="does not parse"):
        objectives(["mean(acc"])


def test_a_cell_that_is_not_there_is_replaced_by_the_nearest_one() -> None:
    some = range(17, nasbench201.SIZE, 211)
    field = CellSpace(set(some), share=False)
    for index in range(0, nasbench201.SIZE, 499):
        cell = nasbench201.ops_of({"index": index})
        apart = [nasbench201.edit_distance(field.ops(other), cell) for other in some]
        assert field.nearest(cell) == some[apart.index(min(apart))]


def test_nsga2_without_pymoo_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymoo.algorithms.moo.nsga2", None)
    table = [record(index, acc=index / 10) for index in range(50)]
    result = runner.run("search", "nsga2 --objective acc --budget 40", table)
    assert result.exit_code == 2 and result.stdout == ""
    assert "rb-search nsga2 needs the package pymoo" in result.stderr
    assert "pip install 'rbtools[search]'" in result.stderr


def test_draws_are_uniform_normal_and_permutations() -> None:
    draws = RunDraws(0, 0)
    counts = np.bincount([draws.below(6) for _ in range(6000)])
    assert len(counts) == 6 and counts.min() > 880 and counts.max() < 1120
    normal = np.array([draws.normal() for _ in range(4000)])
    assert abs(normal.mean()) < 0.06 and abs(normal.std() - 1) < 0.05
    firsts = np.bincount([draws.shuffled(range(4))[0] for _ in range(4000)])
    assert firsts.min() > 900 and sorted(draws.shuffled(range(9))) == list(range(9))
