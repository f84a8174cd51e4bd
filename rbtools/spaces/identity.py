"""Which fields of an architecture decide what network it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rbtools.errors import RbError, shown

# The fields of an architecture, beside its name, that decide what network it is; of a size the largest.
_SIZES = {"channels": 1 << 20, "cells": 1000, "patch": 1 << 20, "side": 1 << 20, "width": 1 << 24}
_TEXTS = ("space", "str", "stem", "shortcut", "member", "code", "inputs")


def identity(arch: Mapping[str, Any], whose: str = "The record's arch") -> dict[str, Any]:
    """The fields of an architecture that decide what network it is, and nothing derived.

    Raises RbError where one is not what rb-arch writes: a record or a file may come from anywhere. `whose`
    begins the message.
    """
    found = {key: arch[key] for key in (*_SIZES, *_TEXTS, "normalize") if key in arch}
    if "str" not in arch:
        found["name"] = arch.get("name")
    for key, value in found.items():
        size = type(value) is int and 0 < value <= _SIZES.get(key, 0)
        text = key in (*_TEXTS, "name") and isinstance(value, str)
        if not (size or text or (key == "normalize" and _is_normalization(value))):
            raise RbError(
                f"{whose} has the {key} {shown(repr(value))}. Expected what rb-arch writes: make it"
                " with that anew."
            )
    return found


def _is_normalization(value: Any) -> bool:
    """Whether this is none, each image's own, or the means and standard deviations of the channels."""
    if value in (None, "none", "per-image"):
        return True
    return isinstance(value, list) and len(value) == 2 and all(map(_are_numbers, value))


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and all(type(x) in (int, float) for x in values)
