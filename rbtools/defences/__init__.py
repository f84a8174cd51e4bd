"""Defences in front of a network: transformations of its images, each with a way back for gradients.

A stage is a frozen dataclass in one file; `Defended` (defended.py) is a network behind some of them, `Stages`
(stages.py) the list that --defend names.
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
