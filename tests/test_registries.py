"""The properties that every registered class must have, on a two-layer model and 8x8 images."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rbtools import datasets, registry
from rbtools.attacks import ATTACKS
from rbtools.certification import CERTIFIERS
from rbtools.cli.config import SHARED
from rbtools.cli.method_options import method_options
from rbtools.corruptions import CORRUPTIONS
from rbtools.datasets import DATASETS
from rbtools.errors import RbError
from rbtools.formats import FORMATS
from rbtools.measures import MEASURES
from rbtools.plots import PLOTS
from rbtools.probabilistic import NOISES
from rbtools.records import metric_name
from rbtools.search import SEARCHES
from rbtools.training import METHODS
from tests.attacks.test_own_attacks import SHORT as SHORT_IN_BALLS
from tests.fingerprints import fingerprint
from tests.networks import draws_for

METHOD_REGISTRIES = (ATTACKS, CERTIFIERS, CORRUPTIONS, MEASURES, METHODS, NOISES, SEARCHES)
EVERYTHING = [pytest.param(one, name, id=f"{one.kind}-{name}") for one in METHOD_REGISTRIES for name in one]
SHORT = SHORT_IN_BALLS | {
    "spatial": {"angles": 3, "shifts": 3},
    "patch": {"steps": 5},
    "pixels": {"queries": 20},
    "sigma-zero": {"steps": 10},
    "color": {"what": "brightness", "values": 5},
    "blur": {"values": 3},
    "zoom": {"values": 5},
}
COUNT = 12
SHAPE = (3, 8, 8)
EPS = 0.1  # few steps, so that AutoAttack is fast


def images_of(count: int = COUNT, seed: int = 0) -> Tensor:
    """Smooth images (N, 3, 8, 8) in [0, 1] on the grid of 8 bits, the ends of the range among them."""
    coarse = torch.rand(count, 3, 3, 3, generator=torch.Generator().manual_seed(seed))
    smooth = nn.functional.interpolate(coarse, size=8, mode="bilinear", align_corners=True)
    return (smooth * 1.4 - 0.2).clamp(0, 1).mul(255).round().div(255)


def network(seed: int = 0) -> nn.Sequential:
    """Two layers that see every pixel, in eval mode, parameters as a training leaves them."""
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
    return layers.eval()


def labels_of(model: nn.Module, images: Tensor) -> Tensor:
    """The model's predictions as labels: every image is classified correctly, so that it is attacked."""
    with torch.no_grad():
        predicted: Tensor = model(images).argmax(1)
    return predicted


@pytest.mark.parametrize(("methods", "name"), EVERYTHING)
def test_docstring_of_a_source_is_that_of_the_class(
    methods: registry.Registry, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = methods.load(name)
    monkeypatch.delitem(sys.modules, cls.__module__)
    found = methods.docstring(name)
    assert inspect.cleandoc(found) == inspect.cleandoc(cls.__doc__)
    assert cls.__module__ not in sys.modules or found == cls.__doc__


@pytest.mark.parametrize(("registered", "name"), EVERYTHING)
def test_a_registered_class_is_a_frozen_dataclass_that_says_what_it_is(
    registered: registry.Registry, name: str
) -> None:
    cls = registered.load(name)
    assert dataclasses.is_dataclass(cls) and cls.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(cls))
    assert cls.name == name
    version = cls().version if isinstance(cls.version, property) else cls.version
    assert isinstance(version, int) and version >= 1


@pytest.mark.parametrize(("registered", "name"), EVERYTHING)
def test_every_field_is_an_option_with_help(registered: registry.Registry, name: str) -> None:
    cls = registered.load(name)
    settable = registry.options(cls)
    others = {field.name for field in dataclasses.fields(cls)} - {field.name for field in settable}
    # Set by --eps of rb-attack, and by the network of a bound.
    assert others <= {"eps", "unit", "kappa"}
    shown = {str(option.name): option for option in method_options([cls])}
    assert list(shown) == [field.name for field in settable]
    for field in settable:
        option = shown[field.name]
        flag = registry.option_name(field)
        assert flag in option.opts and re.fullmatch(r"--[a-z][a-z0-9-]*", flag)
        if field.default not in (None, (), ""):
            assert "[default: " in str(option.help)


@pytest.mark.parametrize("registered", [*METHOD_REGISTRIES, FORMATS, PLOTS], ids=lambda one: one.kind)
def test_no_own_option_is_one_that_a_configuration_sets_for_all_tools(registered: registry.Registry) -> None:
    """`all: {batch: 512}` in rbtools.yaml means the same everywhere."""
    for name in registered:
        own = {registry.public_name(field) for field in registry.options(registered.load(name))}
        assert not {one.replace("_", "-") for one in own} & SHARED, f"{name}: name that option otherwise"


