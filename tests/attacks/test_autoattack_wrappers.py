"""--backend pyautoattack: the package's own results, without its side effects and crashes."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from rbtools.attacks import ATTACKS
from rbtools.errors import RbError
from tests.networks import draws_for, images_for, linear

SHAPE = (1, 8, 8)
SMALL = {
    "apgd-ce": {"steps": 6},
    "apgd-dlr": {"steps": 6},
    "apgd-t": {"steps": 3},
    "fab-t": {"steps": 3},
    "square": {"queries": 12},
}


class Net(nn.Module):
    """A small convolutional network that fails on an empty batch, as many do."""

    def __init__(self, classes=5):
        super().__init__()
        torch.manual_seed(1)
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2)
        )
        self.classifier = nn.Linear(8 * 16, classes)

    def forward(self, images):
        return self.classifier(self.features(images).reshape(images.size(0), -1))


@pytest.fixture
def quick(monkeypatch):
    """Shorten AutoAttack's sequence, whose lengths are no option of ours."""
    import pyautoattack

    class Short(pyautoattack.AutoAttack):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.square.n_queries = 10
            for part in (self.apgd, self.apgd_targeted, self.fab):
                vars(part).update(n_iter=2, eot_iter=2, n_restarts=1)

    monkeypatch.setattr(pyautoattack, "AutoAttack", Short)


def build(name, eps=0.05, **params):
    return ATTACKS.build(name, eps=eps, backend="pyautoattack", **{**SMALL.get(name, {}), **params})


OPTIONS = {
    "apgd-ce": [{}, {"norm": "l2"}, {"norm": "l1"}],
    "apgd-dlr": [{}],
    "apgd-t": [{}, {"norm": "l1"}],
    "fab-t": [{}, {"norm": "l1"}],
    "square": [{}, {"norm": "l2"}, {"norm": "l1"}],
    "aa": [{}, {"norm": "l2"}, {"norm": "l1"}, {"variant": "plus"}, {"variant": "rand"}],
}
VARIANTS = [(name, params) for name, options in OPTIONS.items() for params in options]


@pytest.mark.parametrize(("name", "params"), VARIANTS)
@pytest.mark.slow
def test_nothing_shows_outside_and_nothing_outside_matters(name, params, quick, capfd, monkeypatch):
    import pyautoattack

    perturb = pyautoattack.autopgd_base.APGDAttack.perturb

    def loud(*args, **kwargs):
        print("noise")
        return perturb(*args, **kwargs)

    monkeypatch.setattr(pyautoattack.autopgd_base.APGDAttack, "perturb", loud)
    model, images = Net().eval(), images_for(7, (3, 8, 8))
    labels = model(images).argmax(1)
    labels[0] = (labels[0] + 1) % 5
    model.classifier.bias.requires_grad_(False)
    attack, before, labels_before = build(name, **params), images.clone(), labels.clone()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    perturbed = attack(model, images, labels, draws_for(7))
    assert random.getstate() == states[0] and (np.random.get_state()[1] == states[1]).all()
    assert torch.equal(torch.get_rng_state(), states[2])
    assert torch.equal(images, before) and torch.equal(labels, labels_before)
    assert perturbed.dtype == torch.float32 and not perturbed.requires_grad
    assert perturbed.min() >= 0 and perturbed.max() <= 1
    order = {"l2": 2, "l1": 1}.get(params.get("norm"), torch.inf)
    # Their projection in L1 computes x + d + (p - d) and is off by the rounding of each pixel.
    allowed = 0.05 + (2e-5 if order == 1 else 1e-6)
    assert (perturbed - images).flatten(1).norm(dim=1, p=order).max() <= allowed
    assert [p.requires_grad for p in model.parameters()] == [True] * 5 + [False]
    assert all(p.grad is None for p in model.parameters())
    random.seed(2), np.random.seed(2), torch.manual_seed(2)
    assert torch.equal(attack(model, images, labels, draws_for(7)), perturbed)
    captured = capfd.readouterr()
    assert captured.out == "" and ("noise" in captured.err or name != "apgd-ce")


@pytest.mark.parametrize(("name", "params"), VARIANTS)
@pytest.mark.slow
def test_batches_of_none_and_one_and_all_wrong_and_no_distance(name, params, quick):
    model = Net().eval()
    for count in (0, 1, 2):
        images = images_for(count, (3, 8, 8))
        right = model(images_for(2, (3, 8, 8))).argmax(1)[:count]
        for labels in (right, (right + 1) % 5):
            perturbed = build(name, **params)(model, images, labels, draws_for(count))
            assert perturbed.shape == images.shape
            if count and (labels != right).all():
                assert (model(perturbed).argmax(1) != labels).all()
    assert torch.equal(build(name, eps=0.0, **params)(model, images, right, draws_for(2)), images)


