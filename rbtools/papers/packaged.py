"""The YAML files of papers in this package. A value that depends on the scale is a mapping {mini: ..., full:
..., tiny: ...}; a missing scale has the value for mini, except that text has the value for full. The scale
full has the settings of a paper's public code, and text those of the paper's text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCALES = ("mini", "small", "full", "text", "tiny")
FULL = ("full", "text")


def read(name: str) -> dict[str, Any]:
    """The content of a file; `name` is its path in rbtools/papers."""
    import yaml  # not needed to draw an item

    content: dict[str, Any] = yaml.safe_load((Path(__file__).parent / name).read_text(encoding="utf-8"))
    return content


def at_scale(values: Mapping[str, Any], scale: str) -> dict[str, Any]:
    usual = ("text", "full", "mini") if scale == "text" else (scale, "mini")
    return {
        name: next(one[place] for place in usual if place in one) if isinstance(one, Mapping) else one
        for name, one in values.items()
    }
