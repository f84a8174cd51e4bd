"""Norms of attacks of users: what cannot be checked is refused, and what a projection changes is said."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import rbtools
from rbtools.attacks.base import Attack
from rbtools.errors import RbError
from rbtools.records import metric_name
from rbtools.scoring import merge
from tests.networks import class_means, nearest


@dataclass(frozen=True, kw_only=True)
class Turned(Attack):
    """The image turned by 180 degrees."""

    name = "turned"
    version = 1
    eps: float = 30.0
    norm: str = "any"

    def __call__(self, model: Any, images: Any, labels: Any, draws: Any) -> Any:
        return images.flip(2, 3)


def evaluated(attack: Attack) -> tuple[Any, list[str]]:
    digits = rbtools.datasets.load("digits", "test")
    model: nn.Module = nearest(class_means())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = rbtools.evaluate(model, (digits.images[:40], digits.labels[:40]), attack, keep_images=True)
    return found, [str(one.message) for one in said]


def test_images_in_no_ball_are_judged_as_they_are() -> None:
    found, _ = evaluated(Turned())
    digits = rbtools.datasets.load("digits", "test").images[:40].float() / 255
    assert found.metric == "turned.any.30" and found.entry["norm"] == "any"
    assert torch.equal(found.images[found.correct], digits.flip(2, 3)[found.correct])


def test_a_norm_that_cannot_be_checked_is_refused() -> None:
    with pytest.raises(RbError, match=r"has the norm 'l0'.*any for an attack whose images are not in a ball"):
        evaluated(Turned(norm="l0"))


def test_a_projection_that_moves_images_is_said() -> None:
    found, said = evaluated(Turned(eps=8 / 255, norm="linf"))
    assert found.metric == "turned.8"
    assert any("were outside the ball of norm linf and were projected onto it" in text for text in said)


@pytest.mark.parametrize(
    "name", ["pgd20-eot10.8", "fgsm-eot1.48", "train.apgd-ce-eot4.l2.0.5", "mi-fgsm10.8"]
)
def test_the_samples_of_each_pass_are_part_of_a_name(name: str) -> None:
    parts = metric_name.parse(name)
    assert parts.build() == name and parts.over == "eps" and metric_name.is_share(name.removeprefix("train."))
    assert ("draw" in metric_name.heading(name)) == bool(parts.eot)


def test_results_of_one_name_with_other_settings_are_not_merged() -> None:
    def record(**settings: Any) -> dict[str, Any]:
        entry = {"metric": "pgd20.8", "attack": "pgd", "steps": 20, "n": 100, "value": 0.4, **settings}
        return {"arch": {"name": "a"}, "metrics": {"pgd20.8": 0.4}, "evals": [entry]}

    assert merge.united(record(), record(n=200, seed=1))["evals"][0]["n"] == 200
    with pytest.raises(RbError, match="measured differently: eot absent in the first and 10 in the second"):
        merge.united(record(), record(eot=10))