@pytest.mark.parametrize(("name", "params"), [("aa", {}), ("aa", {"norm": "l1"})])
@pytest.mark.slow
def test_channels_last_gives_the_same_result(name, params, quick):
    model, images = Net().double().eval(), images_for(4, (3, 8, 8))
    model.forward = lambda x, forward=model.forward: forward(x.double()).float()
    labels = model(images).argmax(1)
    attack = build(name, **params)
    plain = attack(model, images, labels, draws_for(4))
    model.to(memory_format=torch.channels_last)
    other = attack(model, images.to(memory_format=torch.channels_last), labels, draws_for(4))
    assert torch.allclose(other, plain, atol=1e-5)


@pytest.mark.parametrize(("name", "params"), [("fab-t", {}), ("aa", {}), ("aa", {"norm": "l1"})])
@pytest.mark.slow
def test_a_constant_model_is_no_error_and_stays_as_it_is(name, params, quick):
    """Without a gradient, and with ties of which Square's own start makes an empty batch."""
    bias, labels = torch.zeros(5), torch.tensor([0, 0, 1, 2, 3, 4])
    attack, images = build(name, **params), images_for(6, SHAPE)
    assert torch.isfinite(attack(lambda x: bias.expand(len(x), -1), images, labels, draws_for(6))).all()
    assert not bias.any()


@pytest.mark.parametrize(
    ("name", "params", "side", "classes"),
    [
        ("aa", {"variant": "standard"}, 8, 3),
        ("aa", {"variant": "rand"}, 8, 2),
        *(("square", {"norm": "l2"}, side, 5) for side in (3, 12)),
    ],
)
def test_too_few_classes_and_sizes_that_squares_do_not_fit_are_refused(name, params, side, classes):
    model, images = linear((1, side, side), classes), images_for(2, (1, side, side))
    with pytest.raises(RbError, match=f"failed for images of 1x{side}x{side} and {classes} classes in norm"):
        build(name, 1e-6, **params)(model, images, model(images).argmax(1), draws_for(2))


@pytest.mark.parametrize(("classes", "version"), [(4, "standard"), (12, "plus"), (3, "rand")])
def test_autoattack_takes_as_many_targets_as_there_are(classes, version, quick, caplog):
    model, images = linear(SHAPE, classes), images_for(5, SHAPE)
    labels = model(images).argmax(1)
    perturbed = build("aa", variant=version)(model, images, labels, draws_for(5))
    assert perturbed.shape == images.shape and "target" not in caplog.text


def seed_of(draws):
    return int(draws.bits(1)[0, 0])


def test_equals_the_package_run_by_hand():
    from pyautoattack.autopgd_base import APGDAttack
    from pyautoattack.square import SquareAttack

    model, images = linear(SHAPE), images_for(8, SHAPE)
    labels = model(images).argmax(1)
    draws = draws_for(8)
    common = {"seed": seed_of(draws), "device": "cpu", "n_restarts": 1}
    for eps, norm, more in ((0.3, "linf", {}), (0.3, "l2", {}), (3.0, "l1", {"use_largereps": True})):
        reference = APGDAttack(model, n_iter=10, norm=norm.title(), eps=eps, **more, **common)
        expected = reference.perturb(images, labels)
        found = build("apgd-ce", eps=eps, steps=10, norm=norm)(model, images, labels, draws)
        assert torch.equal(found, expected) and not torch.equal(expected, images)
    reference = SquareAttack(model, n_queries=30, p_init=0.5, resc_schedule=False, eps=0.3, **common)
    expected = reference.perturb(images, labels)
    found = build("square", eps=0.3, queries=30, p=0.5)(model, images, labels, draws)
    assert torch.equal(found, expected) and not torch.equal(expected, images)


def test_autoattack_equals_the_package_run_by_hand(quick):
    import pyautoattack

    model, images = linear(SHAPE), images_for(8, SHAPE)
    labels = model(images).argmax(1)
    draws = draws_for(8)
    reference = pyautoattack.AutoAttack(model, norm="Linf", eps=0.05, seed=seed_of(draws))
    reference.verbose = False
    expected = reference.run_standard_evaluation(images, labels, batch_size=8)[0]
    found = build("aa")(model, images, labels, draws)
    assert torch.equal(found, expected) and not torch.equal(found, images)


def test_standard_keeps_the_lengths_of_the_standard(monkeypatch):
    import pyautoattack

    made = []

    def evaluate(self, images, labels, **_):
        made.append(self)
        return images, labels

    monkeypatch.setattr(pyautoattack.AutoAttack, "run_standard_evaluation", evaluate)
    build("aa", 0.1)(linear(SHAPE), images_for(2, SHAPE), torch.zeros(2).long(), draws_for(2))
    (reference,) = made
    assert reference.attacks_to_run == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert reference.apgd.n_iter == reference.apgd_targeted.n_iter == reference.fab.n_iter == 100
    assert reference.apgd.n_restarts == reference.apgd_targeted.n_restarts == reference.fab.n_restarts == 1
    assert reference.apgd_targeted.n_target_classes == reference.fab.n_target_classes == 9
    assert reference.square.n_queries == 5000 and not reference.square.rescale_schedule
