"""A certification method called by itself: what rb-certify decides of each image, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rbtools import datasets
from rbtools.certification import CERTIFIERS
from rbtools.commands.certify import main
from rbtools.errors import RbError
from rbtools.inputs import resolve
from tests.runner import Record, entry, one, run

COUNT = 24


def digits() -> tuple[Tensor, Tensor, Tensor]:
    """The first images of every evaluation, float32 (N, 1, 8, 8), their labels and their numbers."""
    data = datasets.load("digits", "test")
    examples = datasets.subset(data.labels, COUNT, seed=0)
    return data.images[examples].float() / 255, data.labels[examples], examples


def network() -> nn.Module:
    """The network of the fixture `known`."""
    load: Any = resolve.load_model
    found: nn.Module = load()
    return found


def certified(arguments: list[str], record: Record, metric: str) -> Record:
    options = ["--n", str(COUNT), "--detail", "--seed", "3", "--device", "cpu"]
    return entry(one(run(main, [*arguments, *options], [record])), metric)


RADII = (0.0, 0.1, 0.3)


@pytest.mark.parametrize("adaptive", [False, True])
def test_radii_are_those_of_the_command(adaptive: bool, known: dict[str, Record]) -> None:
    method = CERTIFIERS.build("smooth", samples=300, select=20, adaptive=adaptive)
    flags = ["--samples", "300", "--select", "20", *(["--adaptive"] if adaptive else [])]
    asked = certified(["smooth", *flags, "--eps", "0,0.1,0.3"], known["erm"], "cert.smooth.0.25.0.1")
    images, labels, examples = digits()
    eps = RADII if adaptive else None
    radii = method(network(), images, labels, eps=eps, seed=3, examples=examples)
    assert radii.dtype == torch.float64 and radii.shape == (COUNT,)
    detail = asked["detail"]
    for radius, stored, right in zip(radii.tolist(), detail["radii"], detail["correct"], strict=True):
        assert (None if math.isnan(radius) else round(radius, 6)) == (stored if right else None)
    assert asked["value"] == int((radii >= 0.1).sum()) / COUNT < int((radii >= 0).sum()) / COUNT
    some = torch.tensor([5, 2])
    alone = method(network(), images[some], labels[some], eps=eps, seed=3, examples=examples[some], batch=50)
    assert torch.equal(alone.nan_to_num(-1), radii[some].nan_to_num(-1))


IMAGES, LABELS = torch.full((2, 3, 16, 16), 0.5), torch.tensor([0, 1])
EVAL = nn.Sequential(nn.Flatten(), nn.Linear(768, 3)).eval()
NAN = nn.Sequential(nn.Flatten(), nn.Linear(768, 3)).eval()
nn.init.constant_(NAN[1].bias, math.nan)


@pytest.mark.parametrize("name", CERTIFIERS)
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"images": IMAGES * 255}, r"values from 127\.5 to 127\.5\. Expected values in \[0, 1\]"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, r"No images were given"),
        (
            {"model": nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(768, 3))},
            r"in training mode.*model\.eval\(\)",
        ),
        ({"model": NAN}, r"NaN or infinite logits"),
        ({"batch": 0}, r"batch is 0"),
    ],
)
def test_wrong_input_is_one_sentence(name: str, changed: dict[str, Any], message: str) -> None:
    given = {"model": EVAL, "images": IMAGES, "labels": LABELS} | changed
    with pytest.raises(RbError, match=message):
        CERTIFIERS.build(name)(**given)


def test_wrong_distances_are_one_sentence() -> None:
    with pytest.raises(RbError, match=r"eps is a list of distances for adaptive"):
        CERTIFIERS.build("smooth")(EVAL, IMAGES, LABELS, eps=(0.5,))
    for wrong in (-0.5, float("inf")):
        with pytest.raises(RbError, match=rf"eps is \[{wrong}\]\. Expected distances of 0 or more"):
            CERTIFIERS.build("smooth", adaptive=True)(EVAL, IMAGES, LABELS, eps=(wrong,))
    with pytest.raises(RbError, match=r"Expected 2 whole numbers"):
        CERTIFIERS.build("smooth")(EVAL, IMAGES, LABELS, examples=torch.arange(3))
