from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rbtools.errors import RbError, shown

# The fields, besides the name, that determine the network of an architecture. Sizes with their largest value.
_SIZES = {"channels": 1 << 20, "cells": 1000, "patch": 1 << 20, "side": 1 << 20, "width": 1 << 24}
_TEXTS = tuple("space str stem pool shortcut activation eps member code inputs answers".split())


def identity(arch: Mapping[str, Any], whose: str = "The record's arch") -> dict[str, Any]:
    """Returns the fields of an architecture that determine its network.

    Raises RbError, with a message that begins with `whose`, for a value that rb-arch does not write: records
    and files are untrusted.
    """
    fields = {key: arch[key] for key in (*_SIZES, *_TEXTS, "normalize") if key in arch}
    if "str" not in arch:
        fields["name"] = arch.get("name")
    texts = (*_TEXTS, "name")
    if arch.get("space") == "answers":  # every text says how the model is reached or asked
        texts = (*texts, *(key for key, value in arch.items() if isinstance(value, str)))
        fields |= {key: arch[key] for key in texts if key in arch}
    for key, value in fields.items():
        size = type(value) is int and 0 < value <= _SIZES.get(key, 0)
        text = key in texts and isinstance(value, str)
        if not (size or text or (key == "normalize" and _is_normalization(value))):
            raise RbError(
                f"{whose} has the {key} {shown(repr(value))}. Expected a value that rb-arch writes."
                " Create it again with rb-arch."
            )
    return fields


def _is_normalization(value: object) -> bool:
    """True for None, "none", "per-image", and the means and standard deviations of the channels."""
    if value in (None, "none", "per-image"):
        return True
    return isinstance(value, list) and len(value) == 2 and all(map(_are_numbers, value))


def _are_numbers(values: object) -> bool:
    return isinstance(values, list) and bool(values) and all(type(x) in (int, float) for x in values)
