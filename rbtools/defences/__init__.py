"""Defences in front of a network: transformations of the images, each with a gradient that attacks can use.

A stage is a frozen dataclass in its own file. `Defended` (defended.py) is a network behind stages, and
`Stages` (stages.py) is the list of stages in --defend.
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
