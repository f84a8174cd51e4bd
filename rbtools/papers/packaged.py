"""The YAML files of papers in this package. A value that depends on the scale is a mapping {mini: ..., full:
..., tiny: ...}; a missing scale has the value for mini."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCALES = ("mini", "small", "full", "tiny")


def read(name: str) -> dict[str, Any]:
    """The content of a file; `name` is its path in rbtools/papers."""
    import yaml  # not needed to draw an item

    content: dict[str, Any] = yaml.safe_load((Path(__file__).parent / name).read_text(encoding="utf-8"))
    return content


def at_scale(values: Mapping[str, Any], scale: str) -> dict[str, Any]:
    return {
        name: one.get(scale, one["mini"]) if isinstance(one, Mapping) else one for name, one in values.items()
    }
