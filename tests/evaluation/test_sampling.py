"""Noisy copies, counted: PR and randomised smoothing against closed forms and plain loops; early stops."""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rbtools.certification.smooth import Smooth
from rbtools.evaluation.base import Batch
from rbtools.evaluation.certified import Smoothed
from rbtools.evaluation.noisy_copies import sample_copies
from rbtools.probabilistic import NOISES, sequential, smoothing
from rbtools.rng.draws import Draws


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


@pytest.mark.parametrize(
    ("noise", "gamma", "failing"),
    [  # one pixel of .5 is right while delta > -.1; half of gamma is then .1
        ("uniform", 0.2, 0.25),
        ("gaussian", 0.2, NormalDist().cdf(-0.5)),
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


@pytest.mark.parametrize("noise", ["uniform", "gaussian", "laplace"])
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
        z = {"gaussian": generator.normal, "laplace": generator.laplace}[noise](size=(100_000, d))
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


RADII = (0.0, 0.25, 0.5, 0.75)


def spec_of(**options: Any) -> Smoothed:
    return Smoothed(method=Smooth(**{"samples": 4000, **options}), eps=RADII[0], radii=RADII)


FIXED, ADAPTIVE = spec_of(), spec_of(adaptive=True)


class Half(nn.Module):
    """Class 1 where w . x > b, of length 1: the smoothed classifier is the same, with the exact radius w . x
    - b on either side."""

    def __init__(self, threshold: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.functional.normalize(torch.randn(48, generator=generator), dim=0)
        self.threshold = threshold

    def forward(self, images: Tensor) -> Tensor:
        score = images.flatten(1) @ self.weight - self.threshold
        return torch.stack([torch.zeros_like(score), score], dim=1)


def batch_of(
    distances: list[float], *, labels: list[int] | None = None, chunk: int = 64, first: int = 0
) -> Batch:
    """Images at these signed distances from the boundary of Half()."""
    model = Half()
    away = torch.tensor(distances)[:, None] * model.weight
    side = torch.tensor([1 if distance > 0 else 0 for distance in distances] if labels is None else labels)
    ids = torch.arange(first, first + len(distances))
    return Batch(model, away.view(-1, 3, 4, 4), side, ids, seed=0, chunk_size=chunk)


def rows_of(batch: Batch, spec: Smoothed) -> np.ndarray:
    return spec.rows(batch).values.numpy()


DISTANCES = [0.005, 0.1, -0.2, 0.3, -0.45, 0.6, 0.9, 1.5]


def test_a_linear_network_is_certified_to_just_below_its_distance() -> None:
    rows = rows_of(batch_of(DISTANCES), FIXED)
    radii = FIXED.certified(rows)
    exact = np.abs(DISTANCES)
    most = smoothing.largest_radius(4000, 0.25, 0.001)
    assert (np.nan_to_num(radii) <= exact).all()  # each with a chance of .999
    assert math.isnan(radii[0]) and radii[1] > 0.07
    for radius, distance in zip(radii[2:], exact[2:], strict=True):
        assert radius > min(distance - 0.06, most - 1e-6)
    assert rows[:, 1].all() and (rows[:, 2] == 4000).all()


def test_counts_are_those_of_a_plain_loop() -> None:
    """Every draw alone: n0 to select, then others to estimate."""
    batch = batch_of([0.05, -0.2], first=7)
    rows = rows_of(batch, spec_of(samples=300, select=20))
    for place, example in enumerate((7, 8)):
        image, classes = batch.images[place], []
        for stream, count in (("smooth.select", 20), ("smooth.estimate", 300)):
            own = Draws(0, stream, torch.tensor([example]))
            noise = torch.cat([own.normal((128, 3, 4, 4), draw=block)[0] for block in range(3)])[:count]
            classes.append(torch.cat([Half()(image[None] + 0.25 * z).argmax(1) for z in noise]))
        selected = int(classes[0].bincount(minlength=2).argmax())
        hits = int((classes[1] == selected).sum())
        assert rows[place, :4].tolist() == [selected, float(selected == batch.labels[place]), 300, hits]


def test_adaptive_draws_decide_the_list_as_the_distances_do() -> None:
    fixed, rows = rows_of(batch_of(DISTANCES), FIXED), rows_of(batch_of(DISTANCES), ADAPTIVE)
    certified = ADAPTIVE.certified(rows)
    assert math.isnan(certified[0])
    assert certified[1:].tolist() == [0.0, 0.0, 0.25, 0.25, 0.5, 0.5, 0.5]  # .75 takes 5,100 draws
    assert (np.nan_to_num(certified) <= np.abs(DISTANCES)).all()
    assert rows[:, 2].sum() < fixed[:, 2].sum() / 3
    # An image at .3 is decided on .25, given up at .5 and never asked for more.
    assert set(rows[:, 2]) <= set(smoothing.stopping_plan(4000, FIXED.questions, 0.25, 0.001).checks.tolist())


@pytest.mark.parametrize("spec", [FIXED, ADAPTIVE], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("chunk", [1, 37, 1000])
def test_neither_other_images_nor_the_chunk_change_a_row(spec: Smoothed, chunk: int) -> None:
    spec = spec_of(samples=1000, adaptive=spec.method.adaptive)
    together = rows_of(batch_of(DISTANCES), spec)
    alone = [rows_of(batch_of([d], chunk=chunk, first=i), spec) for i, d in enumerate(DISTANCES)]
    assert np.array_equal(together, np.concatenate(alone))


def test_entries_count_what_is_certified() -> None:
    # The fourth and the last label are wrong; the classifier abstains on the first and the last image.
    rows = rows_of(batch_of([*DISTANCES, 0.005], labels=[1, 1, 0, 0, 0, 1, 1, 1, 0]), FIXED)
    entries = [dataclasses.replace(FIXED, eps=radius).entry(rows) for radius in RADII]
    assert [entry["metric"] for entry in entries] == [f"cert.smooth.0.25.{r:g}" for r in FIXED.radii]
    assert [round(entry["value"] * 9, 9) for entry in entries] == [6, 4, 3, 0]  # 4,000 draws reach .73
    assert {entry["abstained"] for entry in entries} == {2}
    right = [radius for i, radius in enumerate(FIXED.certified(rows)) if i not in (0, 3, 8)]
    assert entries[0]["mean_radius"] == pytest.approx(sum(right) / 9, abs=1e-6)
    assert all(entry["ci95"][0] <= entry["value"] < entry["ci95"][1] for entry in entries)
