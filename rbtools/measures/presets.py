"""Presets of rb-measure: the settings of a paper under a name. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rbtools.errors import UsageError, unknown
from rbtools.registry import gathered


@dataclass(frozen=True)
class MeasurePreset:
    """The settings of a paper: options of `rb-measure`, as typed, and parameters of measures."""

    options: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)


def named(name: str) -> MeasurePreset:
    """The preset of that name. Raises UsageError for an unknown name."""
    presets, aliases = gathered("measure-presets"), gathered("preset-aliases")
    preset: MeasurePreset | None = presets.get(aliases.get(name, name))
    if preset is None:
        raise unknown("preset", name, [*presets, *aliases], UsageError)
    return preset
