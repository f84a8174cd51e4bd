"""Decisions by the float32 copy, and the passes that a look at a model makes."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import rbtools
from rbtools.attacks.aa import AutoAttack
from rbtools.attacks.fab import FAB
from rbtools.attacks.fgsm import FGSM
from rbtools.attacks.verdicts import Judge
from rbtools.datasets.indices import subset
from rbtools.errors import RbError
from rbtools.evaluation import fast_model, tiles
from tests.networks import images_for


class Counted(nn.Module):
    """A network with BatchNorm that counts the images of each instance; a copy of it counts its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        self.last = nn.Linear(8 * 16, 5)
        self.seen = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen += len(images)
        logits: torch.Tensor = self.last(self.layers(images))
        return logits


class Shifted(nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.roll(1, dims=1)


def labelled(n: int) -> tuple[Counted, torch.Tensor, torch.Tensor]:
    model, images = Counted().eval(), images_for(n)
    with torch.no_grad():
        labels = model(images).argmax(1)
    labels[::4] = (labels[::4] + 1) % 5
    model.seen = 0
    return model, images, labels


@pytest.mark.parametrize("form", ["any", "one is 0", "opposite"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_copy_decides_as_the_model_does(scale: float, form: str) -> None:
    """Its logits differ by as much as `agrees` accepts, and many of the images are tied."""
    logits = scale * torch.randn(2000, 4, generator=torch.Generator().manual_seed(0))
    logits[::3, 1] = logits[::3, 0] + scale * torch.linspace(-1e-4, 1e-4, 667)
    logits[::7, 2] = logits[::7].amax(1)
    if form != "any":
        z = logits[:, :1] * torch.logspace(-8, 0, 2000)[:, None]
        logits = torch.cat([-z if form == "opposite" else 0 * z, z], dim=1)
    judge = Judge.of(lambda rows: copies[rows], logits)
    change = 6e-5 * logits.abs().max() * torch.randn(logits.shape).sign()
    copies, rows = logits + change, torch.arange(len(logits))
    assert judge.agrees(logits, copies) and not judge.agrees(logits, copies + 1e-3 * judge.largest)
    assert (copies.argmax(1) != logits.argmax(1)).any()
    asked = []

    def model(some: torch.Tensor) -> torch.Tensor:
        asked.append(len(some))
        return logits[some]

    found = judge.logits(model, rows)
    assert torch.equal(found.argmax(1), logits.argmax(1))
    assert asked == [int(judge.tied(copies).sum())] and asked[0] < 1900


def test_logits_that_are_not_finite_are_left_to_the_model() -> None:
    judge = Judge(lambda images: images, 1.0)
    logits = torch.tensor([[torch.nan, 1.0], [torch.inf, 0.0], [torch.inf, torch.inf], [2.0, 1.0]])
    assert judge.tied(logits).tolist() == [True, True, True, False]
    assert judge.tied(torch.zeros(3, 1)).tolist() == [False] * 3


@pytest.mark.parametrize("attack", [FGSM(eps=0.02), FAB(eps=0.02, steps=3)])
def test_a_copy_with_other_logits_does_not_decide(attack: object, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images, labels = labelled(40)
    result = rbtools.evaluate(model, (images, labels), [attack], device="cpu")[0]
    make = fast_model.make_fast_model

    def made(*given: object) -> fast_model.FastModel:
        found = make(*given)  # type: ignore[arg-type]
        assert found.judge is not None
        return found._replace(judge=nn.Sequential(found.judge, Shifted()))

    monkeypatch.setattr(fast_model, "make_fast_model", made)
    other = rbtools.evaluate(model, (images, labels), [attack], device="cpu")[0]
    assert torch.equal(result.correct, other.correct)


def test_a_look_makes_few_passes_beyond_those_of_clean_accuracy() -> None:
    model, images, labels = labelled(200)
    rbtools.evaluate(model, (images, labels), "acc", device="cpu")
    assert model.seen <= 200 + 5 + 34 + 3 * (12 + 32)


def test_the_copy_decides_and_searches_in_place_of_the_model() -> None:
    """Without it, the model would classify the images before and after the attack, too."""
    model, images, labels = labelled(200)
    for attack in (FGSM(eps=0.02), FAB(eps=0.02, steps=3)):
        model.seen = 0
        rbtools.evaluate(model, (images, labels), attack, device="cpu")
        assert model.seen <= 128 + 5 + 34 + 3 * (12 + 32) + 30


def test_a_look_sees_other_images_if_few_are_evaluated() -> None:
    class Centred(Counted):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images - images.mean(0))

    images, labels = images_for(80), torch.zeros(80, dtype=torch.long)
    with pytest.raises(RbError, match="depend on the other images in the batch"):
        rbtools.evaluate(Centred().eval(), (images, labels), "acc", n=1, device="cpu")


@pytest.mark.parametrize("place", [30, 150])
def test_an_error_names_the_image_that_is_not_finite(place: int) -> None:
    class Bad(Counted):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images) / (images[:, :1, 0, 0] != 0.125)

    images, labels = images_for(180), torch.zeros(180, dtype=torch.long)
    images[:, 0, 0, 0] = 0.5
    bad = int(subset(labels, 180, seed=0)[place])
    images[bad, 0, 0, 0] = 0.125
    with pytest.raises(RbError, match=f"image {bad} is not finite"):
        rbtools.evaluate(Bad().eval(), (images, labels), FGSM(eps=0.01), device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("stop", [0.3, 0.7])
def test_an_attack_that_is_resumed_with_another_memory_batch_tries_all_targets(
    stop: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the last target breaks the images, in a run that shares its batch with others."""
    for name in ("_SECONDS_BEFORE_KEEPING", "_SECONDS_BETWEEN_WRITES", "_TIMES_OF_A_WRITE"):
        monkeypatch.setattr(tiles, name, 0.0)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(108, 10)).eval()
    with torch.no_grad():
        model[1].weight[:9] *= 0.2
        model[1].weight[9] = 3 * torch.randn(108).sign()
        model[1].bias[:] = torch.tensor([6, 5, 4.5, 4, 3.5, 3, 2.5, 2, 1.5, -20])
        model[1].bias -= model[1].weight.sum(1) / 2
    images, labels = 0.5 + 0.01 * (images_for(6) - 0.5), torch.zeros(6, dtype=torch.long)
    calls = []

    def run(batch: int, most: float, store: str | None = "kept") -> float:
        def progress(line: str) -> None:
            calls.append(line)
            if len(calls) > most:
                raise KeyboardInterrupt

        calls.clear()
        attack = AutoAttack(eps=0.15, attacks="apgd-t,fgsm")
        given: dict[str, Any] = {"store": store, "batch": batch, "progress": progress, "device": "cpu"}
        return float(rbtools.evaluate(model, (images, labels), [attack], **given)[0].value)

    assert run(2, math.inf, None) == 0
    with pytest.raises(KeyboardInterrupt):
        run(2, stop * len(calls))
    assert run(512, math.inf) == 0
