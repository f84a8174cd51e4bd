"""From the same start PGD and FGSM take the very steps of torchattacks and foolbox."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rbtools.attacks import ATTACKS
from rbtools.rng.draws import Draws

COUNT, EPS = 12, {"linf": 0.05, "l2": 0.6}


class Net(nn.Module):
    """Computed in float64, so that rounding turns no sign and no library's order of operations shows."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)
        ).double()

    def forward(self, images):
        return self.layers(images.double())


@pytest.fixture
def setting():
    model = Net().eval()
    images = torch.rand(COUNT, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    images[0] = 0.0  # on the wall of the box
    return model, images, model(images).argmax(1)


def ours(name, setting, **params):
    attack = ATTACKS.build(name, **params)
    return attack(*setting, Draws(0, "test", torch.arange(COUNT)))


def pgd(norm, setting):
    params = {"start": "zero", "iterate": "last", "steps": 7, "step_size": EPS[norm] / 3}
    return ours("pgd", setting, eps=EPS[norm], norm=norm, **params)


def check(found, reference, setting):
    model, _, labels = setting
    assert torch.allclose(found, reference.float(), atol=2e-6)
    assert (model(found).argmax(1) != labels).sum() > 2


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_pgd_is_that_of_torchattacks(setting, norm):
    torchattacks = pytest.importorskip("torchattacks")
    cls = {"linf": torchattacks.PGD, "l2": torchattacks.PGDL2}[norm]
    model, images, labels = setting
    reference = cls(model, eps=EPS[norm], alpha=EPS[norm] / 3, steps=7, random_start=False)(images, labels)
    check(pgd(norm, setting), reference, setting)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_pgd_is_that_of_foolbox(setting, norm):
    foolbox = pytest.importorskip("foolbox")
    model, images, labels = setting
    cls = {"linf": foolbox.attacks.LinfPGD, "l2": foolbox.attacks.L2PGD}[norm]
    attack = cls(abs_stepsize=EPS[norm] / 3, steps=7, random_start=False)
    bounded = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    reference = attack(bounded, images, labels, epsilons=EPS[norm])[1]
    check(pgd(norm, setting), reference, setting)


def test_fgsm_is_that_of_torchattacks(setting):
    torchattacks = pytest.importorskip("torchattacks")
    model, images, labels = setting
    reference = torchattacks.FGSM(model, eps=EPS["linf"])(images, labels)
    check(ours("fgsm", setting, eps=EPS["linf"]), reference, setting)
