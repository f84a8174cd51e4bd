"""MI-FGSM: its momentum, copies and kernel in closed form, and the steps of torchattacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rbtools.attacks import ATTACKS
from rbtools.attacks.mi_fgsm import MIFGSM, copies
from rbtools.errors import RbError
from tests.networks import draws_for, images_for

EPS = 0.1


def labels_of(model: Any, images: Tensor) -> Tensor:
    return model(images).argmax(1)


@pytest.mark.parametrize(("side", "sizes"), [(8, {7}), (32, {28, 29, 30, 31}), (1, {1})])
def test_copies_have_every_size_and_place_and_their_share(side: int, sizes: set[int]) -> None:
    count = 4000
    rows, columns = copies(torch.zeros(count, 1, side, side), draws_for(count), 3, 0.5)
    assert copies(torch.zeros(2, 1, side, side), draws_for(2), 3, 0.5)[0].equal(rows[:2])
    seen = (rows[:, 0].sum(2) > 0, columns[:, 0].sum(2) > 0)
    lengths = seen[0].sum(1)
    assert torch.equal(lengths, seen[1].sum(1))
    whole = lengths == side
    assert {*lengths[~whole].tolist()} == sizes - {side}
    assert side == 1 or abs(whole.float().mean() - 0.5) < 0.04
    for one in seen:
        starts = one.int().argmax(1)
        assert {*starts[~whole].tolist()} == ({*range(side - min(sizes) + 1)} if side > 1 else set())
    places = {*zip(*(one[~whole].int().argmax(1).tolist() for one in seen), strict=True)}
    assert len(places) == (side - min(sizes) + 1) ** 2 if side > 1 else not places


def test_the_gradient_is_that_of_the_logits_of_the_copy() -> None:
    """By torch's own differentiation through interpolation, padding and the network."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()
    images = images_for(6, (3, 8, 8))
    labels = labels_of(layers, images)
    attack = MIFGSM(eps=EPS, steps=1, diversity=1.0, norm="l2")
    rows, columns = copies(images, draws_for(6), 0, 1.0)
    inputs = images.clone().requires_grad_(True)
    parts = []
    for image, row, column in zip(inputs, rows[:, 0], columns[:, 0], strict=True):
        top, left = (int((one.sum(1) > 0).int().argmax()) for one in (row, column))
        small = F.interpolate(image[None], (7, 7), mode="bilinear", align_corners=False)
        parts.append(F.pad(small, (left, 1 - left, top, 1 - top)))
    F.cross_entropy(layers(torch.cat(parts)), labels, reduction="sum").backward()
    assert inputs.grad is not None
    wanted = inputs.grad / inputs.grad.flatten(1).norm(dim=1)[:, None, None, None]
    found = attack(layers, images, labels, draws_for(6))
    assert torch.allclose(found, (images + EPS * wanted).clamp(0, 1), atol=1e-5)


@pytest.mark.parametrize("kernel", [0, 3, 7])
def test_it_takes_the_steps_of_torchattacks(kernel: int) -> None:
    torchattacks = pytest.importorskip("torchattacks")
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 5))
    model = layers.double().eval()

    class InFloat64(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = model(images.double())
            return logits

    network, images = InFloat64().eval(), images_for(12, (3, 8, 8), seed=1)
    labels = labels_of(network, images)
    how: dict[str, Any] = {"eps": 0.05, "alpha": 0.02, "steps": 7, "decay": 1.0}
    if kernel:
        reference = torchattacks.TIFGSM(network, len_kernel=kernel, diversity_prob=0.0, **how)
    else:
        reference = torchattacks.MIFGSM(network, **how)
    attack = MIFGSM(eps=0.05, step_size=0.02, steps=7, kernel=kernel)
    found = attack(network, images, labels, draws_for(12))
    assert torch.allclose(found, reference(images, labels), atol=2e-6)
    assert (labels_of(network, found) != labels).sum() > 2


def test_steps_and_names() -> None:
    def build(**params: Any) -> Any:
        return ATTACKS.build("mi-fgsm", **params)

    assert build(eps=16 / 255).effective_step_size == pytest.approx(1.6 / 255)  # Dong et al. 2018
    assert build(eps=0.2, relative_step=0.25).effective_step_size == pytest.approx(0.05)
    assert build(eps=0.2, steps=5, step_size=0.03).reach == pytest.approx(0.15)
    assert build().stem == "mi-fgsm10" and build(norm="l2", steps=4).stem == "mi-fgsm4.l2"
    assert build(diversity=0.5).random and not build(kernel=3).random
    with pytest.raises(RbError, match=r"kernel of attack 'mi-fgsm' is 4\. Expected an odd side"):
        build(kernel=4)
    with pytest.raises(RbError, match="has a step_size and a relative_step"):
        build(step_size=0.1, relative_step=0.1)
