"""The bounds of a network: what they are made of, against derivatives written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rbtools import models
from rbtools.measures import bounds
from rbtools.measures.base import MeasureBatch, measured
from rbtools.measures.bound import BoundMeasure, estimates
from rbtools.measures.wci import WCI
from rbtools.rng.draws import Draws

SHAPE = (1, 2, 3)


def batch_of(n=4, classes=2, **images):
    torch.manual_seed(1)
    clean = torch.rand(n, *SHAPE)
    moved = (clean + 0.05 * torch.randn(n, *SHAPE)).clamp(0, 1)
    twice = (moved + 0.05 * torch.randn(n, *SHAPE)).clamp(0, 1)
    ids = torch.arange(n)
    draws, probes = Draws(0, "test", ids), Draws(0, "test.batch", ids[:1])
    return MeasureBatch(clean, ids % classes, draws, probes, **{"perturbed": moved, "twice": twice, **images})


@pytest.fixture
def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 2, bias=False)).eval()


def test_constants_of_a_linear_model(linear):
    batch = batch_of()
    found = estimates(linear, batch)
    weight = linear[1].weight.detach()
    local = found.pop("smooth_theta_local")
    expected, each = dict.fromkeys(found, 0.0), []
    for x, moved, y in zip(batch.images, batch.attacked, batch.labels, strict=True):
        x, moved = x.flatten(), moved.flatten()
        apart = (moved - x).norm()
        errors, losses = [], []
        for one in (x, moved):
            p = (weight @ one).softmax(0)
            errors.append(p - nn.functional.one_hot(y, 2))
            losses.append(-p[y].log())
        slopes = [(weight.T @ e).norm() for e in errors]
        by_weights = [torch.outer(e, one) for e, one in zip(errors, (x, moved), strict=True)]
        p = (weight @ moved).softmax(0)
        values = {
            "lipschitz": max(*slopes, (losses[1] - losses[0]).abs() / apart),
            "lipschitz_theta": max(g.norm() for g in by_weights),
            "smooth": (by_weights[1] - by_weights[0]).norm() / apart,
            "smooth_theta": 2 * p[0] * p[1] * moved.square().sum(),  # of (diag p - pp') (x) xx'
            "gamma": apart,
            "softmax": (errors[1] - errors[0]).norm(),
        }
        each.append(float(values["smooth_theta"]))
        for name, value in values.items():
            expected[name] = max(expected[name], float(value))
    assert found == pytest.approx(expected, rel=1e-4) and local == pytest.approx(each, rel=1e-4)


def test_prbench_takes_what_is_given_and_says_what_it_estimated(linear):
    batch = batch_of()
    bound = BoundMeasure(paper="prbench", examples=100, updates=7, weight=3.0, smooth=2.0, gamma=0.5)
    first, second, fourth, fifth = measured(bound, linear, [batch])
    largest = estimates(linear, batch)
    constants = bounds.Constants(
        lipschitz=largest["lipschitz"],
        lipschitz_theta=largest["lipschitz_theta"],
        smooth=2.0,
        smooth_theta=largest["smooth_theta"],
    )
    assert first.value == bounds.prbench1(constants, 0.5, 100, 7).value
    assert second.value == bounds.prbench2(constants, 0.5, 100, 7, nu=largest["softmax"], weight=3.0).value
    assert fourth.value == bounds.prbench4(constants, 0.5, 100, 7).value < first.value
    assert (first.name, second.name, fourth.name) == ("prbench1", "prbench2", "prbench4")
    assert fifth.name == "prbench5" and fifth.value == bounds.prbench5(constants, 100, 7).value
    assert fifth.more["estimated"] == ["lipschitz_theta", "smooth_theta"]
    local = largest["smooth_theta_local"]
    assert first.more["smooth_theta_local"] == {"mean": pytest.approx(sum(local) / 4), "least": min(local)}
    assert max(local) == largest["smooth_theta"]
    assert fourth.more["estimated"] == first.more["estimated"]
    assert first.more["estimated"] == ["lipschitz", "lipschitz_theta", "smooth_theta"]
    assert second.more["estimated"] == [*first.more["estimated"], "softmax"]
    assert "lower bound" in first.more["note"] and first.more["vacuous"] == (first.value >= 1)


def test_what_the_training_decides_is_taken_from_the_record():
    train = {"epochs": 3, "config": {"batch_size": 32, "lambda": 6.0}}
    filled = BoundMeasure(paper="prbench").filled({"train": train}, 100)
    assert (filled.examples, filled.updates, filled.weight) == (100, 12, 6.0)
    assert BoundMeasure(paper="prbench", updates=5).filled({"train": train}, 100).updates == 5
    assert BoundMeasure(paper="wci").filled({"train": train}, 100).weight is None
    theory = {"arch": {"space": "fcnn", "str": "tanh/relu+skip"}}
    assert BoundMeasure().filled(theory, 9).activation == "tanh" and not BoundMeasure().filled(theory, 9).unit
    assert BoundMeasure(activation="relu").filled({"arch": {**theory["arch"], "inputs": "unit"}}, 9).unit
    assert BoundMeasure().filled({"arch": {"space": "zoo", "name": "vgg11"}}, 9).activation == "relu"


def test_without_a_training_there_is_a_reason(linear):
    for value in measured(BoundMeasure(paper="prbench"), linear, [batch_of()]):
        assert value.value is None and "--examples N and --updates T" in value.more["reason"]
    (found,) = measured(BoundMeasure(paper="wci"), linear, [batch_of()])
    assert found.value is None and "--weight" in found.more["reason"]


def test_wci_is_that_of_the_measure(linear):
    bound = BoundMeasure(paper="wci", examples=50, probes=4, largest=2.0, failure=0.01)
    fourth, second, third, first = measured(bound, linear, [batch_of()])
    index = measured(WCI(probes=4), linear, [batch_of()])[0]
    assert fourth.value == pytest.approx(math.sqrt(2 / 50) * index.value)
    assert fourth.se == pytest.approx(math.sqrt(2 / 50) * index.se)
    assert fourth.more["inputs"] == {"WCI": index.value, "lambda": 50.0}
    # One layer: its variance is that of theorem 4, its divergence sqrt(lambda / 2) of the index.
    (layer,) = index.more["layers"].values()
    assert second.more["sigma2"] == {"1": pytest.approx(math.sqrt(layer["norm2"] / (100 * layer["trace"])))}
    assert second.value == pytest.approx(5 * index.value) and second.se == pytest.approx(5 * index.se)
    assert third.value == pytest.approx(index.value / 10) and third.se == pytest.approx(index.se / 10)
    assert first.value == bounds.wci1(second.value, 50.0, 50, largest=2.0, failure=0.01).value
    assert first.se == pytest.approx(index.se / 10) and "note" not in first.more
    without = measured(BoundMeasure(paper="wci", weight=9.0, probes=4), linear, [batch_of()])
    assert [value.name for value in without] == ["wci4", "wci2", "wci3"]  # lemma 1 needs the number of images


def test_robbench_of_a_theorys_network():
    arch = {"space": "fcnn", "str": "tanh/swish+skip", "width": 8}
    torch.manual_seed(0)
    model, batch = models.build(arch, classes=2, shape=SHAPE).eval(), batch_of()
    values = {
        value.name: value for value in measured(BoundMeasure(beta=0.3, activation="tanh"), model, [batch])
    }

    def gradients(images):
        rows = []
        for one in images:
            logits = model(one[None])[0]
            made = torch.autograd.grad(logits[1] - logits[0], list(model.parameters()))
            rows.append(torch.cat([part.flatten() for part in made]).double())
        return torch.stack(rows)

    clean, moved, twice = (gradients(one) for one in (batch.images, batch.attacked, batch.attacked_twice))
    y = 2.0 * batch.labels.double() - 1
    for name, a, b in (("clean", clean, moved), ("robust", moved, twice)):
        joint = 0.49 * a @ a.T + 0.21 * (a @ b.T + b @ a.T) + 0.09 * b @ b.T
        expected = math.sqrt(9 * float(y @ torch.linalg.solve(joint, y)) / 4)  # L = 3
        assert values[f"robbench1.{name}"].value == pytest.approx(expected, rel=1e-3)
    flat = batch.images.flatten(1).double()
    assert "inputs of norm 1" in values["robbench1.clean"].more["note"]
    assert "note" not in values["robbench2.clean"].more
    of_unit = measured(BoundMeasure(beta=0.3, unit=True), model, [batch])
    assert not any("note" in value.more for value in of_unit)
    unit = torch.nn.functional.normalize
    rho = float((unit(batch.attacked.flatten(1).double()) - unit(flat)).norm(dim=1).max())
    for name, radius in (("clean", 0.0), ("robust", rho)):
        assert values[f"robbench2.{name}"].value == bounds.robbench2(flat.numpy(), radius, "tanh").value
    assert values["robbench2.clean"].clean and not values["robbench2.robust"].clean


def test_corollary_1_is_theorem_1_with_the_sizes_of_the_convolutions():
    arch = {"space": "rescnn", "str": "relu3/tanh5+skip", "width": 4, "inputs": "unit"}
    torch.manual_seed(0)
    model, batch = models.build(arch, classes=2, shape=SHAPE).eval(), batch_of()
    found = {
        value.name: value for value in measured(BoundMeasure().filled({"arch": arch}, 9), model, [batch])
    }
    plain = {value.name: value for value in measured(BoundMeasure(), model, [batch])}
    for name in ("robbench1.clean", "robbench1.robust"):
        assert found[name].value == plain[name].value
        assert (found[name].more["inputs"]["kappa"], found[name].more["inputs"]["p"]) == (5, 6)
        assert found[name].more["note"].startswith("corollary 1")
        assert "kappa" not in plain[name].more["inputs"]
