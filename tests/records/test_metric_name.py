"""Metric names, their direction, and the default to rank by."""

from __future__ import annotations

from typing import Any

import pytest

from rbtools.errors import RbError
from rbtools.records import metric_name


@pytest.mark.parametrize(
    ("typed", "norm", "want"),
    [(8 / 255, "linf", "8"), (2.5 / 255, "linf", "2.5"), (0.1 / 255, "linf", "0.1"), (1.0, "linf", "255"),
     (1 / 255, "linf", "1"), (16 / 255, "linf", "16"), (0.0, "linf", "0"), (0.5, "l2", "0.5"),
     (128 / 255, "l2", "0.501961")],
)  # fmt: skip
def test_eps_name(typed: float, norm: str, want: str) -> None:
    assert metric_name.eps_name(typed, norm) == want


def test_every_eps_in_steps_of_a_tenth_has_its_own_short_name() -> None:
    assert [metric_name.eps_name(tenths / 10 / 255) for tenths in range(1, 2551)] == [
        f"{tenths / 10:g}" for tenths in range(1, 2551)
    ]


def test_names() -> None:
    assert metric_name.attack_name("pgd20", 8 / 255) == "pgd20.8"
    assert metric_name.attack_name("pgd20.l2", 0.5, "l2") == "pgd20.l2.0.5"
    assert metric_name.corrupt_name("fog", 3) == "corrupt.fog.3"
    assert metric_name.corrupt_name("fog", "mean") == "corrupt.fog.mean"
    assert metric_name.pr_name("uniform", 0.08) == "pr.uniform.0.08"
    assert metric_name.prob_acc_name("uniform", 8 / 255, 0.05) == "probacc.uniform.0.0313725.0.05"
    assert metric_name.ge_name("pr.uniform.0.08") == "ge.pr.uniform.0.08"
    assert metric_name.split_name("pgd20.8", "train") == "train.pgd20.8"
    assert metric_name.split_name("pgd20.8", "test") == "pgd20.8"


@pytest.mark.parametrize(
    "name",
    ["ge.pgd20.8", "ge.acc", "seconds_per_epoch", "train.seconds_per_epoch", "seconds", "loss", "train.loss",
     "loss.pgd20.8", "robust_loss", "corrupt.mce", "corrupt.relative_mce", "wci", "hessian.weight.lmax",
     "jacobian.trained.test", "robust_error_gap", "arch.params", "mean(ge.*, wci)", "max(ge.acc)",
     "bound.prbench1.pgd.8", "bound.wci4"],
)  # fmt: skip
def test_less_is_better(name: str) -> None:
    assert not metric_name.higher_is_better(name)


@pytest.mark.parametrize(
    "name",
    ["acc", "pgd20.8", "train.pgd20.8", "corrupt.fog.3", "corrupt.mean", "pr.uniform.0.08", "score",
     "probacc.uniform.0.0313725.0.05", "ntk.robust.fro.pgd.8", "gelu.acc", "mean(fgsm.*, pgd20.*)",
     "mean(acc, ge.acc)", "closs.x", "geometry", "anything", "bound.robbench2.clean"],
)  # fmt: skip
def test_more_is_better(name: str) -> None:
    assert metric_name.higher_is_better(name)


def record(*evaluated: str, without_value: str | None = None, **values: float) -> dict[str, Any]:
    evals = [{"metric": name, "value": 0.5} for name in evaluated]
    if without_value:
        evals.append({"metric": without_value, "value": None, "reason": "none"})
    return {"arch": {}, "metrics": {**dict.fromkeys(evaluated, 0.5), **values}, "evals": evals}


def test_last_evaluated() -> None:
    assert metric_name.last_evaluated(record("acc", "pgd20.8")) == "pgd20.8"
    assert metric_name.last_evaluated(record("acc", without_value="pr.uniform.0.1")) == "acc"
    assert metric_name.last_evaluated({"arch": {}, "metrics": {"a": 1, "b": 2}}) == "b"
    assert metric_name.last_evaluated({"arch": {}}) is None
    # the order of "metrics" is not that of evaluation
    assert (
        metric_name.last_evaluated({**record("acc", "fgsm.8"), "metrics": {"fgsm.8": 1, "acc": 1}})
        == "fgsm.8"
    )


def test_default_rank_key() -> None:
    many = [record("acc", "pgd20.8"), record("acc"), record("acc", "pgd20.8"), {"arch": {}}]
    assert metric_name.default_rank_key(many) == "pgd20.8"
    assert metric_name.default_rank_key([record("acc"), record("fgsm.8")]) == "acc"
    assert metric_name.default_rank_key([*many, record("acc", score=0.5)]) == "score"
    with pytest.raises(RbError, match="No record has a metric to rank by"):
        metric_name.default_rank_key([{"arch": {}}, {"arch": {}, "metrics": {}, "evals": []}])
