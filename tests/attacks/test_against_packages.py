"""The attacks written here against pyautoattack, torchattacks, foolbox and ART on a partly robust network."""

from __future__ import annotations

import importlib
import warnings

import pytest
import torch
from torch import nn

from rbtools.attacks import ATTACKS, steps
from rbtools.rng.draws import Draws
from tests.networks import InFloat64

pytestmark = pytest.mark.trains
COUNT, EPS = 100, {"linf": 0.12, "l2": 0.75}


@pytest.fixture(scope="module")
def setting():
    """A network trained against FGSM on the digits, and test images that it classifies right."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images).float().div(16)[:, None]
    labels = torch.from_numpy(digits.target).long()
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))
    adam = torch.optim.Adam(model.parameters(), 2e-3)
    for epoch in range(6):
        order = torch.randperm(1200, generator=torch.Generator().manual_seed(epoch))
        for near, wanted in zip(images[order].split(100), labels[order].split(100), strict=True):
            slope, _ = steps.input_gradient(model, near, steps.cross_entropy(wanted))
            moved = steps.step(near, slope, near, eps=0.12, step_size=0.12)
            adam.zero_grad()
            nn.functional.cross_entropy(model(moved), wanted).backward()
            adam.step()
    model.eval().requires_grad_(False)
    right = model(images).argmax(1) == labels
    right[:1200] = False
    return model, images[right][:COUNT], labels[right][:COUNT]


def ours(name, setting, seed=0, **params):
    """Which examples the model classifies correctly, in float32, after the attack."""
    model, images, labels = setting
    eps = params.pop("eps", EPS[params.get("norm", "linf")])
    found = ATTACKS.build(name, eps=eps, **params)(
        model, images, labels, Draws(seed, "test", torch.arange(COUNT))
    )
    return model(found).argmax(1) == labels


def run_reference(name, setting, **params):
    return ours(name, setting, backend="pyautoattack", **params)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("apgd-ce", {"steps": 50}),
        ("apgd-dlr", {"steps": 50}),
        ("apgd-t", {"steps": 20}),
        ("fab-t", {"steps": 15, "targets": 5}),
        ("fab", {"steps": 12}),
    ],
)
@pytest.mark.slow
def test_verdicts_of_pyautoattack(name, params, norm, setting):
    mine, reference = (attack(name, setting, norm=norm, **params) for attack in (ours, run_reference))
    assert 0.2 < reference.float().mean() < 0.8
    assert (mine != reference).sum() <= 6  # other random starts
    assert mine.sum() <= reference.sum() + 2


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("schedule", ["fixed", "rescaled"])
@pytest.mark.slow
def test_square_finds_as_much_as_that_of_pyautoattack(schedule, norm, setting):
    params = {"queries": 150, "norm": norm, "schedule": schedule}
    mine = [ours("square", setting, seed, **params).float().mean() for seed in range(3)]
    reference = [run_reference("square", setting, seed=seed, **params).float().mean() for seed in range(3)]
    assert 0.3 < sum(reference) / 3 < 0.95
    # On so small images its squares of l2 have but one place, since its range leaves out the last one.
    assert (-0.2 if norm == "l2" else -0.07) < (sum(mine) - sum(reference)) / 3 < 0.07


@pytest.mark.parametrize("queries", [150, 1000, 5000, 10000])
def test_the_rescaled_squares_shrink_as_those_of_torchattacks(queries):
    import torchattacks

    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    reference = torchattacks.Square(model, n_queries=queries)  # NAS-RobBench-201 uses its defaults
    mine = ATTACKS.build("square", queries=queries, schedule="rescaled")
    assert mine.queries == reference.n_queries
    assert [mine.share(query) for query in range(queries)] == pytest.approx(
        [reference.p_selection(query) for query in range(queries)]
    )
    assert torchattacks.Square(model).n_queries == ATTACKS.build("square").queries


@pytest.mark.slow
def test_the_sequence_stands_where_pyautoattack_does(setting):
    mine = ours("aa", setting, attacks="apgd-ce,apgd-dlr")
    reference = run_reference("aa", setting, attacks="apgd-ce,apgd-dlr")
    assert (mine != reference).sum() <= 1


@pytest.mark.slow
def test_distances_of_cw_l2(setting):
    model, images, labels = (part[:30] if isinstance(part, torch.Tensor) else part for part in setting)
    import foolbox

    attack = foolbox.attacks.L2CarliniWagnerAttack(
        binary_search_steps=4, steps=50, initial_const=1, stepsize=0.03, abort_early=False
    )
    bounded = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        perturbed = attack(bounded, images, labels, epsilons=None)[1]
    params = {"c": 1.0, "searches": 4, "steps": 50, "lr": 0.03}
    fooled = model(perturbed).argmax(1) != labels
    distance = (perturbed - images).flatten(1).norm(dim=1)
    _, told = ATTACKS.build("cw-l2", **params).run(model, images, labels, Draws(0, "test", torch.arange(30)))
    both = fooled & torch.isfinite(told["distance"])
    assert both.float().mean() > 0.4 and torch.isfinite(told["distance"]).sum() >= fooled.sum() - 2
    assert told["distance"][both].mean() < 1.05 * distance[both].mean()


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("library", ["torchattacks", "foolbox"])
def test_pgd_takes_the_steps_of_other_libraries(library, norm):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)]
    model, eps = InFloat64(nn.Sequential(*layers)).eval(), {"linf": 0.05, "l2": 0.6}[norm]
    images = torch.rand(12, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    images[0] = 0.0  # on the border of the box
    labels = model(images).argmax(1)
    package = importlib.import_module(library)
    if library == "torchattacks":
        cls = {"linf": package.PGD, "l2": package.PGDL2}[norm]
        reference = cls(model, eps=eps, alpha=eps / 3, steps=7, random_start=False)(images, labels)
    else:
        cls = {"linf": package.attacks.LinfPGD, "l2": package.attacks.L2PGD}[norm]
        bounded = package.PyTorchModel(model, bounds=(0, 1), device="cpu")
        attack = cls(abs_stepsize=eps / 3, steps=7, random_start=False)
        reference = attack(bounded, images, labels, epsilons=eps)[1]
    params = {"start": "zero", "iterate": "last", "steps": 7, "step_size": eps / 3}
    found = ATTACKS.build("pgd", eps=eps, norm=norm, **params)(
        model, images, labels, Draws(0, "test", torch.arange(12))
    )
    assert torch.allclose(found, reference.float(), atol=2e-6)
    assert (model(found).argmax(1) != labels).sum() > 2
