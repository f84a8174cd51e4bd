"""PGD-10, PGD-20 and CW-20 of the preset prbench-code against wellzline/PRBenchmark's evaluate.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rbtools.attacks import ATTACKS, losses, presets
from tests.training.test_prbench_code import Formula, network, pixels, uniform

GOLDEN = json.loads(Path(__file__).with_name("prbench_code.json").read_text())
PRESET = {
    f"{part.attack}-{part.params['steps']}": ATTACKS.build(part.attack, eps=part.eps[0], **part.params)
    for part in presets.preset("prbench-code")
    if "steps" in part.params
}


def examples(net: str) -> tuple[torch.Tensor, torch.Tensor]:
    return pixels(40), torch.tensor(GOLDEN["labels"][net])


@pytest.mark.parametrize(
    "case", GOLDEN["cases"], ids=lambda case: f"{case['net']}-{case['name']}-{case['batch']}"
)
def test_images_and_verdicts_are_those_of_the_code(case: dict[str, Any]) -> None:
    model, (images, labels), draws = network(case["net"]).eval(), examples(case["net"]), Formula()
    pieces = []
    for some, own in zip(images.split(case["batch"]), labels.split(case["batch"]), strict=True):
        draws.count = len(some)
        pieces.append(PRESET[case["name"]](model, some, own, draws))
    perturbed = torch.cat(pieces)
    robust = model(perturbed).argmax(1) == labels
    assert robust.int().tolist() == case["robust"]
    clean = model(images).argmax(1) == labels
    assert [100 * right.double().mean().item() for right in (clean, robust)] == case["acc"]
    if "dot" in case:
        assert perturbed.flatten()[:32].tolist() == pytest.approx(case["first32"], abs=1e-7)
        moved = (perturbed - images).flatten(1).norm(dim=1)
        assert moved.tolist() == pytest.approx(case["delta_l2_per_image"], rel=1e-6)
        assert (perturbed * uniform(900, (40, 3, 8, 8))).sum().item() == pytest.approx(case["dot"], rel=1e-7)


@pytest.mark.parametrize(
    ("net", "margin"), [(net, name) for net in GOLDEN["cw_loss"] for name in GOLDEN["cw_loss"][net]]
)
def test_cw_ascends_the_margin_of_the_code(net: str, margin: str) -> None:
    case, kappa = GOLDEN["cw_loss"][net][margin], float(margin.split()[1])
    images, labels = examples(net)
    logits = network(net).eval()(images)
    # The code's value is min(m, kappa) - kappa for the margin m: a constant less than ours.
    values = losses.margin(logits, labels, labels, kappa) - kappa
    assert values.mean().item() == pytest.approx(case["mean"], rel=1e-6)
    assert values[:8].tolist() == pytest.approx(case["first8"], abs=5e-6)


def test_a_record_names_the_margin_that_cw_ascends() -> None:
    named = [ATTACKS.build("cw", target=target).loss_for(10) for target in ("none", "3")]
    assert named == ["margin", "targeted-margin"]
