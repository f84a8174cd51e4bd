"""Metric names, their direction, and the default to rank by."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtools.errors import RbError
from rbtools.records import metric_name as names


@given(st.text())
def test_any_text_is_parsed_and_built_again(text: str) -> None:
    assert names.parse(text).build() == text


def test_every_eps_in_steps_of_a_tenth_has_its_own_short_name() -> None:
    assert [names.eps_name(tenths / 10 / 255) for tenths in range(1, 2551)] == [
        f"{tenths / 10:g}" for tenths in range(1, 2551)
    ]
    assert names.eps_name(0.0) == "0"
    assert [names.eps_name(eps, "l2") for eps in (0.5, 128 / 255)] == ["0.5", "0.501961"]


def test_the_direction_of_a_metric_follows_from_its_name() -> None:
    lower = (
        "ge.pgd20.8 seconds_per_epoch train.seconds_per_epoch seconds loss train.loss loss.pgd20.8"
        " robust_loss corrupt.mce corrupt.relative_mce wci hessian.weight.lmax jacobian.trained.test"
        " robust_error_gap arch.params mean(ge.*,wci) max(ge.acc) bound.prbench1.pgd.8 bound.wci4"
    )
    higher = (
        "acc pgd20.8 train.pgd20.8 corrupt.fog.3 corrupt.mean pr.uniform.0.08 score ntk.robust.fro.pgd.8"
        " gelu.acc mean(fgsm.*,pgd20.*) mean(acc,ge.acc) closs.x geometry anything bound.robbench2.clean"
    )
    found = {name: names.higher_is_better(name) for name in f"{lower} {higher}".split()}
    assert found == dict.fromkeys(lower.split(), False) | dict.fromkeys(higher.split(), True)


def record(*evaluated: str, without_value: str | None = None, **values: float) -> dict[str, Any]:
    evals = [{"metric": name, "value": 0.5} for name in evaluated]
    if without_value:
        evals.append({"metric": without_value, "value": None, "reason": "none"})
    return {"arch": {}, "metrics": {**dict.fromkeys(evaluated, 0.5), **values}, "evals": evals}


def test_default_rank_key() -> None:
    many = [record("acc", "pgd20.8"), record("acc"), record("acc", "pgd20.8"), {"arch": {}}]
    assert names.default_rank_key(many) == "pgd20.8"
    assert names.default_rank_key([record("acc"), record("fgsm.8")]) == "acc"
    assert names.default_rank_key([*many, record("acc", score=0.5)]) == "score"
    with pytest.raises(RbError, match="No record has a metric to rank by"):
        names.default_rank_key([{"arch": {}}, {"arch": {}, "metrics": {}, "evals": []}])


@pytest.mark.parametrize(
    ("name", "wanted", "over", "family"),
    [
        (names.attack_name("pgd20.l2", "0.5"), "pgd20.l2.0.5", "eps", "pgd20.l2"),
        (names.split_name("fgsm.8", "train"), "train.fgsm.8", "eps", "train.fgsm"),
        (names.corrupt_name("fog", 3), "corrupt.fog.3", "severity", "corrupt.fog"),
        (names.corrupt_name("fog", "mean"), "corrupt.fog.mean", "", "corrupt.fog"),
        (names.ge_name("pr-all.uniform.0.08"), "ge.pr-all.uniform.0.08", "gamma", "ge.pr-all.uniform"),
        (names.pr_name("uniform", 0.08, "all"), "pr-all.uniform.0.08", "gamma", "pr-all.uniform"),
        (names.prob_acc_name("u", 8 / 255, 0.05), "probacc.u.0.0313725.0.05", "gamma", "probacc.u"),
        (names.pfail_name("gaussian", 1e-5), "pfail.gaussian.1e-05", "gamma", "pfail.gaussian"),
        (names.smoothing_name(0.25, 0.5), "cert.smooth.0.25.0.5", "eps", "cert.smooth.0.25"),
        (names.gap_name("loss.cw2.8"), "test_minus_train.loss.cw2.8", "eps", "test_minus_train.loss.cw2"),
        ("ntk.robust.fro", "ntk.robust.fro", "", "ntk.robust.fro"),
    ],
)
def test_built_names_say_what_their_number_is(name: str, wanted: str, over: str, family: str) -> None:
    found = names.parse(name)
    assert (name, found.over, found.family) == (wanted, over, family) and found.build() == name


@pytest.mark.parametrize(
    "name",
    [
        "shear.30.3",
        "nonsense.30.3",
        "pgd20.shear.30.3",
        "spatial.30",
        "zoom.1.2.3",
        "nonsense.8",
        "my.any.3",
        "pgd20.l3.8",
    ],
)
def test_a_name_that_no_kind_of_result_claims_is_an_unknown_metric(name: str) -> None:
    parts = names.parse(name)
    assert (parts.stem, parts.number, parts.over, parts.attacked) == (name, "", "", False)
    assert not names.is_share(name)


def test_a_name_contains_settings() -> None:
    parts = [
        names.parse(name)
        for name in ("corrupt.fog.3", "pr.uniform.0.08", "pgd20.l2.0.5", "pfail.uniform.0.1")
    ]
    fog, pr, pgd, pfail = (one.form.settings(one) for one in parts)
    assert fog == {"corruption": "fog", "severity": 3} and pfail == {}
    assert pr == {"noise": "uniform", "gamma": 0.08, "denominator": "correct"}
    assert pgd == {"attack": "pgd", "steps": 20, "eps": 0.5, "norm": "l2"}


def test_a_decimal_point_is_no_separator() -> None:
    assert names.parse("cert.smooth.1.0.5")[1:4] == ("1", "", "0.5")
    assert names.parse("pr.uniform.l2.0.08")[:4] == ("pr", "uniform", "l2", "0.08")


def test_a_name_without_a_split_is_of_the_test_images() -> None:
    assert [names.parse(name).split for name in ("acc", "train.acc", "ge.acc")] == ["test", "train", "test"]
