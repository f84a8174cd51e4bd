"""Every attack in bfloat16 beside itself in float32: rounding must not look like robustness."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from bench import calibration
from rbtools.attacks import ATTACKS
from rbtools.attacks.oracle import Oracle
from rbtools.attacks.pgd import PGD
from rbtools.evaluation import in_memory
from rbtools.evaluation.accuracy import Attacked
from rbtools.evaluation.attacking import run_attack
from rbtools.evaluation.base import Batch
from rbtools.evaluation.fast_model import is_float32, make_fast_model
from rbtools.execution import precision
from rbtools.execution.settings import Settings
from rbtools.rng.draws import of_images

MEAN, MOST = 0.005, 0.015  # the largest accuracy above float32: mean over the networks, and in one
SHORT: dict[str, dict[str, Any]] = {
    "apgd-ce": {"steps": 20},
    "apgd-dlr": {"steps": 20},
    "fab": {"steps": 5},
    "fab-t": {"steps": 3},
    "cw-l2": {"steps": 10, "searches": 2},
    "fmn": {"steps": 30},
    "ddn": {"steps": 30},
    "square": {"queries": 60},
    "noise": {"samples": 30},
    "spatial": {"angles": 5, "shifts": 3, "degrees": 10.0, "pixels": 0.5},
    "patch": {"area": 0.02, "steps": 10},
    "pixels": {"pixels": 1, "queries": 40},
    "sigma-zero": {"pixels": 1, "steps": 30},
    **{name: {"queries": 20} for name in ("hopskipjump", "rays", "surfree", "boundary")},
    "spsa": {"queries": 100, "samples": 10},
    "color": {"what": "brightness", "amount": 0.5, "values": 7},
    "blur": {"values": 7},
    "zoom": {"values": 7},
}
SLOW = {"apgd-t", "aa"}
EXACT = {"cw", "apgd-dlr", "apgd-t", "aa"}  # so strong that they reach the closed form of the linear network


@functools.cache
def cases() -> list[calibration.Case]:
    return list(calibration.networks(200))


def closed_form(case: calibration.Case, eps: float) -> float:
    """The share of images of which no point of the L-infinity ball and the box has another class."""
    _, model, images, labels = case
    x, weights, logits = images.flatten(1), model[2].weight @ model[1].weight, model(images)
    up, down, robust = (1 - x).clamp(max=eps), x.clamp(max=eps), torch.ones_like(labels, dtype=torch.bool)
    for other in range(10):
        slope = weights[other] - weights[labels]
        gain = (slope.clamp(min=0) * up - slope.clamp(max=0) * down).sum(1)
        margin = logits.gather(1, labels[:, None])[:, 0] - logits[:, other]
        robust &= (gain <= margin) | (labels == other)
    return float(robust.float().mean())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in ATTACKS]
)
def test_an_attack_in_bfloat16_is_as_strong_as_in_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(calibration.SHORT, name, SHORT.get(name, {}))
    worse = []
    for case in cases():
        attack = calibration.attack_on(name, case[0])
        values = [
            float(calibration.attacked(attack, case, how).survived.float().mean()) for how in ("fp32", "bf16")
        ]
        worse.append(values[1] - values[0])
        if case[0] == "linear" and attack.in_ball and attack.norm == "linf":
            exact = closed_form(case, calibration.EPS["linf"][0])
            assert exact - 1e-6 <= values[1] <= (exact + MOST if name in EXACT else 1)
    assert sum(worse) / len(worse) <= MEAN + 1e-6 and max(worse) <= MOST + 1e-6, worse


class Coarse(nn.Module):
    """A copy whose logits are multiples of 2; their gradients are those of the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mark", torch.zeros(1, dtype=torch.bfloat16))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = self.model(images)
        return logits + (2 * (logits / 2).round() - logits).detach()


