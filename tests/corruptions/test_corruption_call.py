"""A corruption called by itself: the pixels that rb-corrupt makes, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rbtools import datasets
from rbtools.corruptions import CORRUPTIONS, frost
from rbtools.errors import RbError
from tests.runner import run


@pytest.mark.parametrize("name", ["gaussian_noise", "frost", "jpeg_compression", "elastic_transform"])
def test_pixels_are_those_of_the_command(name: str, photos: Path) -> None:
    images = datasets.load(f"imagefolder:{photos}", "test").images[:].float() / 255
    words = f"{name} --write copy --dataset imagefolder:{photos} --seed 3 --batch 7 --device cpu"
    assert run("corrupt", words).exit_code == 0
    written = torch.from_numpy(np.load(f"copy/{name}.npy")).permute(0, 3, 1, 2)
    corruption = CORRUPTIONS.build(name)
    kept = images.clone()
    for severity, levels in enumerate(written.split(len(images)), start=1):
        assert torch.equal(corruption(images, severity=severity, seed=3), levels.float() / 255)
    assert torch.equal(images, kept)
    some = torch.tensor([8, 3, 5])
    alone = corruption(images[some], 5, seed=3, examples=some)
    assert torch.equal(alone, written[-len(images) :][some].float() / 255)


def test_frost_takes_the_photographs_if_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.full((2, 3, 32, 32), 0.5)
    pictures = tuple(torch.full((3, 60, 60), 20 * number, dtype=torch.uint8) for number in range(6))
    monkeypatch.setattr(frost, "_files", lambda: [Path("frost1.png")])
    monkeypatch.setattr(frost, "_photographs", lambda: pictures)
    seen = CORRUPTIONS.build("frost")(images, 1)
    assert all(len(image.unique()) == 1 for image in seen)  # of one picture each
    assert not torch.equal(seen, CORRUPTIONS.build("frost", textures="generated")(images, 1))


IMAGES = torch.full((2, 3, 16, 16), 0.5)


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (IMAGES, {"severity": 6}, r"Severity of fog is 6\. Choose from: 1, 2, 3, 4, 5\."),
        (IMAGES * 255, {}, r"values from 127\.5 to 127\.5\. Expected \[0, 1\]"),
        (IMAGES.numpy(), {}, r"images are of type ndarray"),
        (IMAGES, {"examples": torch.arange(3)}, r"shape \(3,\) .* Expected 2 whole numbers"),
        (IMAGES, {"examples": torch.rand(2)}, r"torch\.float32\. Expected 2 whole numbers"),
        (IMAGES, {"seed": -1}, r"The seed is -1"),
    ],
)
def test_wrong_input_is_one_sentence(images: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RbError, match=message):
        CORRUPTIONS.build("fog")(images, **{"severity": 1, **options})
