"""The papers' bounds: by numbers computed by hand, and of a network, against derivatives written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from rbtools import models
from rbtools.measures import bounds
from rbtools.measures.base import MeasureBatch, measured
from rbtools.measures.bound import BoundMeasure
from rbtools.measures.bounds import Constants
from rbtools.measures.hermite import hermite
from rbtools.measures.model_constants import of_logits
from rbtools.measures.wci import WCI
from rbtools.rng.draws import Draws
from tests.networks import gradient_rows


@pytest.mark.parametrize(
    ("activation", "order", "expected"),
    [
        ("relu", 0, 1 / math.sqrt(2 * math.pi)),
        ("relu", 1, 0.5),
        ("relu", 2, 1 / (2 * math.sqrt(math.pi))),
        ("relu", 3, 0.0),
        ("relu", 4, -1 / math.sqrt(48 * math.pi)),
        ("leaky", 1, 0.505),  # (1 + 0.01) / 2
        ("tanh", 2, 0.0),
        ("sigmoid", 0, 0.5),
    ],
)
def test_hermite_coefficients(activation, order, expected):
    assert hermite(activation, order) == pytest.approx(expected, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(
    ("activation", "order", "expected"),
    # The trapezoidal rule for E[s(z) h_r(z)] with 60 digits (mpmath), on [-32, 32] with steps of 1/64.
    [
        ("sigmoid", 1, 0.20662096414190704),
        ("sigmoid", 75, -1.0693193172200454e-11),
        ("sigmoid", 153, 8.3984872020366872e-17),
        ("tanh", 75, -1.6288190763935851e-6),
        ("tanh", 153, 4.105191705507383e-9),
        ("swish", 2, 0.24808519283030007),
        ("swish", 74, 4.0364858538871992e-11),
        ("swish", 152, -2.999531469195044e-16),
        ("relu", 74, 0.001661558832105812),
    ],
)
def test_hermite_coefficients_below_the_rounding_of_a_quadrature(activation, order, expected):
    assert hermite(activation, order) == pytest.approx(expected, rel=1e-12)


def test_robbench_1():
    kernel = np.array([[2.0, 1.0], [1.0, 2.0]])
    # K^-1 (1, -1) = (1, -1), so y^T K^-1 y is 2, and sqrt(3^2 * 2 / 2) is 3.
    found = bounds.robbench1(kernel, np.array([1, -1]), depth=3)
    assert found.value == pytest.approx(3) and found.vacuous
    assert found.inputs == {"L": 3, "N": 2, "yKy": pytest.approx(2)}
    # (1, 1) has 2/3; the mean of both is 4/3.
    both = bounds.robbench1(kernel * 100, np.array([[1, 1], [1, -1]]), depth=2)
    assert both.value == pytest.approx(math.sqrt(4 * 4 / 300 / 2)) and not both.vacuous


def test_robbench_1_of_a_singular_kernel_is_none():
    found = bounds.robbench1(np.ones((2, 2)), np.array([1, -1]), depth=3)
    assert found.value is None and found.vacuous and "smallest eigenvalue" in str(found.reason)


def test_robbench_2():
    # Two images at 60 degrees; 2 * 0.25 * (1 - (0.5 + 0.2 + 0.01)^1) for ReLU at r = 1.
    images = np.array([[2.0, 0.0], [0.5, math.sqrt(0.75)]])
    found = bounds.robbench2(images, 0.1, "relu", order=1)
    assert found.value == pytest.approx(0.5 * 0.29) and not found.vacuous
    assert found.inputs["closest"] == pytest.approx(0.5)
    # r = 2: 2 / (4 pi) * (1 - 0.71^2), less; the best is taken.
    second = bounds.robbench2(images, 0.1, "relu", order=2)
    assert second.value == pytest.approx((1 - 0.71**2) / (2 * math.pi))
    assert bounds.robbench2(images, 0.1, "relu").value == max(found.value, second.value)
    # The sign of the product is of no account, and a larger radius says nothing any more.
    assert bounds.robbench2(images * [[1], [-1]], 0.1, "relu", order=1) == found
    assert bounds.robbench2(images, 0.4, "relu", order=1).value < 0
    far = bounds.robbench2(images, 0.4, "relu")
    assert far.value is None and far.vacuous and "is 1.46, so no order" in str(far.reason)


@pytest.mark.parametrize("activation", ["relu", "leaky", "sigmoid", "tanh", "swish"])
@pytest.mark.parametrize("angle", [0.3, 1.2])
def test_robbench_2_has_the_best_order_whatever_its_height(activation, angle):
    images = np.array([[math.cos(angle * k), math.sin(angle * k)] for k in range(3)])
    found = bounds.robbench2(images, 0.0, activation)
    every = [bounds.robbench2(images, 0.0, activation, order=r).value for r in range(1, 400)]
    assert found.value == max(every) > 0 and not found.vacuous
    assert found.inputs["r"] >= bounds.separation(images, 0.0).inputs["order"]
    near = bounds.robbench2(np.array([[1.0, 0.0], [1.0, 1e-3], [1.0, -1e-3]]), 0.0, activation)
    assert near.value is None and "only 10000 are computed" in str(near.reason)


def test_separation_is_what_theorem_2_needs():
    images = np.array([[2.0, 0.0], [0.5, math.sqrt(0.75)], [0.0, -3.0]])  # 60, 30 and 90 degrees apart
    closest = math.sqrt(0.75)
    clean = bounds.separation(images, 0.0)
    assert clean.value == pytest.approx(closest) and not clean.vacuous
    # 2 * closest^r < 1 from r = 5 on: .75^2.5 is .487, .75^2 is .5625.
    assert clean.inputs["order"] == 5
    for order, activation in ((3, "tanh"), (4, "relu"), (5, "tanh"), (6, "relu")):
        assert bounds.robbench2(images, 0.0, activation, order=order).vacuous == (order < 5), order
    wide = bounds.separation(images, 0.1)
    assert wide.value == pytest.approx(closest + 0.21) and wide.vacuous and "order" not in wide.inputs
    apart = bounds.separation(np.eye(3), 0.0)
    assert (apart.value, apart.inputs["order"], apart.vacuous) == (0, 1, False)


CONSTANTS = Constants(lipschitz=3.0, lipschitz_theta=0.5, smooth=2.0, smooth_theta=1.0)


def test_prbench_1():
    # phi 1, chi 4*2*0.25+1 = 3, psi 2.25; 1/10 + (2 + 10*3) * 9 / (2.25 * 9)
    found = bounds.prbench1(CONSTANTS, 0.25, 10, 9)
    assert found.value == pytest.approx(0.1 + 32 / 2.25) and found.vacuous
    assert [found.inputs[name] for name in ("phi", "chi", "psi")] == [1, 3, 2.25]
    # T^(c psi) with c psi = 1/2 is 3.
    half = bounds.prbench1(CONSTANTS, 0.25, 10, 9, c=0.5 / 2.25)
    assert half.value == pytest.approx(0.1 + 32 * 3 / (2.25 * 9))
    small = Constants(lipschitz=0, lipschitz_theta=1e-3, smooth=0, smooth_theta=1)
    assert not bounds.prbench1(small, 0.1, 100, 10).vacuous


@pytest.mark.parametrize("c", [None, 0.1, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 9, 400, 10**6])
def test_prbench_4_is_the_least_over_all_starts(c, steps):
    found, first = (bound(CONSTANTS, 0.25, 1000, steps, c) for bound in (bounds.prbench4, bounds.prbench1))
    power = 1.0 if c is None else c * 2.25
    scale = (2 + 1000 * 3) / (2.25 * 999)  # phi 1, chi 3, psi 2.25

    def at(start):
        return start / 1000 + scale * (steps / start) ** power

    starts = np.unique(np.geomspace(1, steps, 3000).astype(int))
    assert found.value == pytest.approx(at(found.inputs["t0"]))
    assert found.value <= at(starts).min() * (1 + 1e-12) and found.value <= first.value
    assert at(1) == pytest.approx(first.value) and 1 <= found.inputs["t0"] <= steps
    # Where no start is cut off, the minimum has a closed form: (1 + 1/p) t0 / n.
    middle = (1000 * scale * power * steps**power) ** (1 / (power + 1))
    if 100 < middle < steps:
        assert found.value == pytest.approx((1 + 1 / power) * middle / 1000, rel=1e-3)


@pytest.mark.parametrize(("form", "factor"), [("text", 2), ("appendix", 12)])
def test_prbench_2(form, factor):
    found = bounds.prbench2(CONSTANTS, 0.25, 10, 9, nu=0.5, weight=6, form=form)
    phi = 1 + 12 * (0.5 * 2 * 0.25 + 3 * 0.25 * 0.5)  # 8.5
    psi = 2.25 + 36 * (0.25 * 1 + 4 * 0.5 * 0.25)  # 29.25
    chi = 2 + 0.5 + factor * 6 * 0.25 * (0.25 * 2 + 2 * 0.5 * 3 * 0.5)  # 2.5 + factor * 3
    assert [found.inputs[name] for name in ("phi", "chi", "psi")] == pytest.approx([phi, chi, psi])
    assert found.value == pytest.approx(0.1 + (2 * 8.5**2 + 10 * 8.5 * chi) * 9 / (29.25 * 9))
    assert found.inputs["form"] == form


def test_prbench_5():
    # phi 1, psi max(1, 2.25): 1/10 + 2 * 9 / (2.25 * 9); no gamma, as there is no worst point
    found = bounds.prbench5(CONSTANTS, 10, 9)
    assert found.value == pytest.approx(0.1 + 2 / 2.25)
    assert found.inputs == {"phi": 1, "psi": 2.25, "n": 10, "T": 9}
    assert found.value < bounds.prbench1(CONSTANTS, 0.0, 10, 9).value
    # A loss that is smoother than it is steep: psi is phi.
    flat = Constants(lipschitz=0, lipschitz_theta=0.5, smooth=0, smooth_theta=0.1)
    assert bounds.prbench5(flat, 10, 9).inputs["psi"] == 1


def test_what_has_no_bound():
    none = Constants(lipschitz=1, lipschitz_theta=0, smooth=0, smooth_theta=0)
    assert bounds.prbench1(none, 0.1, 10, 5).value is None
    huge = bounds.prbench1(CONSTANTS, 0.1, 10, 10**6, c=1e3)
    assert huge.value is None and huge.vacuous and "larger than any number" in str(huge.reason)


def test_wci_4():
    found = bounds.wci4(0.3, 8.0)
    assert found.value == pytest.approx(0.15) and not found.vacuous
    assert bounds.wci4(3, 8.0).vacuous


def test_wci_1_is_catonis_bound():
    # 4 * 9 / (8 * 2) + (3 + ln 20) / 4
    found = bounds.wci1(3.0, 4.0, 2, largest=3.0)
    assert found.value == pytest.approx(2.25 + (3 + math.log(20)) / 4) and found.vacuous == (found.value >= 3)
    assert found.inputs == {"KL": 3.0, "lambda": 4.0, "n": 2, "C": 3.0, "epsilon": 0.05}
    # The best lambda of a known divergence gives C sqrt((KL + ln(1/epsilon)) / (2 n)).
    best = math.sqrt(8 * 50000 * (3 + math.log(20)))
    found = bounds.wci1(3.0, best, 50000)
    assert found.value == pytest.approx(math.sqrt((3 + math.log(20)) / (2 * 50000))) and not found.vacuous


def test_wci_2_is_the_divergence_of_normal_distributions():
    normal = torch.distributions.Normal
    weights, variances = [torch.tensor([1.0, -2.0]), torch.tensor([0.5])], [0.25, 4.0]
    exact = sum(
        float(torch.distributions.kl_divergence(normal(w, v**0.5), normal(torch.zeros_like(w), v**0.5)).sum())
        for w, v in zip(weights, variances, strict=True)
    )
    norms = [float(w.square().sum()) for w in weights]
    found = bounds.wci2(norms, variances, 8.0)
    assert found.value == pytest.approx(exact) and found.value == pytest.approx(10 + 0.25 / 8)
    assert found.vacuous and not bounds.wci2(norms, variances, 100.0).vacuous
    assert bounds.wci2([*norms, 7.0], [*variances, math.inf], 8.0).value == found.value
    third = bounds.wci3([2.0, 0.5, -1.0], [*variances, math.inf])
    assert third.value == pytest.approx(2 * 0.25 + 0.5 * 4) and third.vacuous


SHAPE = (1, 2, 3)


def batch_of(n=4, classes=2, **images):
    torch.manual_seed(1)
    clean = torch.rand(n, *SHAPE)
    moved = (clean + 0.05 * torch.randn(n, *SHAPE)).clamp(0, 1)
    twice = (moved + 0.05 * torch.randn(n, *SHAPE)).clamp(0, 1)
    ids = torch.arange(n)
    draws, probes = Draws(0, "test", ids), Draws(0, "test.batch", ids[:1])
    return MeasureBatch(clean, ids % classes, draws, probes, **{"perturbed": moved, "twice": twice, **images})


def named(bound, model, batch):
    return {value.name: value for value in measured(bound, model, [batch])}


@pytest.fixture
def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 2, bias=False)).eval()


def test_prbench_takes_what_is_given_and_says_what_it_estimated(linear):
    batch = batch_of()
    bound = BoundMeasure(paper="prbench", examples=100, updates=7, weight=3.0, smooth=2.0, gamma=0.5)
    first, second, fourth, fifth = measured(bound, linear, [batch])
    largest = of_logits(linear, batch)
    known = {name: largest[name] for name in ("lipschitz", "lipschitz_theta", "smooth_theta")}
    constants = bounds.Constants(smooth=2.0, **known)
    assert first.value == bounds.prbench1(constants, 0.5, 100, 7).value
    assert second.value == bounds.prbench2(constants, 0.5, 100, 7, nu=largest["softmax"], weight=3.0).value
    assert fourth.value == bounds.prbench4(constants, 0.5, 100, 7).value < first.value
    assert fifth.name == "prbench5" and fifth.value == bounds.prbench5(constants, 100, 7).value
    assert fifth.more["estimated"] == ["lipschitz_theta", "smooth_theta"]
    local = largest["smooth_theta_local"]
    assert first.more["smooth_theta_local"] == {"mean": pytest.approx(sum(local) / 4), "least": min(local)}
    assert max(local) == largest["smooth_theta"]
    assert first.more["estimated"] == ["lipschitz", "lipschitz_theta", "smooth_theta"]
    assert second.more["estimated"] == [*first.more["estimated"], "softmax"]


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
    values = named(BoundMeasure(beta=0.3, activation="tanh"), model, batch)

    def difference(logits):
        return logits[1] - logits[0]

    inputs = (batch.images, batch.attacked, batch.attacked_twice)
    clean, moved, twice = (gradient_rows(model, one, difference) for one in inputs)
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
    found = named(BoundMeasure().filled({"arch": arch}, 9), model, batch)
    plain = named(BoundMeasure(), model, batch)
    for name in ("robbench1.clean", "robbench1.robust"):
        assert found[name].value == plain[name].value
        assert (found[name].more["inputs"]["kappa"], found[name].more["inputs"]["p"]) == (25, 6)
        assert found[name].more["note"].startswith("corollary 1")
        assert "kappa" not in plain[name].more["inputs"]


def test_the_lemmas_are_about_the_singular_values_of_fresh_weights():
    generator = np.random.default_rng(0)
    hidden = [generator.normal(size=size) / math.sqrt(50) for size in ((50, 20), (50, 50))]
    last = generator.normal(size=(1, 50)) / math.sqrt(50)
    found = bounds.robbench_lemmas(hidden, last, 0)
    norm = max(np.linalg.norm(one, 2) for one in (*hidden, last))
    assert found["spectral"].value == pytest.approx(norm) and not found["spectral"].vacuous
    assert found["spectral"].inputs == {"limit": 3, "m": 50, "n": 50} and "frobenius" not in found
    # 2 exp(-zeta^2/2) is 5 % of the three matrices.
    zeta = found["singular"].inputs["limit"]
    assert 3 * 2 * math.exp(-(zeta**2) / 2) == pytest.approx(0.05) and found["singular"].value < zeta
    # sqrt(m) W of 3 x 1 has one singular value, 7, and the roots of its sides are sqrt(3) and 1.
    one = np.array([[2.0], [3.0], [6.0]]) / math.sqrt(3)
    single = bounds.robbench_lemmas([one], np.zeros((1, 12)), 4)
    assert single["singular"].value == pytest.approx(7 - math.sqrt(3) - 1) and single["singular"].vacuous
    assert single["frobenius"].inputs == {"limit": 6, "p": 4} and single["frobenius"].value == 0


@pytest.mark.parametrize(("space", "layers"), [("fcnn", "relu/tanh"), ("rescnn", "relu3/tanh5")])
def test_a_networks_norms_are_measured_without_an_attack(space, layers):
    arch = {"space": space, "str": layers, "width": 4, "inputs": "unit"}
    torch.manual_seed(0)
    model = models.build(arch, classes=2, shape=SHAPE).eval()
    found = named(BoundMeasure().filled({"arch": arch}, 9), model, batch_of())
    matrices = [layer.weight.detach().flatten(1).numpy() for layer in model.layers]
    last = model.last.weight.detach().numpy()
    matrices += [last.T] if space == "fcnn" else []
    tall = [one for one in matrices if space == "rescnn" or one.shape[0] >= one.shape[1]]
    assert found["spectral"].value == pytest.approx(max(np.linalg.norm(one, 2) for one in tall))
    assert all(found[name].clean for name in ("singular", "spectral"))
    assert ("frobenius" in found) == (space == "rescnn")
    if space == "rescnn":
        assert found["frobenius"].value == pytest.approx(np.linalg.norm(last))
        assert found["frobenius"].more["inputs"] == {"limit": pytest.approx(3 * math.sqrt(6)), "p": 6}