@pytest.mark.parametrize(
    ("name", "settings"),
    [("square", {"queries": 100}), ("pgd", {}), ("pgd", {"iterate": "last"}), ("apgd-ce", {"steps": 20})],
)
def test_examples_near_the_boundary_of_a_coarse_copy_are_attacked_again(
    name: str, settings: dict[str, Any]
) -> None:
    _, model, images, labels = cases()[1]
    attack, found = ATTACKS.build(name, eps=16 / 255, **settings), []
    for copy in (model, Coarse(model)):
        batch = Batch(model, images, labels, torch.arange(200), seed=0, chunk_size=128, fast_model=copy)
        found.append(run_attack(batch, attack))
    exact, coarse = found
    assert not (coarse.survived & ~exact.survived).any()
    assert 0 < coarse.totals["unconfirmed"] < 200


def test_every_pass_of_the_network_and_its_copy_is_counted() -> None:
    _, model, images, labels = cases()[1]
    seen: list[int] = []
    ready = make_fast_model(model, "bf16", (1, 8, 8)).model
    hooks = [
        one.register_forward_pre_hook(lambda _, given: seen.append(len(given[0]))) for one in (model, ready)
    ]
    batch = Batch(model, images, labels, torch.arange(200), seed=0, chunk_size=64, fast_model=ready)
    found = run_attack(batch, PGD(eps=16 / 255, steps=5))
    for hook in hooks:
        hook.remove()
    assert found.totals["unconfirmed"] > 0 and sum(seen) == found.totals["forward"]


LAYERS = {
    "one layer": [nn.Flatten(), nn.Linear(64, 10)],
    "two layers": [nn.Flatten(), nn.Linear(64, 16), nn.Linear(16, 10)],
    "BatchNorm last": [nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10), nn.BatchNorm1d(10)],
}


@pytest.mark.parametrize("kind", LAYERS)
def test_the_last_layers_of_a_copy_are_in_float32(kind: str) -> None:
    """A copy that has no other layers does not round its input either, and is not named bfloat16."""
    torch.manual_seed(0)
    model = nn.Sequential(*LAYERS[kind]).eval()
    with torch.no_grad():
        model[-1].bias += 100
    images = torch.rand(8, 1, 8, 8)
    ready = make_fast_model(model, "bf16", (1, 8, 8))
    rounds = kind != "one layer"
    assert ready.refusal is None and is_float32(ready.model) is not rounds
    assert ({"bf16", "fp32-logits"} <= set(ready.steps)) is rounds
    found, wanted = ready.model(images), model(images)
    assert torch.equal(found, wanted) is not rounds
    assert (found - wanted).abs().max() < 1 / 64  # logits near 100 in bfloat16 are multiples of 1/2


def test_a_mean_over_samples_notes_the_margins_of_the_copy() -> None:
    _, model, images, labels = cases()[1]
    oracle, attack = Oracle(model, decides=model), PGD(eps=0.01, steps=2, eot=2)
    oracle.least = torch.full((8,), torch.inf)
    attack.runner(oracle)(oracle, images[:8], labels[:8], of_images("attack.pgd", images[:8], 0, None))
    assert oracle.least.isfinite().all()


def test_an_ensemble_names_the_attacks_that_do_not_use_the_copy() -> None:
    names = {
        attacks: Attacked(method=ATTACKS.build("aa", attacks=attacks, eps=0.01))
        for attacks in ("", "fab,fab-t", "pgd")
    }
    assert [list(one.in_float32) for one in names.values()] == [["fab-t"], ["fab", "fab-t"], []]
    assert [one.precise for one in names.values()] == [False, True, False]


def test_rows_of_another_version_of_the_copy_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    _, model, images, labels = cases()[1]
    cache, keys = in_memory.Cache("kept", model, in_memory.data_of((images, labels), kept=True)), []
    for version in (precision.PREPARED, precision.PREPARED + 1):
        monkeypatch.setattr(precision, "PREPARED", version)
        for name in ("square", "fab"):
            spec, settings = Attacked(method=ATTACKS.build(name)), Settings(precision="bf16")
            keys.append(cache.outcomes(spec, settings, 8, anew=True).key)
    assert len(set(keys)) == 4  # FAB uses a float32 copy
