"""The published constants, as the sources print them."""

from __future__ import annotations

import pytest

from rbtools.datasets import NORMALIZATIONS


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        # The decimals that NAS-Bench-201's users print for the same constants.
        ("cifar10", (0.4914, 0.4824, 0.4467), (0.2471, 0.2435, 0.2616)),
        ("cifar100", (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
        ("imagenet16-120", (0.4811, 0.4575, 0.4079), (0.2479, 0.2402, 0.2553)),
        ("rice", (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
        ("kuangliu", (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        ("mnist", (0.1307,), (0.3081,)),
        ("svhn", (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
        ("cinic10", (0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587)),
        ("tinyimagenet", (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
        ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ],
)
def test_constants_are_on_the_unit_scale(name, mean, std):
    found = NORMALIZATIONS[name]
    assert found.mean == pytest.approx(mean, abs=6e-5)
    assert found.std == pytest.approx(std, abs=6e-5)
