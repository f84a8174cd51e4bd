"""Defences in front of a network: transformations of the images, with a gradient for attacks."""

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
