"""Against the package imagecorruptions, which has the constants of ImageNet-C."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image

from rbtools.corruptions import CORRUPTIONS, imaging
from rbtools.corruptions.fog import plasma
from rbtools.datasets import corrupted
from rbtools.rng.draws import Draws
from tests.corruptions import peer

THEIRS = (*corrupted.CORRUPTIONS, *corrupted.EXTRA)  # the package has those of the archives
DETERMINISTIC = [name for name in THEIRS if not CORRUPTIONS.load(name).random]
RANDOM = [name for name in THEIRS if name not in DETERMINISTIC]
EQUAL = {"brightness", "contrast", "pixelate", "jpeg_compression", "saturate"}


def photographs(count: int) -> list[Image.Image]:
    """Pieces of the two photographs that come with scikit-learn, 32x32 made 64x64; no plain sky."""
    from sklearn.datasets import load_sample_images

    pieces = []
    for photo in load_sample_images().images:
        small = Image.fromarray(photo).resize((512, 256), Image.Resampling.BOX)
        pieces += [small.crop((x, y, x + 32, y + 32)) for y in range(0, 256, 32) for x in range(0, 512, 32)]
    pieces = [piece for piece in pieces if np.asarray(piece).std(axis=(0, 1)).min() > 25]
    some = pieces[:: len(pieces) // count][:count]
    return [piece.resize((64, 64), Image.Resampling.BICUBIC) for piece in some]


def change(name: str, severity: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """What they and we change in each image: (N, 64, 64, 3) in grey levels."""
    pictures = photographs(count)
    clean = np.stack([np.asarray(one) for one in pictures]).astype(int)
    np.random.seed(severity)
    with peer.running() as theirs:
        want = np.stack([np.uint8(getattr(theirs, name)(one, severity)) for one in pictures])
    images = torch.tensor(clean).permute(0, 3, 1, 2).float() / 255
    corrupt = CORRUPTIONS.build(name, constants="imagenet")
    found = corrupt(images, severity, Draws(0, "peer", torch.arange(len(images))))
    levels = (found.permute(0, 2, 3, 1) * 255).round().numpy().astype(int)
    return want - clean, levels - clean


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_images_are_the_peer_s(name: str, severity: int) -> None:
    theirs, ours = change(name, severity, 24)
    for want, found in zip(theirs, ours, strict=True):
        assert np.corrcoef(want.ravel(), found.ravel())[0, 1] > 0.99
    if name in EQUAL:
        assert np.abs(theirs - ours).max() <= 1


# The peer's elastic_transform is not that of ImageNet-C: it has no affine map, and other constants.
@pytest.mark.parametrize("severity", [2, 5])
@pytest.mark.parametrize("name", [name for name in RANDOM if name != "elastic_transform"])
@pytest.mark.slow
def test_chance_changes_as_much_as_the_peer_s(name: str, severity: int) -> None:
    theirs, ours = (np.abs(one).mean(axis=(1, 2, 3)) for one in change(name, severity, 24))
    error = np.sqrt(theirs.var() / len(theirs) + ours.var() / len(ours))
    assert abs(theirs.mean() - ours.mean()) < max(4 * error, 0.03 * theirs.mean())


@pytest.mark.parametrize("angle", [-135.0, -90.0, -44.3, 0.0, 33.3])
def test_motion_blur_is_the_peer_s(angle: float) -> None:
    image = np.random.default_rng(0).uniform(0, 255, size=(64, 48, 3)).astype(np.float32)
    with peer.running() as theirs:
        want = theirs._motion_blur(image, 10, 3, angle)
    tensor = torch.tensor(image).permute(2, 0, 1)[None]
    found = imaging.motion_blurred(tensor, 10, 3, torch.tensor([angle]))
    assert np.abs(found[0].permute(1, 2, 0).numpy() - want).max() < 1e-2


def test_plasma_is_the_peer_s_from_the_same_chance() -> None:
    """The peer asks for a scale's points after the other; ours has a number for each point of the map."""
    numbers = Draws(0, "plasma", torch.arange(1)).uniform((32, 32)).double().mul(2).sub(1)[0].numpy()
    steps = [(half, part) for half in (16, 8, 4, 2, 1) for part in ("middle", "above", "beside")]
    asked = iter(steps)

    def uniform(low: float, high: float, shape: tuple[int, ...]) -> np.ndarray:
        half, part = next(asked)
        rows = slice(0 if part == "above" else half, None, 2 * half)
        columns = slice(0 if part == "beside" else half, None, 2 * half)
        return high * numbers[rows, columns]

    with peer.running() as theirs, mock.patch.object(np.random, "uniform", uniform):
        want = theirs.plasma_fractal(32, 1.75)
    found = plasma(Draws(0, "plasma", torch.arange(1)), 32, 1.75)[0].numpy()
    assert np.abs(found - want).max() < 1e-9
