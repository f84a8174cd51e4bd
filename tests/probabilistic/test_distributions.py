"""Uniform noise: its range, its symmetry, its radius, and what it does to a linear classifier."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from rbtools.errors import RbError
from rbtools.probabilistic import NOISES
from rbtools.rng.draws import Draws


def draws(start: int, stop: int) -> Draws:
    return Draws(0, "noise", torch.arange(start, stop))


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", NOISES)
def test_normal_numbers_make_the_same_noise(name: str, norm: str) -> None:
    noise, shape = NOISES.build(name, norm=norm), (1, 5, 5)
    sampled = noise.unit(draws(0, 4000), shape, 0).flatten(1)
    mapped = noise.shaped(draws(0, 4000).normal((noise.width(shape),), draw=9), shape).flatten(1)
    assert sampled.shape == mapped.shape == (4000, 25)
    for view in (lambda unit: unit[:, 0], lambda unit: unit.norm(dim=1), lambda unit: unit[:, 3:5].sum(1)):
        assert stats.ks_2samp(view(sampled).numpy(), view(mapped).numpy()).pvalue > 0.001


@pytest.mark.parametrize("name", NOISES)
def test_the_l2_ball_is_kept(name: str) -> None:
    lengths = NOISES.build(name, norm="l2").unit(draws(0, 300), (3, 8, 8), 0).flatten(1).norm(dim=1)
    assert float(lengths.max()) <= 1 + 1e-6 and float(lengths.max()) > 0.99
    if name == "uniform":  # u^(1/d) with d = 192 has mean d / (d + 1)
        assert float(lengths.mean()) == pytest.approx(192 / 193, abs=0.001)
    else:
        assert 0.9 < float(lengths.mean()) < 1 and 0.3 < float((lengths >= 1 - 1e-6).float().mean()) < 0.7


def test_truncated_noise_is_uniform_in_the_part_of_the_ball_that_is_in_range() -> None:
    # wellzline/PRBenchmark, evaluate.py: a black pixel at gamma .3 has a root mean square of .173, against
    # .122 where the draw is clipped.
    images = torch.tensor([0.0, 0.5, 0.9]).view(1, 3, 1, 1).expand(4000, 3, 1, 1)
    uniform = NOISES.build("uniform", truncate=True)
    noisy = uniform.apply(images, uniform.unit(draws(0, 4000), (3, 1, 1), 0), 0.3).view(4000, 3).double()
    for pixel, (low, high) in zip(noisy.T, [(0, 0.3), (0.2, 0.8), (0.6, 1)], strict=True):
        assert stats.kstest(pixel.numpy(), stats.uniform(low, high - low).cdf).pvalue > 1e-3
    assert float(noisy[:, 0].square().mean().sqrt()) == pytest.approx(0.3 / 3**0.5, abs=0.004)
    clipped = NOISES.build("uniform")
    black = clipped.apply(images, clipped.unit(draws(0, 4000), (3, 1, 1), 0), 0.3).view(4000, 3)[:, 0]
    assert float(black.square().mean().sqrt()) == pytest.approx(0.3 / 6**0.5, abs=0.004)
    # Where the ball lies inside [0, 1] both are the same draw.
    inside = torch.full((8, 1, 4, 4), 0.5)
    unit = uniform.unit(draws(0, 8), (1, 4, 4), 0)
    assert torch.allclose(uniform.apply(inside, unit, 0.25), clipped.apply(inside, unit, 0.25), atol=1e-6)


@pytest.mark.parametrize("params", [{"norm": "l2"}, {"clip": False}])
def test_truncated_noise_goes_with_neither_the_l2_ball_nor_no_clipping(params: dict[str, object]) -> None:
    with pytest.raises(RbError, match="in place of clipping"):
        NOISES.build("uniform", truncate=True, **params)
