"""Noisy copies, counted: closed forms, a plain loop, early stops, and a less exact search."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rbtools.evaluation.base import Batch
from rbtools.evaluation.probabilistic import sample_copies
from rbtools.probabilistic import NOISES, sequential


class Above(nn.Module):
    """Class 1 where the mean of the first k pixels is above a threshold; `blur` is added to the logits."""

    def __init__(self, k: int, threshold: float, blur: float = 0.0) -> None:
        super().__init__()
        self.k, self.threshold, self.blur, self.seen = k, threshold, blur, 0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        score = images.flatten(1)[:, : self.k].mean(1) - self.threshold
        wrong = self.blur * torch.sin(1e4 * images.flatten(1).sum(1))
        return torch.stack([torch.zeros_like(score), score + wrong], dim=1)


def tile_of(model: nn.Module, images: int = 200, search: nn.Module | None = None, batch: int = 128) -> Batch:
    return Batch(
        model,
        torch.full((images, 1, 8, 8), 0.5),
        torch.ones(images, dtype=torch.int64),
        torch.arange(images),
        seed=0,
        chunk_size=batch,
        fast_model=search,
    )


def normal_tail(t: float) -> float:
    return 0.5 * math.erfc(t / math.sqrt(2))


@pytest.mark.parametrize(
    ("noise", "gamma", "failing"),
    [  # one pixel of .5 is right while delta > -.1; half of gamma is then .1
        ("uniform", 0.2, 0.25),
        ("gaussian", 0.2, normal_tail(0.5)),
        ("laplace", 0.2, 0.5 * math.exp(-0.5)),
        ("gaussian", 0.09, 0.0),  # clamped at gamma
        ("laplace", 0.09, 0.0),
    ],
)
def test_pr_of_a_linear_model_is_its_closed_form(noise: str, gamma: float, failing: float) -> None:
    images, samples = 100, 60
    (found,) = sample_copies(tile_of(Above(1, 0.4), images), NOISES.build(noise), [gamma], samples)
    share = 1 - found.right.sum().item() / (images * samples)
    assert share == pytest.approx(failing, abs=4 * math.sqrt(failing * (1 - failing) / (images * samples)))


@pytest.mark.parametrize("noise", NOISES)
def test_pr_of_a_linear_model_in_the_l2_ball(noise: str) -> None:
    """Failing is a cap of the ball: the first coordinate of 64 below -.25 of the radius."""
    images, samples, gamma, d = 100, 60, 0.4, 64
    chosen = NOISES.build(noise, norm="l2", clip=False)
    (found,) = sample_copies(tile_of(Above(1, 0.4), images), chosen, [gamma], samples)
    generator = np.random.default_rng(0)
    if noise == "uniform":  # direction times u^(1/d)
        z = generator.normal(size=(100_000, d))
        z *= generator.random((len(z), 1)) ** (1 / d) / np.linalg.norm(z, axis=1, keepdims=True)
    else:
        z = (
            generator.normal(size=(100_000, d))
            if noise == "gaussian"
            else generator.laplace(size=(100_000, d))
        )
        z /= math.sqrt(d if noise == "gaussian" else 2 * d)
        z /= np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1)
    failing = float((z[:, 0] < -0.25).mean())
    share = 1 - found.right.sum().item() / (images * samples)
    assert share == pytest.approx(failing, abs=5 * math.sqrt(failing * (1 - failing) / (images * samples)))


@pytest.mark.parametrize("batch", [1, 7, 128])
def test_an_early_stop_counts_the_same_draws_whatever_the_batch(batch: int) -> None:
    samples, rhos = 60, (0.1, 0.3)
    noise, gammas = NOISES.build("uniform"), (0.15, 0.2, 0.5)
    rules = [sequential.fixed(samples, rho) for rho in rhos]
    full = sample_copies(tile_of(Above(2, 0.4), 20), noise, gammas, samples)
    found = sample_copies(tile_of(Above(2, 0.4), 20, batch=batch), noise, gammas, samples, rules)
    for early, all_ in zip(found, full, strict=True):
        wrong = samples - all_.right
        for place, rho in enumerate(rhos):
            passes = wrong <= sequential.allowed(samples, rho)
            assert torch.equal(early.decisions[:, place], passes.long())
        assert bool((early.drawn <= samples).all()) and int(early.drawn.sum()) < 20 * samples
        # What is drawn is a beginning of the full run: the decision falls on its last draw.
        failed = early.drawn - early.right
        decided = torch.stack(
            [
                (early.drawn >= torch.as_tensor(rule.passes)[failed.clamp(max=len(rule.passes) - 1)])
                | (early.drawn <= torch.as_tensor(rule.fails)[failed.clamp(max=len(rule.fails) - 1)])
                for rule in rules
            ]
        )
        assert bool(decided.any(0).all())
    alone = sample_copies(tile_of(Above(2, 0.4), 20), noise, gammas, samples, rules)
    assert all(torch.equal(a.drawn, b.drawn) for a, b in zip(alone, found, strict=True))


def test_a_search_that_errs_changes_no_decision_and_saves_passes() -> None:
    samples, gammas, noise = 40, (0.15, 0.3), NOISES.build("gaussian")
    exact = Above(2, 0.4)
    want = sample_copies(tile_of(exact), noise, gammas, samples)
    asked, exact.seen = exact.seen, 0
    erring = Above(2, 0.4, blur=0.003)
    found = sample_copies(tile_of(exact, search=erring), noise, gammas, samples)
    assert all(torch.equal(a.right, b.right) for a, b in zip(want, found, strict=True))
    assert erring.seen == 2 * 200 * samples and exact.seen < 0.15 * asked
    blind = Above(2, 0.4, blur=0.003)  # without confirmation the counts would differ
    naive = sample_copies(tile_of(blind), noise, gammas, samples)
    assert any(not torch.equal(a.right, b.right) for a, b in zip(want, naive, strict=True))
    assert found[0].totals["confirmed"] + found[1].totals["confirmed"] == exact.seen - 200  # the clean ones


def test_what_is_wrong_without_noise_is_sampled_only_on_request() -> None:
    tile = tile_of(Above(1, 0.4), 10)
    tile.labels[:5] = 0
    (found,) = sample_copies(tile, NOISES.build("uniform"), [0.2], 50)
    assert found.right[:5].tolist() == [-1] * 5 and found.drawn.tolist() == [0] * 5 + [50] * 5
    (every,) = sample_copies(tile, NOISES.build("uniform"), [0.2], 50, everyone=True)
    assert torch.equal(every.right[5:], found.right[5:]) and bool((every.right[:5] < 30).all())
