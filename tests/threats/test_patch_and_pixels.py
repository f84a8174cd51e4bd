"""Patches and few pixels against all places and all subsets."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rbtools.attacks.patch import Patch, PatchAttack
from rbtools.attacks.pixels import Pixels, SigmaZero, SparseRS, subset


def linear(*sizes: int) -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for one in itertools.pairwise(sizes) for layer in (nn.ReLU(), nn.Linear(*one))]
    return nn.Sequential(nn.Flatten(), *layers[1:]).eval().requires_grad_(False)


def of_patches() -> Tensor:
    return torch.rand(30, 2, 8, 9, generator=torch.Generator().manual_seed(2))


def test_the_place_of_a_grey_patch_is_the_worst_of_all() -> None:
    network, images = linear(2 * 8 * 9, 3), of_patches()
    labels = network(images).argmax(1)
    found = PatchAttack(area=0.125, stride=1, steps=0)(network, images, labels)  # type: ignore[arg-type]
    side = Patch(area=0.125).side(images)
    assert side == 3
    worst, broken = torch.zeros(30), torch.zeros(30, dtype=torch.bool)
    for row, column in itertools.product(range(8 - side + 1), range(9 - side + 1)):
        covered = images.clone()
        covered[:, :, row : row + side, column : column + side] = 0.5
        logits = network(covered)
        worst = torch.maximum(worst, functional.cross_entropy(logits, labels, reduction="none"))
        broken |= logits.argmax(1) != labels
    logits = network(found)
    assert torch.equal(logits.argmax(1) != labels, broken) and broken.any()
    unbroken = functional.cross_entropy(logits, labels, reduction="none")[~broken]
    torch.testing.assert_close(unbroken, worst[~broken])


def test_gradient_steps_stay_in_a_patch_and_break_more() -> None:
    network, images = linear(2 * 8 * 9, 3), of_patches()
    labels, threat = network(images).argmax(1), Patch(area=0.125)
    broken = []
    for steps in (0, 20):
        found = PatchAttack(area=0.125, steps=steps)(network, images, labels)  # type: ignore[arg-type]
        assert threat.contains(found, images).all()
        broken.append(int((network(found).argmax(1) != labels).sum()))
    assert broken[1] > broken[0]


def test_patches_are_judged_and_projected() -> None:
    images, threat = torch.rand(3, 1, 8, 8), Patch(area=0.0625)  # 2 by 2 pixels
    points = images.clone()
    points[0, :, 3:5, 6:8] = 0.123
    points[1, 0, 0, 0] = points[1, 0, 2, 0] = 0.123  # three rows apart
    points[2, 0, 5, 5] = 1.5
    assert threat.contains(points, images).tolist() == [True, False, False]
    projected = threat.project(torch.rand(3, 1, 8, 8), images)
    assert threat.contains(projected, images).all() and not torch.equal(projected, images)


@pytest.mark.parametrize("pixels", [1, 2, 3])
def test_sparse_rs_breaks_what_some_subset_breaks(pixels: int) -> None:
    """On images of 3 by 3 pixels, against all subsets of pixels with all corners of the colour cube."""
    network = linear(9, 6, 3)
    images = torch.rand(20, 1, 3, 3, generator=torch.Generator().manual_seed(1))
    labels = network(images).argmax(1)
    expected = torch.zeros(20, dtype=torch.bool)
    for places in itertools.combinations(range(9), pixels):
        for values in itertools.product((0.0, 1.0), repeat=pixels):
            changed = images.flatten(1).clone()
            changed[:, list(places)] = torch.tensor(values)
            expected |= network(changed.view_as(images)).argmax(1) != labels
    found = SparseRS(pixels=pixels, queries=800)(network, images, labels)  # type: ignore[arg-type]
    assert Pixels(pixels=pixels).contains(found, images).all()
    assert torch.equal(network(found).argmax(1) != labels, expected) and expected.any()


def test_sigma_zero_finds_few_pixels() -> None:
    """Never fewer than the smallest subset, and for most images as few."""
    network, images = linear(9, 6, 3), torch.rand(20, 1, 3, 3, generator=torch.Generator().manual_seed(1))
    labels = network(images).argmax(1)
    least = torch.full((20,), 3.0)
    for pixels in (2, 1):
        found = SparseRS(pixels=pixels, queries=300)(network, images, labels)  # type: ignore[arg-type]
        least[network(found).argmax(1) != labels] = pixels
    found = SigmaZero(pixels=9, steps=60)(network, images, labels)  # type: ignore[arg-type]
    broken = network(found).argmax(1) != labels
    count = Pixels(pixels=9).distances(found, images)
    assert broken.float().mean() > 0.9
    assert (count[broken] == least[broken]).float().mean() > 0.7


def test_only_the_pixels_that_changed_most_are_kept() -> None:
    images, points = torch.zeros(1, 3, 2, 2), torch.zeros(1, 3, 2, 2)
    points[0, :, 0, 1], points[0, 0, 1, 0], points[0, 2, 1, 1] = 0.3, 0.9, 0.4
    kept = Pixels(pixels=2).project(points, images)
    assert (kept != 0).any(1).flatten().tolist() == [False, True, True, False]


def test_all_subsets_are_equally_likely() -> None:
    words = torch.randint(1 << 32, (30_000, 2), generator=torch.Generator().manual_seed(0))
    chosen: Tensor = subset(words, 4).sort(1).values
    assert (chosen[:, 0] < chosen[:, 1]).all()
    counts = torch.bincount(4 * chosen[:, 0] + chosen[:, 1])
    assert counts[counts > 0].numel() == 6 and (counts[counts > 0] - 5000).abs().max() < 300
