"""Local optimality of an attack among the curves of a record."""

from __future__ import annotations

from typing import Any

import pytest

from rbtools.errors import RbError
from rbtools.scoring.optimality import optimality

EPS = (2, 4, 6, 8)


def record(acc: float = 0.8, **curves: list[float]) -> dict[str, Any]:
    evals = [{"tool": "rb-attack", "metric": "acc", "n": 100, "value": acc}]
    for stem, values in curves.items():
        for eps, value in zip(EPS, values, strict=False):
            entry = {"attack": stem, "metric": f"{stem}.{eps}", "eps": eps / 255, "n": 100, "value": value}
            evals.append({"tool": "rb-attack", **entry})
    return {"metrics": {entry["metric"]: entry["value"] for entry in evals}, "evals": evals}


def test_the_envelope_is_of_all_attacks_and_ends_at_0() -> None:
    curves = record(fmn=[0.6, 0.2, 0, 0], pgd20=[0.4, 0.3, 0.2, 0.2])
    # the envelope is .8 .4 .2 0 up to 6
    least = 1.2 + 0.6 + 0.2
    assert optimality(curves, "fmn") == pytest.approx((4.8 - (1.4 + 0.8 + 0.2)) / (4.8 - least))
    assert optimality(curves, "pgd20") == pytest.approx((4.8 - (1.2 + 0.7 + 0.5)) / (4.8 - least))


def test_curves_of_other_distances_are_compared_up_to_the_last_that_all_have() -> None:
    curves = record(fmn=[0.6, 0.4, 0.2, 0.1])
    curves["evals"] += [
        {"attack": "pgd", "metric": f"pgd20.{eps}", "eps": eps / 255, "n": 100, "value": value}
        for eps, value in ((3, 0.5), (5, 0.3))
    ]
    assert optimality(curves, "pgd20") == pytest.approx(1)  # it lies on the line of the other
    assert optimality(curves, "fmn") == pytest.approx(1)


def test_only_attacks_in_this_norm_on_these_images_are_compared() -> None:
    curves = record(fmn=[0.6, 0.4, 0.2, 0.1], pgd20=[0.5, 0.3, 0.1, 0.0])
    for entry in curves["evals"]:
        if entry["metric"].startswith("pgd20"):
            entry["n"] = 50
    with pytest.raises(RbError, match="no other at two distances"):
        optimality(curves, "fmn")
    with pytest.raises(RbError, match="'pgd' has none"):
        optimality(curves, "pgd")
    with pytest.raises(RbError, match="clean accuracy"):
        optimality(record(0.0, fmn=[0.0, 0.0], pgd20=[0.0, 0.0]), "fmn")
