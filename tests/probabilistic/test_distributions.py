"""Noise: its distribution, the copies that rb-pr classifies, and what a call refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from rbtools.errors import RbError
from rbtools.evaluation import noisy_copies
from rbtools.evaluation.base import Batch
from rbtools.probabilistic import NOISES
from rbtools.rng.draws import Draws


def draws(start: int, stop: int) -> Draws:
    return Draws(0, "noise", torch.arange(start, stop))


IN_BALLS = ("uniform", "gaussian", "laplace")


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", IN_BALLS)
def test_normal_numbers_make_the_same_noise(name: str, norm: str) -> None:
    noise, shape = NOISES.build(name, norm=norm), (1, 5, 5)
    sampled = noise.unit(draws(0, 4000), shape, 0).flatten(1)
    mapped = noise.shaped(draws(0, 4000).normal((noise.width(shape),), draw=9), shape).flatten(1)
    assert sampled.shape == mapped.shape == (4000, 25)
    for view in (lambda unit: unit[:, 0], lambda unit: unit.norm(dim=1), lambda unit: unit[:, 3:5].sum(1)):
        assert stats.ks_2samp(view(sampled).numpy(), view(mapped).numpy()).pvalue > 0.001


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


def test_truncated_noise_goes_with_neither_the_l2_ball_nor_no_clipping() -> None:
    for params in ({"norm": "l2"}, {"clip": False}):
        with pytest.raises(RbError, match="instead of clipping"):
            NOISES.build("uniform", truncate=True, **params)


KINDS = [
    *((name, {"norm": norm}) for name in IN_BALLS for norm in ("linf", "l2")),
    *((name, {"clip": False}) for name in IN_BALLS),
    *((name, {}) for name in ("rotation", "affine", "blur", "patch")),
    ("uniform", {"truncate": True}),
]


class Recorder(nn.Module):
    """A network that keeps the images that it sees, and finds all of them in class 0."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(images.clone())
        return torch.tensor([[1.0, 0.0]]).repeat(len(images), 1)


@pytest.mark.parametrize(("name", "options"), KINDS)
def test_copies_are_those_that_the_evaluation_classifies(name: str, options: dict[str, Any]) -> None:
    noise, model = NOISES.build(name, **options), Recorder()
    images = torch.rand(3, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    kept, examples = images.clone(), torch.tensor([7, 2, 40])
    batch = Batch(model, images, torch.zeros(3, dtype=torch.int64), examples, seed=5, chunk_size=1000)
    assert batch.clean.all()
    model.seen.clear()
    noisy_copies.sample_copies(batch, noise, [0.2], 6)
    seen = torch.cat(model.seen).view(6, 3, 2, 5, 4)
    copies = noise(images, 0.2, 6, seed=5, examples=examples)
    assert torch.equal(copies, seen) and torch.equal(images, kept)
    assert torch.equal(noise(images[1:], 0.2, draw=4, seed=5, examples=examples[1:]), seen[4, 1:])
    assert torch.equal(noise(images, 0.2, 2, draw=3, seed=5, examples=examples), seen[3:5])


def test_the_first_copy_of_seed_0_and_examples_from_0_on_is_the_default() -> None:
    noise, images = NOISES.build("gaussian"), torch.full((3, 1, 4, 4), 0.5)
    first = noise(images, 0.1, 2, seed=0, examples=torch.arange(3))[0]
    assert torch.equal(noise(images, 0.1), first)
    assert not torch.equal(noise(images, 0.1, seed=1), first)
    assert torch.equal(noise(images, 0.0), images)


IMAGES = torch.full((2, 3, 16, 16), 0.5)


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (IMAGES, {"gamma": -0.1}, r"gamma is -0\.1\. Expected a radius of 0 or more"),
        (IMAGES * 255, {}, r"values from 127\.5 to 127\.5\. Expected values in \[0, 1\]"),
        (IMAGES, {"draw": -1}, r"samples is 1 and draw is -1"),
        (IMAGES, {"samples": 2, "draw": 2**32 - 1}, r"samples is 2 and draw is 4294967295"),
        (IMAGES, {"examples": torch.arange(3)}, r"Expected 2 whole numbers"),
    ],
)
def test_wrong_input_is_one_sentence(images: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RbError, match=message):
        NOISES.build("uniform")(images, **{"gamma": 0.1, **options})
