"""The data exchanged with models that can only be queried: arrays in .npy format, and answers in JSON."""

from __future__ import annotations

import io
import json
from typing import Any

from rbtools.errors import shown
from rbtools.lazy import np
from rbtools.queries.base import ModelFailure


def as_npy(images: np.ndarray) -> bytes:
    """Encode the images as the content of a .npy file, version 1.0, in C order."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(images), version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def parsed(text: bytes | bytearray, number: int = 0) -> Any:
    """The value of a JSON string. Raises ModelFailure for the image with this number if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        quoted = shown(repr(text[:200].decode("utf-8", "replace")), 80)
        raise ModelFailure(f"The model answered with {quoted}, which is not JSON.", number) from None
