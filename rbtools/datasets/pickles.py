"""Read pickled archives (CIFAR, downsampled ImageNet) without running code in them."""

from __future__ import annotations

import io
from typing import IO, Any

from rbtools.unpickle import Refused, arrays

__all__ = ["Refused", "load", "loads"]

_KINDS = "biuf"  # truth values, integers, floats


def load(file: IO[bytes]) -> dict[str, Any]:
    """The dict in a pickle: numpy arrays, lists, dicts, str, bytes and numbers, its keys as text.

    Text that Python 2 wrote arrives as bytes. Arrays may be read-only. Raises Refused where the pickle
    contains anything else, ValueError for a file that is no pickle.
    """
    value = arrays(file)
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, not a dict")
    fields = {_text(key): item for key, item in value.items()}
    for item in fields.values():
        kind = getattr(item, "dtype", None)
        if kind is not None and kind.kind not in _KINDS:
            raise Refused(
                f"an array of the type {kind}", f"it has an array of the type {kind}, expected numbers"
            )
    return fields


def loads(data: bytes) -> dict[str, Any]:
    """As `load`, from bytes."""
    return load(io.BytesIO(data))


def _text(key: object) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)
