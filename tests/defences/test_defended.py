"""A network behind stages: its value, its gradients, its memory, and as `rbtools.evaluate` takes it."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import rbtools
from rbtools.attacks.pgd import PGD
from rbtools.defences.base import Defence
from rbtools.defences.defended import Defended
from rbtools.defences.jpeg import Jpeg
from rbtools.defences.quantize import Quantize
from rbtools.evaluation.fast_model import make_fast_model
from tests.networks import convolutional, images_for, linear

DETERMINISTIC: tuple[Defence, ...] = (Jpeg(quality=50), Quantize(bits=2))


def logits_and_gradient(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    images = images.clone().requires_grad_()
    logits = model(images)
    return logits.detach(), torch.autograd.grad(logits[:, 0].sum(), images)[0]


@pytest.mark.parametrize("stage", DETERMINISTIC, ids=lambda stage: stage.name)
@pytest.mark.parametrize("backward", [None, "none", "identity"])
def test_logits_are_those_behind_the_stage_however_gradients_are_taken(
    stage: Defence, backward: str | None
) -> None:
    network, images = linear(), images_for(3, (3, 8, 8))
    model = Defended(network, [stage], backward=backward)  # type: ignore[arg-type]
    logits, gradient = logits_and_gradient(model, images)
    wanted = network(stage(images))
    assert torch.equal(logits, wanted) and torch.equal(model(images), wanted)
    assert (gradient == 0).all() == (backward == "none")


@pytest.mark.parametrize("stage", DETERMINISTIC, ids=lambda stage: stage.name)
def test_the_identity_gives_the_gradient_at_the_image_that_the_network_sees(stage: Defence) -> None:
    network, images = convolutional(), images_for(3, (3, 8, 8))
    _, gradient = logits_and_gradient(Defended(network, [stage], backward="identity"), images)
    _, wanted = logits_and_gradient(network, stage(images))
    assert torch.equal(gradient, wanted)


def test_the_fast_copy_is_behind_the_same_stages() -> None:
    network, images = convolutional(norm=True), images_for(4, (3, 8, 8))
    model = Defended(network, [Quantize(bits=2)])
    fast = make_fast_model(model, "bf16", (3, 8, 8))
    assert fast.steps == make_fast_model(network, "bf16", (3, 8, 8)).steps and "bf16" in fast.steps
    assert torch.allclose(fast.model(images), model(images), atol=0.05)
    nearly = (Quantize(bits=2)(images) + 0.1 / 3).clamp(0, 1)  # bfloat16 would round it to other levels
    assert torch.equal(fast.model(nearly), fast.model(Quantize(bits=2)(nearly)))
    assert logits_and_gradient(fast.model, images)[1].abs().sum() > 0


def test_a_defended_network_is_copied_and_pickled() -> None:
    model, images = Defended(linear(), [Jpeg(), Quantize(bits=2)]), images_for(2, (3, 8, 8))
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(again(images), model(images)) and again.stages == model.stages


class Pixels(nn.Module):
    """The class is told by the pixel of an image (1, 1, 2) that is brighter."""

    def forward(self, images: Tensor) -> Tensor:
        return 10 * images.flatten(1)


def test_through_the_identity_pgd_breaks_what_it_does_not_break_without() -> None:
    """Every image is .4 from another level and its class turns there: any attack that moves breaks it."""
    images = torch.tensor([[[[0.9, 0.1]]], [[[0.1, 0.9]]]])
    labels = torch.tensor([0, 1])
    attack = PGD(eps=0.45, step_size=0.05, steps=20, start="zero")
    values = {}
    for backward in ("none", "own", None):
        model = Defended(Pixels(), [Quantize(bits=1)], backward=backward)  # type: ignore[arg-type]
        values[backward] = rbtools.evaluate(model, (images, labels), attack).value
    assert values == {"none": 1.0, "own": 1.0, None: 0.0}


def test_outcomes_are_kept_by_the_stages() -> None:
    images, labels = images_for(20, (3, 8, 8)), torch.arange(20) % 10
    network = linear()
    found = []
    for stages, backward in (([], None), ([Quantize(bits=1)], None), ([Quantize(bits=1)], "none")):
        model = Defended(network, stages, backward=backward)  # type: ignore[arg-type]
        kept, fresh = (
            rbtools.evaluate(model, (images, labels), PGD(eps=8 / 255), store=store)
            for store in ("kept", None)
        )
        assert torch.equal(kept.correct, fresh.correct)
        found.append(kept)
    files = [path for path in Path("kept").rglob("*") if path.is_file() and "outcomes" in str(path)]
    assert len(files) >= 6  # clean and attacked, three times
