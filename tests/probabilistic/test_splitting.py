"""Rare failures: closed forms for all noises, agreement with plain sampling, and what the record says."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from rbtools.evaluation.base import Batch
from rbtools.evaluation.rare_failures import RareFailure
from rbtools.probabilistic import NOISES
from rbtools.probabilistic.splitting import Splitting, findings
from rbtools.rng.draws import Draws

SHAPE = (1, 8, 8)


def found(
    noise: str, event: str, amount: float, seed: int = 0, norm: str = "linf", **options: float
) -> Tensor:
    """Log-probabilities, a run each, of an event on the unit draw."""
    made = NOISES.build(noise, norm=norm)

    def score(normals: Tensor) -> Tensor:
        unit = made.shaped(normals, SHAPE).flatten(1)
        if event == "corner":  # the first `amount` coordinates are all clamped at 1
            return unit[:, : int(amount)].sum(1) - amount
        if event == "simplex":  # eight coordinates lie within `amount` of their corner in all
            return amount - (1 - unit[:, :8]).sum(1)
        return unit[:, 0] - amount  # a linear model that sees one pixel

    draws = Draws(seed, "rare", torch.tensor([3]))
    return Splitting(**options).log_probabilities(score, made.width(SHAPE), draws)


GAUSSIAN_CORNER, LAPLACE_CORNER = 0.5 * math.erfc(1 / math.sqrt(2)), 0.5 * math.exp(-1)


@pytest.mark.parametrize(
    ("noise", "event", "amount", "probability"),
    [
        ("gaussian", "corner", 11, GAUSSIAN_CORNER**11),  # 1.6e-9
        ("laplace", "corner", 12, LAPLACE_CORNER**12),  # 1.5e-9
        ("uniform", "simplex", 0.5, 0.25**8 / math.factorial(8)),  # 3.8e-10
        ("uniform", "linear", 1 - 2e-5, 1e-5),
        ("uniform", "linear", 1 - 2e-8, 1e-8),
        ("gaussian", "linear", 0.999, 0.5 * math.erfc(0.999 / math.sqrt(2))),  # not rare at all
        ("laplace", "linear", 0.5, 0.5 * math.exp(-0.5)),
    ],
)
def test_closed_forms(noise: str, event: str, amount: float, probability: float) -> None:
    logs = found(noise, event, amount)
    estimate = float(logs.exp().mean().log())
    spread = float(logs.std()) / math.sqrt(len(logs))
    assert spread < 0.35  # ten runs tell the probability to a factor of two
    assert estimate == pytest.approx(math.log(probability), abs=4 * spread + 0.1)


def test_a_cap_of_the_l2_ball() -> None:
    """P(u_1 > c) of a uniform point in the unit ball of 64 dimensions, by the density (1 - t^2)^31.5."""
    grid = torch.linspace(-1, 1, 2_000_001, dtype=torch.float64)
    density = (1 - grid**2).pow(31.5)
    want = float((density[grid > 0.6].sum() / density.sum()).log())  # 3e-8
    logs = found("uniform", "linear", 0.6, norm="l2")
    assert float(logs.exp().mean().log()) == pytest.approx(want, abs=4 * float(logs.std()) / 10**0.5 + 0.1)


def test_what_never_happens_is_below_the_floor() -> None:
    logs = found("gaussian", "linear", 1.5, floor=1e-4, runs=2, particles=50)
    assert logs.tolist() == [-math.inf] * 2
    assert bool((found("uniform", "simplex", 0.5, floor=1e-6, runs=2) == -math.inf).all())


def test_the_mean_over_runs_is_the_probability() -> None:
    """A level that counts its own lowest survivor gives 1.9 times the truth where five of fifty survive."""
    draws, limit = Draws(0, "rare", torch.tensor([3])), 3.719016485455709
    split = Splitting(runs=1000, particles=50)
    shares = split.log_probabilities(lambda normals: normals[:, 0] - limit, 1, draws).exp() * 1e4
    error = float(shares.std()) / math.sqrt(len(shares))
    assert error < 0.1 and float(shares.mean()) == pytest.approx(1, abs=4 * error)


def test_a_plateau_below_the_event_counts_as_one_level() -> None:
    """A network may give one score to half of all noise: exact where the population does not die out."""

    def score(normals: Tensor) -> Tensor:
        return torch.where(normals[:, 0] > 1, normals[:, 0] - 2, torch.full_like(normals[:, 0], -3.0))

    draws = Draws(0, "rare", torch.tensor([3]))
    shares = Splitting(runs=400, particles=50, keep=0.5).log_probabilities(score, 1, draws).exp()
    truth = 0.5 * math.erfc(2 / math.sqrt(2))
    assert float(shares.mean()) == pytest.approx(truth, abs=4 * float(shares.std()) / 20)


def test_the_findings_by_hand() -> None:
    rows = [
        [7, math.log(1e-3), math.log(4e-3)],
        [9, -math.inf, -math.inf],
        [2, math.nan, math.nan],
        [4, -math.inf, math.log(2e-6)],
    ]
    made = findings(rows, confidence=0.9)
    assert made["n"] == 3 and made["below_floor"] == 1
    assert made["value"] == pytest.approx((2.5e-3 + 1e-6) / 3)
    assert made["ci90"][0] < made["value"] < made["ci90"][1] < 1
    first, second, third = made["images"]
    assert first["id"] == 7 and first["runs"] == 2 and first["log_p"] == pytest.approx(math.log(2.5e-3))
    assert first["spread"] == pytest.approx(math.log(4) / math.sqrt(2))
    assert second == {"id": 9, "log_p": None, "spread": None, "runs": 0}
    assert third["spread"] is None and third["runs"] == 1
    nothing = findings([[1, math.nan]])
    assert nothing["value"] is None and "no image is classified correctly" in nothing["reason"]


class OnePixel(nn.Module):
    """Class 1 is ahead where the first pixel is below the limit."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, images: Tensor) -> Tensor:
        ahead = self.limit - images.flatten(1)[:, 0]
        return torch.stack([torch.zeros_like(ahead), ahead], dim=1)


@pytest.mark.parametrize("probability", [1e-8, 1e-7])
def test_uniform_noise_on_the_pixel_that_decides(probability: float) -> None:
    """x = gamma = 1/8, so that the lowest pixels are near 0, where float32 tells them apart."""
    split, gamma = Splitting(runs=400, particles=100), 0.125
    spec = RareFailure(noise=NOISES.build("uniform"), gamma=gamma, split=split)
    model = OnePixel(2 * gamma * probability)
    number = torch.tensor([0])
    batch = Batch(model, torch.full((1, 1, 1, 2), gamma), number, number, seed=0, chunk_size=1 << 17)
    shares = spec.rows(batch).values[0, 1:].double().exp() / probability
    error = float(shares.std()) / math.sqrt(len(shares))
    assert error < 0.1 and float(shares.mean()) == pytest.approx(1, abs=3.5 * error)
