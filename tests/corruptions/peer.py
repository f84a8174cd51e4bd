"""imagecorruptions 1.1.2, made to run with today's numpy and scikit-image, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np


@contextlib.contextmanager
def running() -> Iterator[Any]:
    """The module imagecorruptions.corruptions with the two names that it misses, while the block runs.

    numpy 2 has no `float_`, and scikit-image 0.23 no `multichannel` for its Gaussian filter.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pkg_resources, scipy.ndimage.interpolation
        from imagecorruptions import corruptions as theirs
    smooth = theirs.gaussian

    def gaussian(image: np.ndarray, sigma: Any, multichannel: bool = False, **more: Any) -> np.ndarray:
        return smooth(image, sigma, channel_axis=-1 if multichannel else None, **more)

    with (
        mock.patch.object(theirs, "gaussian", gaussian),
        mock.patch.object(np, "float_", np.float64, create=True),
        contextlib.redirect_stdout(None),
    ):
        yield theirs


def photographs() -> list[np.ndarray]:
    """Its six photographs of frost, uint8 (H, W, 3)."""
    import imagecorruptions
    from PIL import Image

    folder = Path(imagecorruptions.__file__).parent / "frost"
    return [np.asarray(Image.open(file).convert("RGB")) for file in sorted(folder.glob("frost*"))]
