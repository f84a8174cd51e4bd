"""The data files of papers in this package: YAML, in which a value may differ between the scales.

Such a value is a mapping {mini: ..., full: ..., tiny: ...}; a scale that it does not have takes mini's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCALES = ("mini", "full", "tiny")


def read(name: str) -> dict[str, Any]:
    """The content of a file, by its path below rbtools/papers."""
    import yaml  # those who draw an item do without

    content: dict[str, Any] = yaml.safe_load((Path(__file__).parent / name).read_text(encoding="utf-8"))
    return content


def at_scale(values: Mapping[str, Any], scale: str) -> dict[str, Any]:
    """The values as they are at a scale, by their names."""
    return {
        name: one.get(scale, one["mini"]) if isinstance(one, Mapping) else one for name, one in values.items()
    }
