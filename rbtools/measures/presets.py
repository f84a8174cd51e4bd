"""Presets of rb-measure: the settings of a paper under a name. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class MeasurePreset:
    """The settings of a paper: options of `rb-measure`, as typed, and parameters of measures."""

    options: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
