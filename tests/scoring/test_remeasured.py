"""Verdicts on claims: exact on all images, hypergeometric on some, by standard errors for other numbers."""

from __future__ import annotations

from typing import Any

import pytest
from scipy import stats

from rbtools.probabilistic import intervals
from rbtools.scoring.remeasured import hypergeometric, judged


def attack(right: int, n: int, **more: Any) -> dict[str, Any]:
    named = {"metric": "pgd20.8", "attack": "pgd", "eps": 8 / 255, "norm": "linf", "steps": 20}
    return {**named, "value": right / n, "n": n, "ci95": list(intervals.wilson(right, n)), **more}


CLEAN = {"metric": "acc", "value": 0.9, "n": 1000}
NONE: dict[str, Any] = {"metric": "pr.uniform.0.1", "value": None, "n": 0}


@pytest.mark.parametrize(
    ("claim", "seen", "verdict"),
    [
        *((attack(500, 1000), attack(seen, 1000), "match") for seen in (500, 510, 490)),
        (attack(500, 1000), attack(511, 1000), "differs"),
        (CLEAN, {**CLEAN, "value": 0.902}, "match"),
        (CLEAN, {**CLEAN, "value": 0.903}, "differs"),
        (NONE, dict(NONE), "match"),
        (NONE, {**NONE, "value": 0.5}, "differs"),
    ],
)
def test_all_images_may_differ_by_what_arithmetic_turns(claim: Any, seen: Any, verdict: str) -> None:
    assert judged(claim, seen)["verdict"] == verdict


ALIKE = {"environment": "torch 2.13.0+cpu, some processor, AVX2", "device": "cpu", "precision": "bf16"}


def test_of_what_is_computed_alike_fewer_images_may_differ() -> None:
    claim = attack(500, 1000, **ALIKE)
    assert judged(claim, attack(501, 1000, **ALIKE))["verdict"] == "match"  # threads and batches round, too
    one = judged(claim, attack(502, 1000, **ALIKE))
    assert one["verdict"] == "differs" and "environment are the same" in one["test"]
    few = attack(50, 99, **ALIKE), attack(51, 99, **ALIKE)
    assert judged(*few)["verdict"] == "differs"
    for fact in ALIKE:  # elsewhere arithmetic may turn some
        assert judged(claim, attack(502, 1000, **{**ALIKE, fact: "other"}))["verdict"] == "match"
    assert judged(attack(500, 1000), attack(502, 1000))["verdict"] == "match"  # the claim does not say
    assert judged(claim, attack(51, 100, **ALIKE), images=1000)["verdict"] == "match"  # a random part


def test_of_shares_that_are_no_counts_one_image_may_differ_too() -> None:
    claim = {"metric": "probacc.uniform.0.1.0.05", "noise": "uniform", "value": 0.5, "n": 355, **ALIKE}
    assert judged(claim, {**claim, "value": 0.5 + 0.9 / 355})["verdict"] == "match"
    assert judged(claim, {**claim, "value": 0.5 + 1.1 / 355})["verdict"] == "differs"
    few = {**claim, "n": 50}
    assert judged(few, {**few, "value": 0.5 + 1 / 50})["verdict"] == "differs"
    loss = {"metric": "wci", "value": 10.0, "n": 355, **ALIKE}
    assert judged(loss, {**loss, "value": 10.002})["verdict"] == "differs"


@pytest.mark.parametrize(
    ("seen", "part", "right", "size"), [(40, 100, 500, 1000), (3, 10, 2, 40), (0, 7, 90, 99)]
)
def test_the_hypergeometric_test_is_that_of_scipy(seen: int, part: int, right: int, size: int) -> None:
    known = stats.hypergeom(size, right, part)
    expected = part * right / size
    p = sum(known.pmf(k) for k in range(part + 1) if abs(k - expected) >= abs(seen - expected) - 1e-9)
    assert hypergeometric(seen, part, right, size) == pytest.approx(p, rel=1e-9)


def test_other_numbers_are_compared_by_their_standard_errors() -> None:
    claim = {"metric": "pr.uniform.0.1", "noise": "uniform", "value": 0.9, "n": 800, "ci95": [0.88, 0.92]}
    assert judged(claim, {**claim, "value": 0.905})["verdict"] == "match"
    assert judged(claim, {**claim, "value": 0.92})["verdict"] == "differs"
    part = {**claim, "n": 80, "ci95": [0.85, 0.95]}
    assert judged(claim, {**part, "value": 0.93}, 1000)["verdict"] == "match"
    assert judged(claim, {**part, "value": 0.75}, 1000)["verdict"] == "differs"
    del part["ci95"], part["n"]
    assert judged(claim, part, 1000)["verdict"] == "cannot be told"
