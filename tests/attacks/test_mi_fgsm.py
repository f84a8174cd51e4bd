"""MI-FGSM: its momentum, copies and kernel in closed form, and the steps of torchattacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import convolve
from torch import Tensor, nn
from torch.nn import functional as F

from rbtools.attacks import ATTACKS
from rbtools.attacks.mi_fgsm import MIFGSM, copies, shrinking
from rbtools.errors import RbError
from tests.networks import draws_for, images_for, linear

EPS = 0.1


def labels_of(model: Any, images: Tensor) -> Tensor:
    return model(images).argmax(1)


def turning(images: Tensor) -> Tensor:
    """Two logits of the two pixels: the second pixel's slope turns with the first pixel."""
    first, second = images[..., 0, 0].flatten(), images[..., 0, 1].flatten()
    loss = first + second * torch.where(first < 0.55, 3.0, -1.0)
    return torch.stack([-loss, loss], dim=1)


@pytest.mark.parametrize(("momentum", "last"), [(0.0, -1), (1.0, 1)])
def test_the_momentum_adds_up_gradients_that_are_divided_by_their_size(momentum: float, last: int) -> None:
    """The slopes are (1, 3), then (1, -1): divided by their mean sizes (.5, 1.5) and (1, -1). With momentum
    the second pixel goes on."""
    images, labels = torch.full((1, 1, 1, 2), 0.5), torch.tensor([0])
    attack = MIFGSM(eps=0.3, steps=2, step_size=0.1, momentum=momentum)
    found = attack(turning, images, labels, draws_for(1))
    expected = torch.tensor([0.7, 0.6 + 0.1 * last])
    assert torch.allclose(found.flatten(), expected, atol=1e-6)


def test_of_a_linear_model_it_finds_the_exact_worst_case() -> None:
    model, images = linear(classes=2), images_for(20, (3, 8, 8))
    labels = labels_of(model, images)
    slope = (model[1].weight[1 - labels] - model[1].weight[labels]).view_as(images)
    found = MIFGSM(eps=EPS)(model, images, labels, draws_for(20))
    assert torch.allclose(found, (images + EPS * slope.sign()).clamp(0, 1), atol=1e-6)
    images = 0.4 + 0.2 * images
    found = MIFGSM(eps=EPS, norm="l2")(model, images, labels, draws_for(20))
    length = slope.flatten(1).norm(dim=1)[:, None, None, None]
    assert torch.allclose(found, images + EPS * slope / length, atol=1e-6)


@pytest.mark.parametrize("kernel", [3, 5, 15])
def test_the_kernel_convolves_the_gradient(kernel: int) -> None:
    """Of a linear model the step follows the convolved weights; the Gaussian ends at three deviations."""
    model, images = linear(classes=2, shape=(2, 8, 6)), images_for(10, (2, 8, 6))
    labels = labels_of(model, images)
    line = np.exp(-(np.linspace(-3, 3, kernel) ** 2) / 2)
    weights = np.outer(line, line) / np.outer(line, line).sum()
    slope = (model[1].weight[1 - labels] - model[1].weight[labels]).view_as(images).double().numpy()
    smooth = convolve(slope, weights[None, None], mode="constant")
    found = MIFGSM(eps=EPS, kernel=kernel)(model, images, labels, draws_for(10)).numpy()
    assert found == pytest.approx((images.numpy() + EPS * np.sign(smooth)).clip(0, 1), abs=1e-6)
    assert (np.sign(smooth) != np.sign(slope)).any()


def test_a_copy_is_the_interpolated_image_on_black() -> None:
    images = images_for(1, (3, 32, 20))
    rows = shrinking(32, torch.tensor([29]), torch.tensor([2]))
    columns = shrinking(20, torch.tensor([18]), torch.tensor([0]))
    small = F.interpolate(images, (29, 18), mode="bilinear", align_corners=False)
    assert torch.allclose(rows @ images @ columns.mT, F.pad(small, (0, 2, 2, 1)), atol=1e-6)
    same = shrinking(32, torch.tensor([32]), torch.tensor([0]))
    assert torch.equal(same[0], torch.eye(32))


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