@pytest.mark.parametrize(("registered", "name"), EVERYTHING)
def test_a_configuration_is_json_and_makes_the_same_again(registered: registry.Registry, name: str) -> None:
    made = registered.build(name)
    text = json.dumps(registry.config(made), allow_nan=False)
    assert registered.build(name, **json.loads(text)) == made


@pytest.mark.parametrize(("registered", "name"), EVERYTHING)
def test_wrong_parameters_are_refused_by_name(registered: registry.Registry, name: str) -> None:
    with pytest.raises(RbError, match=f"{name}' has no parameter 'no_such_thing'"):
        registered.build(name, no_such_thing=1)
    for field in registry.options(registered.load(name)):
        public, wrong = (
            registry.public_name(field),
            {"positive": 0, "non-negative": -1, "fraction": 1.5, "share": 1},
        )
        if field.metadata["choices"]:
            for choice in field.metadata["choices"]:
                assert getattr(registered.build(name, **{public: choice}), field.name) == choice
            with pytest.raises(RbError, match=r"is 'neither'\. .*Choose from"):
                registered.build(name, **{public: "neither"})
        elif field.metadata["check"]:
            with pytest.raises(RbError, match=f"^{public} of .*It must be"):
                registered.build(name, **{public: wrong[field.metadata["check"]]})


NORMS = [
    (name, norm)
    for name in ATTACKS
    for norm in ("linf", "l2")
    if norm == ATTACKS.build(name).norm
    or any(field.name == "norm" for field in registry.options(ATTACKS.load(name)))
]


def attack_of(name: str, norm: str | None = None, eps: float | None = None) -> Any:
    if not ATTACKS.build(name).in_ball:
        return ATTACKS.build(name, **SHORT.get(name, {}))
    own = ATTACKS.build(name).norm
    chosen = {} if norm in (None, own) else {"norm": norm}
    eps = {"linf": EPS, "l2": 0.5}[norm or own] if eps is None else eps
    short = SHORT.get(name, {}) if name != "aa" else {}  # whose parts do not take every norm
    return ATTACKS.build(name, eps=eps, **short, **chosen)


