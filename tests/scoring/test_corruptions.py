"""Means over corruptions beside a reference's, and the local optimality of an attack, by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from rbtools.errors import RbError
from rbtools.evaluation.accuracy import share
from rbtools.evaluation.under_corruption import mean_over
from rbtools.scoring.corruptions import reference, summary
from rbtools.scoring.optimality import optimality

BENCHMARK = ("fog", "frost")


def entry(name: str, severity: int, value: float, **more: Any) -> dict[str, Any]:
    low, high = value - 0.1, value + 0.2
    found = {"metric": f"corrupt.{name}.{severity}", "corruption": name, "severity": severity, "n": 10}
    return {**found, "value": value, "ci95": [low, high], "seconds": 2.0, **more}


FOG = [entry("fog", severity, value) for severity, value in enumerate((0.9, 0.8, 0.7, 0.6, 0.5), start=1)]
FROST = [entry("frost", severity, 0.4, textures="generated", seed=1) for severity in range(1, 6)]
BASE = {
    "arch": {"name": "net"},
    "metrics": {"acc": 0.8, "corrupt.fog.mean": 0.4, **{f"corrupt.frost.{s}": 0.2 for s in range(1, 6)}},
}


def test_means_stand_where_they_are_complete() -> None:
    assert summary(FOG[:4], None, BENCHMARK) == []
    (fog,) = summary(FOG, None, BENCHMARK)
    assert fog["metric"] == "corrupt.fog.mean" and fog["value"] == pytest.approx(0.7)
    assert fog["ci95"] == pytest.approx([0.6, 0.9]) and fog["n"] == 10 and fog["seconds"] == 2
    assert "severity" not in fog and fog["severities"] == [1, 2, 3, 4, 5]
    for images, severities in ((10, 4), (9, 5)):  # not all the images
        right = {("fog", severity): np.ones(images, int) for severity in range(1, severities + 1)}
        assert summary(FOG, None, BENCHMARK, joint=partial(mean_over, right))[0]["ci95"] == fog["ci95"]
    one, other = ([{**part, "archive": name} for part in FOG] for name in ("sha256:a", "sha256:b"))
    assert summary(one, None, BENCHMARK)[0]["archive"] != summary(other, None, BENCHMARK)[0]["archive"]
    *_, whole = summary([*FROST, *FOG], None, BENCHMARK)
    assert whole["metric"] == "corrupt.mean" and whole["value"] == pytest.approx(0.55)
    assert (whole["textures"], whole["seed"], whole["corruptions"]) == ("generated", 1, ["fog", "frost"])


@pytest.mark.slow
def test_the_interval_of_a_mean_covers_as_often_as_it_says() -> None:
    """Corruptions agree on some images, as these differ in how hard they are."""
    rng, hits, widths = np.random.default_rng(0), [], []
    for _ in range(400):
        chances = rng.beta(2, 1, 200)  # mean 2/3
        right = {("fog", severity): rng.binomial(1, chances) for severity in range(1, 6)}
        parts = [entry("fog", severity, 0) | share(rows) for (_, severity), rows in right.items()]
        (mean,) = summary(parts, None, BENCHMARK, joint=partial(mean_over, right))
        hits.append(mean["ci95"][0] <= 2 / 3 <= mean["ci95"][1])
        apart = summary(parts, None, BENCHMARK)[0]["ci95"]
        widths.append((mean["ci95"][1] - mean["ci95"][0]) / (apart[1] - apart[0]))
    assert 0.92 < np.mean(hits) < 0.975 and np.mean(widths) < 0.75


def test_errors_beside_a_reference() -> None:
    base = reference(BASE, BENCHMARK)
    assert dict(base.errors) == pytest.approx({"fog": 0.6, "frost": 0.8}) and base.name == "net"
    mce, relative = summary([*FOG, *FROST], {"value": 0.9}, BENCHMARK, base)[-2:]
    assert mce["metric"] == "corrupt.mce" and mce["value"] == pytest.approx((0.3 / 0.6 + 0.6 / 0.8) / 2)
    # clean errors .1 here and .2 there: (.3 - .1) / (.6 - .2) and (.6 - .1) / (.8 - .2)
    assert relative["value"] == pytest.approx((0.2 / 0.4 + 0.5 / 0.6) / 2)


def test_a_reference_must_have_all_and_err_somewhere() -> None:
    with pytest.raises(RbError, match="lacks results of snow"):
        reference(BASE, (*BENCHMARK, "snow"))
    with pytest.raises(RbError, match="makes no errors under fog, so its error cannot be a divisor"):
        reference({"metrics": {**BASE["metrics"], "corrupt.fog.mean": 1.0}}, BENCHMARK)


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


def test_record_other_distances_are_compared_up_to_the_last_that_all_have() -> None:
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
    with pytest.raises(RbError, match="no other attack with two distances"):
        optimality(curves, "fmn")
    with pytest.raises(RbError, match="clean accuracy"):
        optimality(record(0.0, fmn=[0.0, 0.0], pgd20=[0.0, 0.0]), "fmn")
