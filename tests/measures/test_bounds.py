"""The papers' bounds by numbers computed by hand, and what makes each vacuous."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rbtools.errors import RbError
from rbtools.measures import bounds
from rbtools.measures.bounds import Constants


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
    assert bounds.hermite(bounds.ACTIVATIONS[activation], order) == pytest.approx(expected, abs=1e-10)


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
    far = bounds.robbench2(images, 0.4, "relu")
    assert far.value < 0 and far.vacuous


def test_robbench_2_needs_images():
    with pytest.raises(RbError, match="There are 2, 1 of them all 0"):
        bounds.robbench2(np.array([[0.0, 0.0], [1.0, 0.0]]), 0.1, "relu")


def test_separation_is_what_theorem_2_needs():
    images = np.array([[2.0, 0.0], [0.5, math.sqrt(0.75)], [0.0, -3.0]])  # 60, 30 and 90 degrees apart
    closest = math.sqrt(0.75)
    clean = bounds.separation(images, 0.0)
    assert clean.value == pytest.approx(closest) and not clean.vacuous
    # 2 * closest^r < 1 from r = 5 on: .75^2.5 is .487, .75^2 is .5625.
    assert clean.inputs["order"] == 5
    for order in (4, 5, 6):
        bound = bounds.robbench2(images, 0.0, lambda z, r=order: z**r, order=order)
        assert bound.vacuous == (order < 5), order
    wide = bounds.separation(images, 0.1)
    assert wide.value == pytest.approx(closest + 0.21) and wide.vacuous and "order" not in wide.inputs
    apart = bounds.separation(np.eye(3), 0.0)
    assert (apart.value, apart.inputs["order"], apart.vacuous) == (0, 1, False)
    with pytest.raises(RbError, match="There are 1"):
        bounds.separation(np.eye(3)[:1], 0.0)


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


def test_prbench_4_says_something_where_theorem_1_does_not():
    small = Constants(lipschitz=0, lipschitz_theta=1e-3, smooth=0, smooth_theta=1)
    first, best = (bound(small, 0.1, 50000, 10**6) for bound in (bounds.prbench1, bounds.prbench4))
    # phi = chi = 2e-3, psi ~ 2: 2e-6 T is 2, and 2 sqrt(2e-6 T / n) is .0126.
    assert first.value == pytest.approx(2, rel=1e-3) and first.vacuous
    assert best.value == pytest.approx(2 * math.sqrt(2 / 50000), rel=1e-3) and not best.vacuous
    none = bounds.prbench4(CONSTANTS, 0.25, 10, 0)
    assert none.value == bounds.prbench1(CONSTANTS, 0.25, 10, 0).value and none.inputs["t0"] == 1
    assert "min over t0" in best.formula and best.formula.endswith("(T/t0) / (psi (n-1))")


@pytest.mark.parametrize(("form", "factor"), [("text", 2), ("appendix", 12)])
def test_prbench_2(form, factor):
    found = bounds.prbench2(CONSTANTS, 0.25, 10, 9, nu=0.5, weight=6, form=form)
    phi = 1 + 12 * (0.5 * 2 * 0.25 + 3 * 0.25 * 0.5)  # 8.5
    psi = 2.25 + 36 * (0.25 * 1 + 4 * 0.5 * 0.25)  # 29.25
    chi = 2 + 0.5 + factor * 6 * 0.25 * (0.25 * 2 + 2 * 0.5 * 3 * 0.5)  # 2.5 + factor * 3
    assert [found.inputs[name] for name in ("phi", "chi", "psi")] == pytest.approx([8.5, chi, 29.25])
    assert (phi, psi, chi) == (8.5, 29.25, 2.5 + factor * 3)
    assert found.value == pytest.approx(0.1 + (2 * 8.5**2 + 10 * 8.5 * chi) * 9 / (29.25 * 9))
    assert found.inputs["form"] == form


def test_prbench_5():
    # phi 1, psi max(1, 2.25): 1/10 + 2 * 9 / (2.25 * 9); no gamma, as there is no worst point
    found = bounds.prbench5(CONSTANTS, 10, 9)
    assert found.value == pytest.approx(0.1 + 2 / 2.25)
    assert found.inputs == {"phi": 1, "psi": 2.25, "n": 10, "T": 9}
    assert found.formula == "1/n + 2 phi^2 T / (psi (n-1))"
    assert found.value < bounds.prbench1(CONSTANTS, 0.0, 10, 9).value
    # A loss that is smoother than it is steep: psi is phi.
    flat = Constants(lipschitz=0, lipschitz_theta=0.5, smooth=0, smooth_theta=0.1)
    assert bounds.prbench5(flat, 10, 9).inputs["psi"] == 1


def test_what_has_no_bound():
    none = Constants(lipschitz=1, lipschitz_theta=0, smooth=0, smooth_theta=0)
    assert bounds.prbench1(none, 0.1, 10, 5).value is None
    huge = bounds.prbench1(CONSTANTS, 0.1, 10, 10**6, c=1e3)
    assert huge.value is None and huge.vacuous and "larger than any number" in str(huge.reason)
    with pytest.raises(RbError, match="n >= 2"):
        bounds.prbench1(CONSTANTS, 0.1, 1, 5)
    with pytest.raises(RbError, match="Choose from: text, appendix"):
        bounds.prbench2(CONSTANTS, 0.1, 10, 5, nu=1, weight=1, form="other")


def test_wci_4():
    found = bounds.wci4(0.3, 8.0)
    assert found.value == pytest.approx(0.15) and not found.vacuous
    assert bounds.wci4(3, 8.0).vacuous
    with pytest.raises(RbError, match="above 0"):
        bounds.wci4(1, 0)


def test_wci_1_is_catonis_bound():
    # 4 * 9 / (8 * 2) + (3 + ln 20) / 4
    found = bounds.wci1(3.0, 4.0, 2, largest=3.0)
    assert found.value == pytest.approx(2.25 + (3 + math.log(20)) / 4) and found.vacuous == (found.value >= 3)
    assert found.inputs == {"KL": 3.0, "lambda": 4.0, "n": 2, "C": 3.0, "epsilon": 0.05}
    # The best lambda of a known divergence gives C sqrt((KL + ln(1/epsilon)) / (2 n)).
    best = math.sqrt(8 * 50000 * (3 + math.log(20)))
    found = bounds.wci1(3.0, best, 50000)
    assert found.value == pytest.approx(math.sqrt((3 + math.log(20)) / (2 * 50000))) and not found.vacuous
    for numbers in ((-1.0, 1.0, 5, {}), (1.0, 0.0, 5, {}), (1.0, 1.0, 5, {"failure": 0.0})):
        with pytest.raises(RbError, match="lemma 1 is for"):
            bounds.wci1(*numbers[:3], **numbers[3])


def test_wci_2_is_the_divergence_of_normal_distributions():
    torch = pytest.importorskip("torch")
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