def attacked(attack: Any, count: int = COUNT, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images, and the same after the attack."""
    model, images = network(), images_of(count)
    return images, attack(model, images, labels_of(model, images), draws_for(count, seed))


@pytest.mark.parametrize(("name", "norm"), NORMS)
def test_an_attack_keeps_shape_box_and_budget_and_touches_nothing_else(
    name: str, norm: str, capfd: pytest.CaptureFixture[str]
) -> None:
    attack, model, images = attack_of(name, norm), network(), images_of()
    labels, before, state = labels_of(model, images), images.clone(), copy.deepcopy(model.state_dict())
    points = attack(model, images, labels, draws_for(COUNT))
    assert attack.threat.contains(points, images).all()
    perturbed = attack.threat.made(points, images)
    assert perturbed.shape == images.shape and perturbed.dtype == torch.float32
    assert not perturbed.requires_grad and bool(perturbed.isfinite().all())
    assert float(perturbed.min()) >= 0 and float(perturbed.max()) <= 1
    if attack.in_ball:
        delta = (perturbed - images).flatten(1)
        length = delta.abs().amax(1) if norm == "linf" else delta.norm(dim=1)
        assert float(length.max()) <= attack.eps + 1e-6
    assert torch.equal(images, before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("name", ATTACKS)
def test_the_same_seed_gives_the_same_attack_and_another_only_where_there_is_chance(name: str) -> None:
    attack = attack_of(name)
    torch.manual_seed(1)
    _, first = attacked(attack)
    torch.manual_seed(2)
    _, again = attacked(attack)
    assert torch.equal(first, again)
    _, other = attacked(attack, seed=1)
    assert torch.equal(first, other) is not attack.random


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_belongs_to_the_example_and_the_seed(name: str) -> None:
    corruption, images = CORRUPTIONS.build(name), images_of()
    whole = corruption(images, 5, draws_for(COUNT))
    part = torch.tensor([7, 2, 10])
    assert torch.equal(corruption(images[part], 5, draws_for(COUNT).take(part)), whole[part])
    assert torch.equal(corruption(images, 5, draws_for(COUNT, seed=1)), whole) is not corruption.random


def loss_of(name: str, model: nn.Module, seed: int = 0, **params: Any) -> Any:
    images = images_of()
    labels = torch.arange(COUNT) % 10
    return METHODS.build(name, **params)(model, images, labels, draws_for(COUNT, seed=seed))


@pytest.mark.parametrize("name", METHODS)
def test_a_training_method_gives_a_loss_that_trains_every_parameter(name: str) -> None:
    model = network().train()
    loss = loss_of(name, model)
    assert loss.value.shape == () and bool(loss.value.isfinite()) and float(loss.value.detach()) > 0
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(module.training for module in model.modules())
    for logits in (loss.clean_logits, loss.adversarial_logits):
        assert logits is None or (logits.shape == (COUNT, 10) and not logits.requires_grad)
    assert (loss.adversarial_logits is None) is (METHODS.build(name).inner is None)
    loss.value.backward()
    assert all(bool(parameter.grad.abs().sum() > 0) for parameter in model.parameters())


@pytest.mark.parametrize("name", MEASURES.all)
def test_a_ranking_knows_which_way_a_measure_is_better(name: str) -> None:
    """The direction by the name; numbers with another direction than their measure are tested with the
    measure."""
    lower = MEASURES.load(name).less_is_better
    assert metric_name.higher_is_better(name) is not lower, (
        f"{name}.less_is_better is {lower}: "
        + (f"add '{name}' to" if lower else f"take '{name}' out of")
        + " LOWER_FAMILIES in rbtools/records/metric_name.py"
    )


@pytest.mark.parametrize("name", ["uniform", "gaussian", "laplace"])
def test_a_noise_keeps_its_radius_and_the_box_and_belongs_to_the_example(name: str) -> None:
    noise, images = NOISES.build(name), images_of()
    unit = noise.unit(draws_for(COUNT), SHAPE, 0)
    assert unit.shape == images.shape and unit.dtype == torch.float32
    assert abs(float(unit.mean())) < 4 * float(unit.std()) / unit.numel() ** 0.5
    for gamma in (8 / 255, 0.3):
        noisy = noise.apply(images, unit, gamma)
        assert noisy.shape == images.shape and noisy.dtype == torch.float32
        assert float(noisy.min()) >= 0 and float(noisy.max()) <= 1
        assert float((noisy - images).abs().max()) <= gamma + 1e-6
        assert float((noisy - images).abs().max()) > 0.8 * gamma
    part = torch.tensor([7, 2, 10])
    assert torch.equal(noise.unit(draws_for(COUNT).take(part), SHAPE, 0), unit[part])
    assert torch.equal(noise.unit(draws_for(COUNT), SHAPE, 0), unit)
    assert not torch.equal(noise.unit(draws_for(COUNT), SHAPE, 1), unit)
    assert not torch.equal(noise.unit(draws_for(COUNT, seed=1), SHAPE, 0), unit)
    assert not torch.equal(unit[0], unit[1])


def needs_no_files(name: str) -> bool:
    """Whether a data set is there without a file of its own in a folder of data sets."""
    try:
        return bool(fingerprint(name, "test", "nowhere"))
    except RbError:
        return False


# Data sets that this machine has, or that these tests make.
MADE = [*filter(needs_no_files, DATASETS), "imagefolder"]


@pytest.fixture
def full_name(photos: Path) -> Callable[[str], str]:
    """A data set's name with the argument that it needs."""
    return lambda name: {"imagefolder": f"imagefolder:{photos}"}.get(name, name)


@pytest.mark.parametrize("name", MADE)
def test_a_data_set_is_what_its_description_says(name: str, full_name: Callable[[str], str]) -> None:
    name = full_name(name)
    about = datasets.describe(name)
    assert about.name == name and len(about.class_names) == about.classes
    assert (about.mean is None) is (about.std is None)
    assert {"train", "test"} <= set(about.sizes)
    fingerprints = set()
    for split, size in about.sizes.items():
        data = datasets.load(name, split)
        assert data.images.shape == (size, *about.shape) and data.images.dtype == torch.uint8
        assert data.labels.shape == (size,) and data.labels.dtype == torch.int64
        assert set(data.labels.tolist()) == set(range(about.classes))
        assert (data.name, data.split, data.class_names) == (name, split, about.class_names)
        assert int(data.images.max()) > 200 and int(data.images.min()) < 50  # the whole range is used
        found = fingerprint(name, split)
        assert re.fullmatch("[0-9a-f]{64}", found) and found == fingerprint(name, split)
        fingerprints.add(found)
        again = datasets.load(name, split)
        assert torch.equal(again.images, data.images) and torch.equal(again.labels, data.labels)
    assert len(fingerprints) == len(about.sizes)
    if about.mean is not None:
        train = datasets.load(name, "train").images.double().div(255)
        assert train.mean((0, 2, 3)).tolist() == pytest.approx(list(about.mean), abs=1e-3)
