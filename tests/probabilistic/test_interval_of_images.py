"""Intervals of means of losses and distances of images, of which a few may decide."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from rbtools.probabilistic.intervals import of_images, skewed_interval

RNG = np.random.default_rng(0)
LAWS: dict[str, tuple[Callable[[tuple[int, int]], np.ndarray], float]] = {
    "normal": (lambda size: RNG.normal(2, 1, size), 2.0),
    "exponential": (lambda size: RNG.exponential(1, size), 1.0),
    "log-normal": (lambda size: RNG.lognormal(0, 1, size), math.exp(0.5)),
    "log-normal downwards": (lambda size: -RNG.lognormal(0, 1, size), -math.exp(0.5)),
    "Pareto": (lambda size: RNG.pareto(2.5, size) + 1, 2.5 / 1.5),
    "one in twenty": (
        lambda size: np.where(RNG.random(size) < 0.05, RNG.exponential(5, size), RNG.exponential(0.05, size)),
        0.05 * 5 + 0.95 * 0.05,
    ),
}


@pytest.mark.parametrize("law", LAWS)
def test_means_of_a_hundred_are_covered(law: str) -> None:
    draw, mean = LAWS[law]
    ends = [of_images(row) for row in draw((1000, 100))]
    assert np.mean([low <= mean <= high for low, high in ends]) > 0.94


def test_the_ends_by_hand() -> None:
    values = [0.0, 0.0, 1.0, 3.0]
    skewness = float(np.mean((np.array(values) - 1) ** 3)) / 1.5**1.5
    ends = [skewed_interval(1.0, math.sqrt(2), known, 4) for known in (0.0, skewness)]
    low, high = of_images(values)
    assert low == pytest.approx(min(ends)[0] - 0.75) and high == pytest.approx(
        max(one[1] for one in ends) + 1.5
    )
    assert of_images(values, 0.0) == (0.0, high)
    assert of_images([0.5, 0.5, 0.5]) == (0.5, 0.5)
