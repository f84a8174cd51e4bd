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


def test_hermite_polynomials_are_normalised():
    # z^4 = h_0 * 3 + h_2 * 6 sqrt(2) + h_4 * sqrt(24)
    found = [bounds.hermite(lambda z: z**4, order) for order in range(6)]
    assert found == pytest.approx([3, 0, 6 * math.sqrt(2), 0, math.sqrt(24), 0], abs=1e-9)


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


def test_without_the_term_theorem_2_is_theorem_1_but_for_nu():
    with_nu = bounds.prbench2(CONSTANTS, 0.25, 10, 9, nu=1, weight=0)
    assert with_nu.value == bounds.prbench1(CONSTANTS, 0.25, 10, 9).value


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
