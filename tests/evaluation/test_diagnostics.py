"""What an attack's own counts say of it: warnings in its entry."""

from __future__ import annotations

import pytest

from rbtools.attacks import ATTACKS
from rbtools.evaluation import diagnostics


@pytest.mark.parametrize(
    ("attacks", "warns"), [("square", False), ("fgsm,square", True), ("apgd-ce,square", True)]
)
def test_square_says_something_of_gradients_only_beside_an_attack_by_gradients(
    attacks: str, warns: bool
) -> None:
    method = ATTACKS.build("aa", attacks=attacks)
    square = attacks.split(",").index("square")
    fields = diagnostics.of_attack(method, {f"broken_by.{square}": 50.0}, 100)
    assert fields["broken_by"]["square"] == 50
    assert any("no attack by gradients broke" in one for one in fields.get("warnings", [])) is warns
