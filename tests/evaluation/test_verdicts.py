"""Decisions by the float32 copy, and the passes that a look at a model makes."""

import pytest
import torch
from torch import nn

import rbtools
from rbtools.attacks.fab import FAB
from rbtools.attacks.fgsm import FGSM
from rbtools.attacks.verdicts import agree, decided, nearly_tied
from rbtools.evaluation import fast_model
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


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_copy_decides_as_the_model_does(scale: float) -> None:
    """Its logits differ by as much as `agree` accepts, and many of the images are tied."""
    logits = scale * torch.randn(2000, 4, generator=torch.Generator().manual_seed(0))
    logits[::3, 1] = logits[::3, 0] + scale * torch.linspace(-1e-4, 1e-4, 667)
    logits[::7, 2] = logits[::7].amax(1)
    change = 6e-5 * logits.abs().amax(1, keepdim=True) * torch.randn(logits.shape).sign()
    copies, rows = logits + change, torch.arange(len(logits))
    assert agree(logits, copies) and not agree(logits, copies + 1e-3 * logits.abs().max())
    assert (copies.argmax(1) != logits.argmax(1)).any()
    asked = []

    def model(some: torch.Tensor) -> torch.Tensor:
        asked.append(len(some))
        return logits[some]

    found = decided(model, lambda some: copies[some], rows)
    assert torch.equal(found.argmax(1), logits.argmax(1))
    assert asked == [int(nearly_tied(copies).sum())] and asked[0] < 1200


def test_logits_that_are_not_finite_are_left_to_the_model() -> None:
    logits = torch.tensor([[torch.nan, 1.0], [torch.inf, 0.0], [torch.inf, torch.inf], [2.0, 1.0]])
    assert nearly_tied(logits).tolist() == [True, True, True, False]
    assert nearly_tied(torch.zeros(3, 1)).tolist() == [False] * 3


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
    assert model.seen <= 200 + 5 + 16 + 4 * 8
