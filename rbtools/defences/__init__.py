"""Defences in front of a network: transformations of its images, each with a gradient for attacks.

A stage is a frozen dataclass in one file; `Defended` (defended.py) is a network behind some stages, `Stages`
(stages.py) the list of stages in --defend.
"""

from __future__ import annotations

from rbtools.registry import Registry

DEFENCES = Registry(
    "defence",
    {
        "jpeg": "rbtools.defences.jpeg:Jpeg",
        "quantize": "rbtools.defences.quantize:Quantize",
    },
    group="defences",
)
